"""Tokens per second of the embedded engine against transformers' model.generate, same model, one thread.

    python -m benchmarks.engine_speed [--new 128] [--prompt 200] [--rounds 3]

The model has the demo policy's shape (Qwen3, hidden 128, 4 layers, vocabulary 1000) with random weights. Figures are
the best of `rounds`; generate is timed without its prefill, the engine with it subtracted the same way (a run with
one new token). The last line of each block is the CPU time per token, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agent.engines.embedded import EmbeddedPolicy


def demo_shape() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(demo_shape(), dtype=torch.float32).eval()


def measure(run: Callable[[int], None], requests: int, new: int, rounds: int) -> tuple[float, float]:
    """Tokens per second of wall time, microseconds of CPU per token; prefill (a run of one token) taken off."""
    best, cpu = float("inf"), float("inf")
    run(2)
    for _ in range(rounds):
        spent = []
        for tokens in (1, new + 1):
            wall, busy = time.perf_counter(), time.process_time()
            run(tokens)
            spent.append((time.perf_counter() - wall, time.process_time() - busy))
        best = min(best, spent[1][0] - spent[0][0])
        cpu = min(cpu, spent[1][1] - spent[0][1])
    return requests * new / best, 1e6 * cpu / (requests * new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain = make_model()
    print(f"{'requests':>8} {'engine tok/s':>13} {'generate tok/s':>15} {'engine µs CPU':>14} {'generate µs CPU':>16}")
    for requests in options.requests:
        prompts = torch.randint(0, 1000, (requests, options.prompt))
        engine = EmbeddedPolicy(make_model(), threads=1, max_batch=requests)

        def ours(new: int, engine: EmbeddedPolicy = engine, prompts: torch.Tensor = prompts) -> None:
            async def run() -> None:
                await asyncio.gather(
                    *(
                        engine.generate(ids, max_new_tokens=new, stop_ids=[], seed=seed)
                        for seed, ids in enumerate(prompts.tolist())
                    )
                )

            asyncio.run(run())

        def theirs(new: int, prompts: torch.Tensor = prompts) -> None:
            plain.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                top_k=0,
                eos_token_id=None,
                pad_token_id=0,
            )

        mine = measure(ours, requests, options.new, options.rounds)
        other = measure(theirs, requests, options.new, options.rounds)
        print(f"{requests:>8} {mine[0]:>13.0f} {other[0]:>15.0f} {mine[1]:>14.0f} {other[1]:>16.0f}", flush=True)
        asyncio.run(engine.close())


if __name__ == "__main__":
    main()
