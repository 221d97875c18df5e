"""The vLLM engine on a real server (`.venv-vllm`, made by scripts/vllm-env.sh): numbers, versions, faults, end.

Without that environment the tests are skipped by the words VLLM TEST NOT RUN; SAO_REQUIRE_VLLM=1 makes that a failure.
SAO_VLLM_UPDATES (50) and SAO_VLLM_KILLS (1) set the sizes of the long ones. The model's head is tied.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.faults import ServedWeightsWrong
from agent.engines.vllm.guard import descendants
from agent.engines.vllm.loading import OUR_RELOAD, FileLoader
from agent.engines.vllm.policy import VllmPolicy
from agent.policy import Generation, StopReason
from tests.agent.processes import alive, gone
from tests.agent.vllm_world import (
    CONTEXT,
    LIMIT,
    ROOT,
    World,
    command_of,
    forced,
    need_vllm,
    new_model,
    prompt_of,
    save,
    step_from,
    worst,
)

UPDATES = int(os.environ.get("SAO_VLLM_UPDATES", "50"))
KILLS = int(os.environ.get("SAO_VLLM_KILLS", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_vllm()
    made = World(tmp_path_factory.mktemp("vllm"))
    yield made
    made.end()


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
            models[version] = step_from(2, version)
            await policy.update_weights(save(models[version], world.folder / f"flight-{version}"), version)
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
                    policy.generate(prompt, max_new_tokens=700 + index, stop_ids=[], seed=index, episode_id=f"k{index}")
                )
                for index, prompt in enumerate(prompts)
            ]
            await asyncio.sleep(chance.uniform(0.05, 4.0))
            assert not any(task.done() for task in tasks)
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
                assert len(each.tokens) == 700 + index
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
