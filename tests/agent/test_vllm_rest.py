"""Colocated: servers that lie down while the trainer has the device. Order of the verbs, what waits, what goes wrong.

The fake server has vLLM's endpoints and asserts its rules (no load into sleeping memory, no resume without it, requests
preempted before it sleeps); tests/agent/test_vllm_real.py has the same phases on a real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from agent.engines.vllm.faults import ServedWeightsWrong, ServerRefused
from agent.engines.vllm.policy import ServingSettings, VllmPolicy
from agent.engines.vllm.rest import EngineClock
from agent.policy import EngineError
from tests.agent.test_vllm_client import check, run, serving, turn
from tests.agent.vllm_fake import FakeServer, write_weights

COLOCATED = ServingSettings(health_every_s=0.05, health_timeout_s=1.0, patience_s=0.5, sleep_level=2)


def test_the_phases_in_order_and_requests_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            told: list[bool] = []
            policy.on_rest = told.append
            fake.calls.clear()
            await policy.rest()
            assert fake.calls == ["pause", "reset", "sleep 2"]
            assert told == [True]
            waiting = asyncio.create_task(turn(policy))
            before = policy.clock()
            await asyncio.sleep(1.2)  # longer than the patience for servers that are down
            assert not waiting.done()
            assert not fake.requests
            assert policy.clock() == before
            fake.calls.clear()
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            loads = ["pause", "label", "wake weights", "reload", "wake kv_cache", "pause", "reset", "resume"]
            assert fake.calls == loads
            assert told == [True, False]
            check(await waiting, 1, version=1)
            assert policy.clock() - before < 1.0

    run(test)


def test_waking_without_news_loads_and_proves_the_present_weights_again(tmp_path: Path) -> None:
    """Level 2 drops them; level 1 gives back a copy that nobody looked at."""

    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            await policy.rest()
            await policy.wake()
            check(await turn(policy), 1, version=0)
            fake.stale = True  # loads nothing: after a sleep that dropped the weights
            await policy.rest()
            with pytest.raises(ServedWeightsWrong):
                await policy.wake()
            with pytest.raises(EngineError):
                await turn(policy)

    run(test)


def test_requests_in_flight_go_on_after_the_rest(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            fake.delay_s = 0.4
            running = [asyncio.create_task(turn(policy, seed, episode=f"e{seed}")) for seed in range(4)]
            await asyncio.sleep(0.1)
            await policy.rest()
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            for seed, task in enumerate(running):
                check(await task, seed, version=1)
            assert len(fake.requests) == 4

    run(test)


@pytest.mark.parametrize("verb", ["/pause", "/reset_prefix_cache", "/sleep"])
def test_a_server_that_dies_lying_down_comes_back_after_the_rest_and_not_before(tmp_path: Path, verb: str) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            fake.dies_at = verb
            await policy.rest()
            await fake._dying
            await fake.start()
            await asyncio.sleep(0.3)
            assert fake.mark == 0.0  # nobody loads weights onto a device that the trainer has
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            check(await turn(policy), 1, version=1)

    run(test)


@pytest.mark.parametrize("verb", ["/wake_up", "/collective_rpc", "/update_weight_version"])
def test_a_server_that_dies_waking_up_takes_the_weights_when_it_is_back(tmp_path: Path, verb: str) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            await policy.rest()
            fake.dies_at = verb
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            await fake._dying
            await fake.start()
            check(await turn(policy), 1, version=1)

    run(test)


def test_a_server_that_counts_as_down_while_it_sleeps_is_woken_before_it_loads(tmp_path: Path) -> None:
    """It is the same process, only late: not one that was started again and never slept."""

    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            await policy.rest()
            fake.sick = True
            await policy._servers[0].lost.wait()
            fake.sick = False
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            check(await turn(policy), 1, version=1)

    run(test)


async def coming_back(policy: VllmPolicy, fake: FakeServer) -> asyncio.Event:
    """Kill it and have it started again; returns while it loads the present weights, which goes on when this is set."""
    loading, go, load = asyncio.Event(), asyncio.Event(), fake._reload

    async def held(request: web.Request) -> web.Response:
        loading.set()
        await go.wait()
        return await load(request)

    await fake.kill()
    await policy._servers[0].lost.wait()
    fake._reload = held  # type: ignore[method-assign]
    await fake.start()
    await loading.wait()
    return go


def test_a_server_that_is_being_brought_back_lies_down_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            go = await coming_back(policy, fake)
            resting = asyncio.create_task(policy.rest())
            await asyncio.sleep(0.1)
            assert not resting.done()
            go.set()
            await resting
            assert fake.asleep
            await policy.wake(write_weights(tmp_path / "v1", -0.25), 1)
            check(await turn(policy), 1, version=1)

    run(test)


def test_a_folder_that_a_server_may_be_reading_stays(tmp_path: Path) -> None:
    """New weights come while a server that was started again loads those before them."""

    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            go = await coming_back(policy, fake)
            await policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1)
            go.set()
            check(await turn(policy), 1, version=1)
            await policy.update_weights(write_weights(tmp_path / "v2", -0.75), 2)
            check(await turn(policy), 1, version=2)
            assert [folder.name for folder in (tmp_path / "work").iterdir()] == ["v000002"]

    run(test)


def test_a_server_that_cannot_sleep_is_refused_at_once_and_a_cpu_server_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, settings=COLOCATED) as (policy, (fake,)):
            client = policy._servers[0].client
            assert await client.sleep_ability(5.0) == "frees"
            fake.ability = "cpu"
            assert await client.sleep_ability(5.0) == "cpu"
            fake.ability = "off"
            with pytest.raises(ServerRefused, match=r"engine\.mode=colocated"):
                await VllmPolicy.connect(
                    [fake.url], tmp_path / "v0", tmp_path / "other", lineage="other", settings=COLOCATED
                )

    run(test)


def test_the_clock_stands_still_while_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("agent.engines.vllm.rest.time.monotonic", lambda: now[0])
    clock = EngineClock()
    seen = []
    for step, action in ((5, clock.stop), (7, clock.stop), (20, clock.go), (1, clock.go), (4, lambda: None)):
        now[0] += step
        action()
        seen.append(clock.now())
    assert seen == [105.0, 105.0, 105.0, 106.0, 110.0]
