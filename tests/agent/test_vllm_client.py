"""The vLLM engine against a server that behaves badly: what is believed, what is sampled again, what is raised.

No model samples here (tests/agent/test_vllm_real.py has the real server); every check is about faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.answers import read_generation
from agent.engines.vllm.faults import (
    AnswerFault,
    NoServer,
    ServedWeightsWrong,
    ServerFault,
    ServerRefused,
    WeightUpdateFailed,
)
from agent.engines.vllm.policy import ServingSettings, VllmPolicy
from agent.policy import EngineError, Generation, StopReason
from tests.agent.vllm_fake import SPOILT, FakeServer, logprob_of, token_at, write_weights

QUICK = ServingSettings(health_every_s=0.05, health_timeout_s=1.0, patience_s=5.0)


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, count: int = 1, settings: ServingSettings = QUICK
) -> AsyncIterator[tuple[VllmPolicy, list[FakeServer]]]:
    fakes = [FakeServer() for _ in range(count)]
    for fake in fakes:
        await fake.start()
    policy = await VllmPolicy.connect(
        [fake.url for fake in fakes],
        write_weights(tmp_path / "v0", -0.5),
        tmp_path / "work",
        lineage="line",
        settings=settings,
    )
    try:
        yield policy, fakes
    finally:
        await policy.close()
        for fake in fakes:
            await fake.kill()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


async def turn(policy: VllmPolicy, seed: int = 1, new: int = 12, episode: str = "e", **more: Any) -> Generation:
    return await policy.generate([5, 6, 7], max_new_tokens=new, stop_ids=(), seed=seed, episode_id=episode, **more)


def check(made: Generation, seed: int, new: int = 12, version: int = 0) -> None:
    """Exactly the server's tokens of this seed, each once, each with its own number."""
    assert list(made.tokens) == [token_at(seed, place) for place in range(new)]
    assert list(made.logprobs) == [logprob_of(token) for token in made.tokens]
    assert set(made.versions) == {version}
    assert made.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize("behaviour", ["500", "cut", "not_json", "unasked_abort", "short_tokens", *SPOILT])
def test_a_spoilt_answer_is_sampled_again_as_a_whole(tmp_path: Path, behaviour: str) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.behaviours.extend([behaviour, behaviour])
            check(await turn(policy), 1)
            assert len(fake.requests) == 3
            assert len({request["request_id"] for request in fake.requests}) == 3
            assert {request["sampling_params"]["seed"] for request in fake.requests} == {1}
            assert policy.stats.sampled_tokens == 12
            assert policy.stats.sampled_again == 2

    run(test)


def test_the_tries_end_with_the_fault(tmp_path: Path) -> None:
    async def test() -> None:
        settings = ServingSettings(health_every_s=0.05, tries=2)
        async with serving(tmp_path, settings=settings) as (policy, (fake,)):
            fake.behaviours.extend(["short_logprobs"] * 3)
            with pytest.raises(AnswerFault, match="11 log-probabilities for 12 tokens"):
                await turn(policy)
            assert len(fake.requests) == 2

    run(test)


