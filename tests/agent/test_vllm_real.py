"""The vLLM engine on a real server (`.venv-vllm`, made by scripts/vllm-env.sh): numbers, versions, faults, end.

Without that environment the tests are skipped by the words VLLM TEST NOT RUN; SAO_REQUIRE_VLLM=1 makes that a failure.
SAO_VLLM_UPDATES (50) and SAO_VLLM_KILLS (1) set the sizes of the long ones. The model's head is tied.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config

from agent.engines.vllm.faults import ServedWeightsWrong
from agent.engines.vllm.guard import descendants
from agent.engines.vllm.launch import LaunchSettings
from agent.engines.vllm.loading import OUR_RELOAD, FileLoader
from agent.engines.vllm.policy import ServingSettings, VllmPolicy
from agent.engines.vllm.proof import probe_of
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
from agent.policy import Generation, StopReason
from tests.agent.processes import alive, gone
from tests.agent.vllm_fake import write_probe

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("SAO_VLLM_ENV", ROOT / ".venv-vllm"))
UPDATES = int(os.environ.get("SAO_VLLM_UPDATES", "50"))
KILLS = int(os.environ.get("SAO_VLLM_KILLS", "1"))
VOCABULARY, CONTEXT = 256, 1024
LIMIT = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


class World:
    """One server for the whole file, in one event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runner, self.stack = folder, asyncio.Runner(), contextlib.AsyncExitStack()
        self.first = save(new_model(0), folder / "first")
        self.versions = 0

    def run(self, work: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await work

        return self.runner.run(waited())

    async def start(self) -> None:
        launch = LaunchSettings(
            model=self.first, environment=ENVIRONMENT, max_context=CONTEXT, extra=("--skip-tokenizer-init",)
        )
        self.supervisor = await self.stack.enter_async_context(
            Supervisor(launch, self.folder / "logs", settings=SuperviseSettings(start_timeout_s=1800, restarts=100))
        )
        await self.supervisor.wait_ready()

    async def policy(self, model: nn.Module, lineage: str, **settings: Any) -> VllmPolicy:
        return await VllmPolicy.connect(
            self.supervisor.urls,
            save(model, self.folder / lineage),
            self.folder / f"{lineage}-work",
            lineage=lineage,
            loader=lambda _: FileLoader(OUR_RELOAD),
            settings=ServingSettings(patience_s=1800, **settings),
        )


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def save(model: Any, folder: Path) -> Path:
    """As the trainer publishes it: with its own probe beside the weights."""
    model.save_pretrained(folder)
    write_probe(folder, probe_of(model))
    return folder


def forced(model: nn.Module, prompt: list[int], made: Generation) -> list[float]:
    """Log-probabilities of the sampled tokens by one plain forward over the whole sequence."""
    ids = torch.tensor([[*prompt, *made.tokens]])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
    at = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return logprobs[at, ids[0, at + 1]].tolist()


def worst(model: nn.Module, prompt: list[int], made: Generation) -> float:
    pairs = zip(forced(model, prompt, made), made.logprobs, strict=True)
    return max(abs(ours - theirs) for ours, theirs in pairs)


def prompt_of(seed: int, length: int = 20) -> list[int]:
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(length)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not (ENVIRONMENT / "bin" / "python").exists():
        reason = f"no vLLM in {ENVIRONMENT}: run scripts/vllm-env.sh"
        if os.environ.get("SAO_REQUIRE_VLLM") == "1":
            pytest.fail(f"SAO_REQUIRE_VLLM=1, but {reason}", pytrace=False)
        pytest.skip(f"VLLM TEST NOT RUN: {reason}")
    torch.set_num_threads(1)
    made = World(tmp_path_factory.mktemp("vllm"))
    made.run(made.start())
    yield made
    trees = [pid for server in made.supervisor.servers if server.process for pid in tree(server.process.pid)]
    made.run(made.stack.aclose())
    made.runner.close()
    assert len(trees) >= 3  # guard, API server, engine: what must be gone now
    assert [pid for pid in trees if alive(pid)] == []


def tree(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def test_sampled_logprobs_are_those_of_a_plain_forward(world: World) -> None:
    async def test() -> None:
        model = new_model(1)
        policy = await world.policy(model, "plain")
        assert policy.max_context == CONTEXT
        assert policy.stats.proof_worst < LIMIT
        prompts = [prompt_of(seed, 5 + 13 * seed) for seed in range(16)]
        made = await asyncio.gather(
            *(
                policy.generate(prompt, max_new_tokens=40 + seed, stop_ids=[3], seed=seed, episode_id=f"e{seed}")
                for seed, prompt in enumerate(prompts)
            )
        )
        for prompt, each in zip(prompts, made, strict=True):
            assert worst(model, prompt, each) < LIMIT
        for seed, each in enumerate(made):
            if each.stop_reason is StopReason.STOP:
                assert each.tokens[-1] == 3
            else:
                assert len(each.tokens) == 40 + seed
        again = await policy.generate(prompts[4], max_new_tokens=44, stop_ids=[3], seed=4)
        assert list(again.tokens) == list(made[4].tokens)  # same seed, weights and ids
        # A second turn on the kept prefix, then an abort: what was sampled so far comes back.
        longer = [*prompts[4], *again.tokens, 7, 8, 9]
        second = await policy.generate(longer, max_new_tokens=30, stop_ids=[], seed=40, episode_id="e4")
        assert worst(model, longer, second) < LIMIT
        task = asyncio.create_task(
            policy.generate(prompts[0], max_new_tokens=1000, stop_ids=[], seed=1, episode_id="cut")
        )
        await asyncio.sleep(1.0)
        await policy.abort("cut")
        cut = await task
        assert cut.stop_reason is StopReason.ABORTED
        assert 0 < len(cut.tokens) < 1000
        assert worst(model, prompts[0], cut) < LIMIT
        await policy.close()

    world.run(test())


def test_updates_in_flight_leave_every_token_its_version(world: World) -> None:
    async def test() -> None:
        models: dict[int, Any] = {0: new_model(2)}
        policy = await world.policy(models[0], "flight")
        finished: list[tuple[list[int], Generation]] = []
        stop = False

        async def play(worker: int) -> None:
            turn = 0
            while not stop:
                prompt = prompt_of(1000 * worker + turn)
                made = await policy.generate(
                    prompt, max_new_tokens=600, stop_ids=[], seed=1000 * worker + turn, episode_id=f"w{worker}"
                )
                finished.append((prompt, made))
                turn += 1

        workers = [asyncio.create_task(play(worker)) for worker in range(4)]
        for version in range(1, UPDATES + 1):
            model = new_model(2)
            torch.manual_seed(version)
            # Not the last version's child: fifty steps would end in huge weights, whose fp32 sums differ by 1e-4.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            models[version] = model
            await policy.update_weights(save(model, world.folder / f"flight-{version}"), version)
            await asyncio.sleep(random.Random(version).uniform(0.0, 0.3))
        stop = True
        await asyncio.gather(*workers)
        boundaries, seen = 0, set()
        for prompt, made in finished:
            seen |= set(made.versions)
            assert list(made.versions) == sorted(made.versions)
            by_version = {version: forced(models[version], prompt, made) for version in set(made.versions)}
            for place, version in enumerate(made.versions):
                assert abs(by_version[version][place] - made.logprobs[place]) < LIMIT, (version, place)
                if place and version != (before := made.versions[place - 1]):
                    boundaries += 1
                    # Neither side of the boundary fits the other version, so it stands exactly there.
                    for at, other in ((place, before), (place - 1, version)):
                        assert abs(by_version[other][at] - made.logprobs[at]) > LIMIT, (other, at)
        print(f"{UPDATES} updates, {len(seen)} versions sampled, {boundaries} boundaries, {len(finished)} turns")
        assert boundaries >= UPDATES // 2
        assert policy.stats.proof_worst < LIMIT
        await policy.close()

    world.run(test())


def test_killed_servers_cost_time_and_nothing_else(world: World) -> None:
    async def test() -> None:
        model = new_model(3)
        policy = await world.policy(model, "kills")
        server = world.supervisor.servers[0]
        for kill in range(KILLS):
            chance = random.Random(kill)
            prompts = [prompt_of(100 * kill + index) for index in range(12)]
            tasks = [
                asyncio.create_task(
                    policy.generate(prompt, max_new_tokens=150 + index, stop_ids=[], seed=index, episode_id=f"k{index}")
                )
                for index, prompt in enumerate(prompts)
            ]
            await asyncio.sleep(chance.uniform(0.05, 1.5))
            starts = server.starts
            assert server.process is not None
            victims = descendants(server.process.pid)
            # The API server alone, the engine alone, or its worker: one of them dies, all go.
            parts = [pid for pid in victims if any(name in command_of(pid) for name in ("api_server", "VLLM::"))]
            os.kill(chance.choice(parts), signal.SIGKILL)
            before = time.monotonic()
            made = await asyncio.gather(*tasks)
            print(f"kill {kill}: {policy.stats.sampled_again} sampled again, {time.monotonic() - before:.0f} s")
            assert server.starts == starts + 1
            assert [pid for pid in victims if alive(pid)] == []
            for index, (prompt, each) in enumerate(zip(prompts, made, strict=True)):
                assert len(each.tokens) == 150 + index
                assert set(each.versions) == {0}
                assert worst(model, prompt, each) < LIMIT
        assert policy.stats.sampled_again >= KILLS
        await policy.close()

    world.run(test())


def test_a_stale_tied_head_is_caught_and_our_reload_does_not_leave_one(world: World) -> None:
    """vLLM's own reload on a CPU keeps the packed copy of a tied head. The proof must see it."""

    async def test() -> None:
        for seed, method in ((4, OUR_RELOAD), (5, "reload_weights"), (6, OUR_RELOAD)):
            folder = save(new_model(seed), world.folder / f"tied-{seed}")
            connected = VllmPolicy.connect(
                world.supervisor.urls,
                folder,
                world.folder / f"tied-{seed}-work",
                lineage=f"tied{seed}",
                loader=lambda _, method=method: FileLoader(method),
            )
            if method == OUR_RELOAD:
                policy = await connected
                assert policy.stats.proof_worst < LIMIT
                await policy.close()
            else:
                with pytest.raises(ServedWeightsWrong, match="a tied head"):
                    await connected

    world.run(test())


def test_a_killed_supervisor_leaves_no_process_behind(world: World, tmp_path: Path) -> None:
    """SIGKILL to `sao serve` itself, while its server is still starting."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sao", "serve", "--model", str(world.first), "--port", "0", "--logs", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while len(found := descendants(process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2.0)
    found = descendants(process.pid)
    assert len(found) >= 2
    process.kill()
    process.wait()
    assert gone(found)
