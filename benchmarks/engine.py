"""Tokens per second of the engines: embedded, transformers' model.generate, vLLM; 1, 16 and 64 episodes, ragged ends.

    python -m benchmarks.engine [--requests 1 16 64] [--new 128] [--prompt 200] [--rounds 3] [--quick]
                                [--server http://127.0.0.1:8321] [--no-vllm]

The model is the shipped demo policy's shape with random weights (Qwen3, hidden 128, 4 layers, head size 64, vocabulary
784), one thread everywhere. Every request has its own length: prompts of 0.5 to 1.5 times `--prompt`, answers of 0.25
to 1.0 times `--new`, the same for all three. Only tokens that were asked for count: `generate` goes on with padding
until its longest request is over, as it does when episodes of one batch end at different times. Prefill is included.
Figures are the best of `--rounds`. vLLM needs .venv-vllm; its start (and one warm-up request) is not counted.
The last line is JSON: embedded_speedup_vs_generate and vllm_tokens_per_s (at the most requests; null with the reason in
`vllm` where it did not run), and all rates. `--quick` takes under 50 s: one round, half as long, and vLLM only where
`--server` names a running server of this model (`--save FOLDER` writes it).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, StoppingCriteria, StoppingCriteriaList

from agent.engines.embedded import EmbeddedPolicy
from agent.engines.vllm.faults import ServerFault, ServerStartFailed
from agent.engines.vllm.launch import LaunchSettings
from agent.engines.vllm.policy import VllmPolicy
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
from agent.policy import TrainablePolicy

VOCABULARY, CONTEXT = 784, 1024
ENVIRONMENT = Path(__file__).resolve().parents[1] / ".venv-vllm"


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    new: int


def make_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def make_requests(count: int, prompt: int, new: int) -> list[Request]:
    chance = random.Random(count)
    return [
        Request(
            [chance.randrange(VOCABULARY) for _ in range(int(prompt * chance.uniform(0.5, 1.5)))],
            max(1, int(new * chance.uniform(0.25, 1.0))),
        )
        for _ in range(count)
    ]


class _Ragged(StoppingCriteria):
    """Every row ends after its own number of tokens."""

    def __init__(self, start: int, limits: list[int]) -> None:
        self.ends = torch.tensor(limits) + start

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] >= self.ends


def generate(model: Any, requests: list[Request]) -> int:
    longest = max(len(request.prompt) for request in requests)
    ids = torch.zeros((len(requests), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
        mask[row, longest - len(request.prompt) :] = 1
    limits = [request.new for request in requests]
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(limits),
            do_sample=True,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([_Ragged(longest, limits)]),
        )
    return sum(limits)


async def play(policy: TrainablePolicy, requests: list[Request], tag: str) -> int:
    made = await asyncio.gather(
        *(
            policy.generate(
                request.prompt, max_new_tokens=request.new, stop_ids=[], seed=seed, episode_id=f"{tag}-{seed}"
            )
            for seed, request in enumerate(requests)
        )
    )
    for seed in range(len(requests)):
        await policy.forget(f"{tag}-{seed}")
    return sum(len(each.tokens) for each in made)


def best(run: Callable[[int], int], rounds: int) -> float:
    """Tokens per second of the best round."""
    found = 0.0
    for index in range(rounds):
        began = time.perf_counter()
        tokens = run(index)
        found = max(found, tokens / (time.perf_counter() - began))
    return found


def measure_vllm(options: argparse.Namespace, model: Any) -> tuple[dict[int, float], str]:
    """Tokens per second by number of requests, or nothing and why."""
    if options.no_vllm:
        return {}, "left out (--no-vllm)"
    if options.quick and not options.server:
        return {}, "left out (--quick without --server: a server takes longer to start)"

    async def measure() -> dict[int, float]:
        found: dict[int, float] = {}
        with tempfile.TemporaryDirectory(prefix="sao-bench-") as name:
            folder = Path(name)
            model.save_pretrained(folder / "model")
            launch = LaunchSettings(
                folder / "model", ENVIRONMENT, in_flight=max(options.requests), extra=("--skip-tokenizer-init",)
            )
            if options.server:
                return await rates([options.server], folder)
            settings = SuperviseSettings(start_timeout_s=1800)
            async with Supervisor(launch, folder / "logs", settings=settings) as supervisor:
                began = time.monotonic()
                await supervisor.wait_ready()
                print(f"vLLM ready after {time.monotonic() - began:.0f} s", flush=True)
                found = await rates(supervisor.urls, folder)
        return found

    async def rates(urls: list[str], folder: Path) -> dict[int, float]:
        policy = await VllmPolicy.connect(urls, folder / "model", folder / "work", lineage=f"bench{os.getpid()}")
        found: dict[int, float] = {}
        try:
            await play(policy, make_requests(2, 50, 20), "warm")
            for count in options.requests:
                requests = make_requests(count, options.prompt, options.new)
                for index in range(options.rounds):
                    # Other prompts every round: the server's prefix cache must not answer for the work.
                    shifted = [
                        Request([(token + index) % VOCABULARY for token in request.prompt], request.new)
                        for request in requests
                    ]
                    began = time.perf_counter()
                    tokens = await play(policy, shifted, f"{count}-{index}")
                    found[count] = max(found.get(count, 0.0), tokens / (time.perf_counter() - began))
        finally:
            await policy.close()
        return found

    try:
        return asyncio.run(measure()), ""
    except (ServerStartFailed, ServerFault) as error:
        return {}, str(error).splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--server", default="", help="address of a running server of this model")
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--save", type=Path, help="write the model here and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    if options.save:
        model.save_pretrained(options.save)
        return
    if options.quick:
        options.rounds, options.new, options.prompt = 1, min(options.new, 64), min(options.prompt, 100)
    ours: dict[int, float] = {}
    theirs: dict[int, float] = {}
    for count in options.requests:
        requests = make_requests(count, options.prompt, options.new)
        engine = EmbeddedPolicy(make_model(), threads=1, max_batch=count)
        warm = make_requests(min(count, 4), 20, 8)
        generate(model, warm)
        asyncio.run(play(engine, warm, "warm"))
        ours[count] = best(lambda index, r=requests, e=engine: asyncio.run(play(e, r, str(index))), options.rounds)
        theirs[count] = best(lambda _, r=requests: generate(model, r), options.rounds)
        asyncio.run(engine.close())
        print(f"{count:>4} requests: embedded {ours[count]:>6.0f}  generate {theirs[count]:>6.0f} tokens/s", flush=True)
    vllm, reason = measure_vllm(options, model)
    for count, rate in vllm.items():
        print(f"{count:>4} requests: vLLM     {rate:>6.0f} tokens/s", flush=True)
    most = max(options.requests)
    print(
        json.dumps(
            {
                "embedded_speedup_vs_generate": round(ours[most] / theirs[most], 3),
                "vllm_tokens_per_s": round(vllm[most], 1) if most in vllm else None,
                "vllm": reason,
                "embedded_tokens_per_s": {str(count): round(rate, 1) for count, rate in ours.items()},
                "generate_tokens_per_s": {str(count): round(rate, 1) for count, rate in theirs.items()},
                "vllm_by_requests": {str(count): round(rate, 1) for count, rate in vllm.items()},
                "episodes": most,
            }
        )
    )


if __name__ == "__main__":
    main()