def test_a_refusal_is_not_repeated(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.behaviours.append("400")
            with pytest.raises(ServerRefused, match="status 400"):
                await turn(policy)
            assert len(fake.requests) == 1
            with pytest.raises(ServerRefused, match="exceed the servers' context of 512"):
                await turn(policy, new=510)
            assert len(fake.requests) == 1

    run(test)


def test_one_bad_request_leaves_the_others_of_the_server_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.delay_s = 0.3
            fake.behaviours.extend(["cut", "ok", "500", "ok"])
            made = await asyncio.gather(*(turn(policy, seed, episode=f"e{seed}") for seed in range(4)))
            for seed, each in enumerate(made):
                check(each, seed)
            assert len(fake.requests) == 6

    run(test)


def test_a_killed_server_is_brought_to_the_present_weights_before_it_samples_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            await policy.update_weights(write_weights(tmp_path / "v7", -0.7), 7)
            fake.delay_s = 0.2
            running = [asyncio.create_task(turn(policy, seed, episode=f"e{seed}")) for seed in range(8)]
            await asyncio.sleep(0.1)
            await fake.kill()
            await asyncio.sleep(0.2)
            fake.requests.clear()
            await fake.start()
            for seed, task in enumerate(running):
                check(await task, seed, version=7)
            assert len(fake.requests) == 8
            assert fake.mark == -0.7

    run(test)


def test_a_server_that_hangs_loses_its_requests_to_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, count=2) as (policy, fakes):
            for fake in fakes:
                fake.behaviours.append("slow")
            task = asyncio.create_task(turn(policy))
            await asyncio.sleep(0.3)
            stuck = [fake for fake in fakes if fake.requests]
            other = next(fake for fake in fakes if fake is not stuck[0])
            other.behaviours.clear()
            stuck[0].sick = True
            check(await task, 1)
            assert len(other.requests) == 1

    run(test)


def test_no_server_is_a_fault_with_the_reason(tmp_path: Path) -> None:
    async def test() -> None:
        settings = ServingSettings(health_every_s=0.05, patience_s=0.3)
        async with serving(tmp_path, settings=settings) as (policy, (fake,)):
            await fake.kill()
            with pytest.raises(NoServer, match="no vLLM server for"):
                await turn(policy)

    run(test)


def test_an_episode_stays_where_its_cache_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, count=3) as (policy, fakes):
            for round_ in range(4):
                await asyncio.gather(
                    *(turn(policy, 10 * episode + round_, episode=f"e{episode}") for episode in range(9))
                )
            homes = [{request["sampling_params"]["seed"] // 10 for request in fake.requests} for fake in fakes]
            assert [len(home) for home in homes] == [3, 3, 3]
            assert set.union(*homes) == set(range(9))
            await policy.forget("e0")
            assert len(policy._router._home) == 8

    run(test)


def test_back_pressure(tmp_path: Path) -> None:
    async def test() -> None:
        settings = ServingSettings(in_flight=3, health_every_s=0.05)
        async with serving(tmp_path, settings=settings) as (policy, (fake,)):
            fake.delay_s = 0.02
            made = await asyncio.gather(*(turn(policy, seed, episode=f"e{seed}") for seed in range(20)))
            for seed, each in enumerate(made):
                check(each, seed)
            assert fake.most_live == 3
            assert policy._servers[0].load == 0

    run(test)


def test_abort_returns_what_was_sampled_and_frees_the_place(tmp_path: Path) -> None:
    async def test() -> None:
        settings = ServingSettings(in_flight=1, health_every_s=0.05)
        async with serving(tmp_path, settings=settings) as (policy, (fake,)):
            fake.behaviours.append("slow")
            running = asyncio.create_task(turn(policy, episode="a"))
            waiting = asyncio.create_task(turn(policy, episode="b"))
            await asyncio.sleep(0.1)
            await policy.abort("b")
            assert (await waiting) == Generation([], [], [], StopReason.ABORTED)  # it had no place yet
            await policy.abort("a")
            made = await running
            assert made.stop_reason is StopReason.ABORTED
            assert list(made.tokens) == [token_at(1, place) for place in range(6)]
            check(await turn(policy), 1)

    run(test)


def test_running_out_of_time_while_no_server_answers_is_the_servers_fault(tmp_path: Path) -> None:
    """An episode that is aborted by its clock then must not count as one whose model was slow."""

    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.delay_s = 5.0
            running = asyncio.create_task(turn(policy))
            await asyncio.sleep(0.1)
            await fake.kill()
            await asyncio.sleep(0.3)
            await policy.abort("e")
            with pytest.raises(ServerFault):
                await running

    run(test)


def test_cancelling_frees_the_place(tmp_path: Path) -> None:
    async def test() -> None:
        settings = ServingSettings(in_flight=1, health_every_s=0.05)
        async with serving(tmp_path, settings=settings) as (policy, (fake,)):
            fake.behaviours.append("slow")
            tasks = [asyncio.create_task(turn(policy, seed, episode=f"e{seed}")) for seed in range(5)]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert policy._servers[0].load == 0
            check(await turn(policy), 1)

    run(test)


def test_update_order_versions_and_growth(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            assert fake.calls == ["pause", "label", "reload", "reset", "resume"]
            await policy.update_weights(write_weights(tmp_path / "v3", -0.3), 3)
            check(await turn(policy), 1, version=3)
            assert policy.version == 3
            with pytest.raises(WeightUpdateFailed, match="versions only grow"):
                await policy.update_weights(tmp_path / "v3", 3)
            with pytest.raises(WeightUpdateFailed, match=r"no config\.json"):
                await policy.update_weights(tmp_path, 4)
            check(await turn(policy), 1, version=3)
            assert [folder.name for folder in (tmp_path / "work").iterdir()] == ["v000003"]

    run(test)


def test_a_server_that_keeps_old_weights_is_found_and_nothing_it_sampled_is_used(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.stale, fake.delay_s = True, 0.4
            running = asyncio.create_task(turn(policy))
            await asyncio.sleep(0.1)
            with pytest.raises(ServedWeightsWrong, match="does not serve what was published"):
                await policy.update_weights(write_weights(tmp_path / "v1", -0.501 - 1e-6), 1)
            with pytest.raises(EngineError):  # its answer carries the label that failed
                await running
            with pytest.raises(ServedWeightsWrong):
                await turn(policy)

    run(test)


def test_a_server_that_cannot_load_is_a_typed_fault_and_is_not_left_paused(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.fails_to_load = True
            with pytest.raises(WeightUpdateFailed, match="cannot load line/v1"):
                await policy.update_weights(write_weights(tmp_path / "v1", -0.1), 1)
            assert fake.calls[-1] == "resume"

    run(test)


@pytest.mark.parametrize("verb", ["/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache"])
def test_a_server_that_dies_inside_an_update_takes_it_when_it_is_back(tmp_path: Path, verb: str) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (policy, (fake,)):
            fake.delay_s = 0.2
            running = asyncio.create_task(turn(policy))
            await asyncio.sleep(0.05)
            fake.dies_at = verb
            await policy.update_weights(write_weights(tmp_path / "v1", -0.9), 1)
            assert policy.version == 1
            await fake._dying
            await fake.start()
            check(await running, 1, version=1)
            assert fake.mark == -0.9

    run(test)


def test_a_server_without_our_model_is_refused_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(ServerFault, match="ClientConnectorError"):
            await VllmPolicy.connect(
                ["http://127.0.0.1:9"], write_weights(tmp_path / "v0", 0.0), tmp_path / "work", lineage="line"
            )

    run(test)


def test_stop_tokens_decide_the_reason() -> None:
    def answer(tokens: list[int], reason: str) -> dict[str, Any]:
        content = [{"token_id": token, "logprob": -1.0} for token in tokens]
        spans = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": len(tokens)}]
        return {
            "choices": [
                {
                    "token_ids": tokens,
                    "finish_reason": reason,
                    "logprobs": {"content": content},
                    "weight_versions": spans,
                }
            ]
        }

    def read(tokens: list[int], reason: str) -> Generation:
        given = answer(tokens, reason)
        return read_generation(given, max_new_tokens=4, stop_ids={9}, versions={"a": 1, "b": 2})[0]

    assert read([1, 2, 9], "stop").versions == [1, 2, 2]
    assert read([1, 2, 3, 4], "length").stop_reason is StopReason.LENGTH
    for tokens, reason in (([1, 2], "stop"), ([9, 2], "stop"), ([1, 2], "length"), ([1, 9, 3, 4], "length")):
        with pytest.raises(AnswerFault):
            read(tokens, reason)
