"""The warm pool and prepared states, in front of real sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sandbox import SandboxDead, SandboxSpec, StartFailed
from envs.sandbox import pool as pool_module
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.pool import PoolSettings, SandboxPool, _kind
from tests.envs.sandbox_support import make, spec

KINDS = ["embedded", pytest.param("docker", marks=pytest.mark.docker)]


class Counting:
    """A real backend that counts starts, and fails or waits when it is told to."""

    def __init__(self, kind: str) -> None:
        self.real = make(kind, "pool")
        self.started: list[Sandbox] = []
        self.started_for: dict[Sandbox, SandboxSpec] = {}
        """Starts do not end in the order in which they began."""
        self.specs: list[SandboxSpec] = []
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()
        start = self.real.start

        async def counted(spec: SandboxSpec) -> Sandbox:
            self.specs.append(spec)
            await self.gate.wait()
            if self.failures:
                self.failures -= 1
                raise StartFailed("told to fail")
            sandbox = await start(spec)
            self.started.append(sandbox)
            self.started_for[sandbox] = spec
            return sandbox

        self.real.start = counted  # type: ignore[method-assign]


def with_pool(kind: str, test: Callable[[SandboxPool, Counting], Awaitable[None]], **pool: Any) -> None:
    async def main() -> None:
        counting = Counting(kind)
        made = SandboxPool(counting.real, PoolSettings(**pool))
        try:
            await test(made, counting)
        finally:
            await made.close()
        assert not any(sandbox.alive for sandbox in counting.started), "the pool's end leaves sandboxes"

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come true within 20 s")


@pytest.mark.parametrize("kind", KINDS)
def test_a_ready_sandbox_is_what_a_start_would_have_made(kind: str) -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        wanted = spec(workdir="/testbed", env={"A": "1"}, labels={"task": "x"}, deadline_s=500, output_bytes=10)
        await pool.fill(dataclasses.replace(wanted, deadline_s=200, labels={}))
        began = len(counting.specs)
        assert began == 2
        box = await pool.start(dataclasses.replace(wanted, deadline_s=200))
        assert box in counting.started[:2], "it was not taken from the shelf"
        assert box.spec.labels == {"task": "x"}
        result = await box.exec('echo "$A"; pwd; yes | head -c 100')
        assert result.output.startswith(b"1\n")
        assert len(result.output) == 10, "the cap of the spec that was asked for holds"
        other = await pool.start(dataclasses.replace(wanted, deadline_s=200))
        assert other is not box
        await box.put("f", b"mine")
        assert (await other.exec("ls")).output == b""

    with_pool(kind, test, ready=2)


def test_only_what_is_asked_for_again_is_kept_ready() -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        for number in range(4):  # four kinds, once each
            await (await pool.start(spec(pids=100 + number))).close()
        await asyncio.sleep(0.3)
        assert len(counting.specs) == 4
        for _ in range(2):
            await (await pool.start(spec(pids=100))).close()
        await until(lambda: len(counting.started) == 6 + 2 - 0)
        assert [each.limits.pids for each in counting.specs[6:]] == [100, 100]

    with_pool("embedded", test, ready=2)


def test_a_ready_sandbox_that_died_or_ends_too_soon_is_not_handed_out() -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        await pool.fill(spec(deadline_s=30))
        dead = counting.started[0]
        dead._stream.close()  # type: ignore[attr-defined]
        await until(lambda: not dead.alive)
        box = await pool.start(spec(deadline_s=30))
        assert box is counting.started[1]
        # The shelf's were started for 30 s and the age they may reach: not enough for this one.
        late = await pool.start(spec(deadline_s=3000))
        assert late not in counting.started[:2]
        assert counting.specs[-1].deadline_s >= 3000

    with_pool("embedded", test, ready=2, max_age_s=100)


def test_the_deadline_is_the_askers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        await pool.fill(spec(deadline_s=1.0))
        box = await pool.start(spec(deadline_s=1.0))
        with pytest.raises(SandboxDead, match="deadline"):
            await box.exec("sleep 60", timeout_s=20)

    with_pool("embedded", test, ready=1)


def test_idle_kinds_lose_their_ready_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_TEND_S", 0.1)

    async def test(pool: SandboxPool, counting: Counting) -> None:
        await pool.fill(spec())
        await until(lambda: not any(box.alive for box in counting.started))
        await until(lambda: not pool._shelves)

    with_pool("embedded", test, ready=2, idle_s=0.5)


def test_old_ones_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_TEND_S", 0.1)

    async def test(pool: SandboxPool, counting: Counting) -> None:
        await pool.fill(spec())
        await until(lambda: len(counting.started) >= 2 and not counting.started[0].alive)
        assert (await (await pool.start(spec())).exec("echo hi")).output == b"hi\n"

    with_pool("embedded", test, ready=1, max_age_s=1.0)


def test_a_failed_start_reaches_one_who_waits_typed_and_the_shelf_rests(caplog: pytest.LogCaptureFixture) -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        counting.failures = 1
        ends = await asyncio.gather(*(pool.start(spec()) for _ in range(3)), return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        assert [type(end) for end in failed] in ([StartFailed], []), "one heard of it, or a start for the shelf failed"
        for end in ends:
            if isinstance(end, Sandbox):
                assert (await end.exec("echo hi")).output == b"hi\n"
        counting.failures = 1_000_000
        await until(lambda: not pool._starts)
        before = len(counting.specs)
        await pool.empty()
        for _ in range(3):
            with pytest.raises(StartFailed):
                await pool.start(spec())
        await asyncio.sleep(0.5)
        assert len(counting.specs) - before <= 3 + 2, "a shelf that cannot be filled is tried over and over"
        counting.failures = 0
        assert (await (await pool.start(spec())).exec("echo hi")).output == b"hi\n"

    with_pool("embedded", test, ready=2, warm_after=1)


def test_a_start_for_a_short_life_is_not_given_to_one_who_needs_a_long_one() -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        counting.gate.clear()
        short = asyncio.create_task(pool.start(spec(deadline_s=20)))
        await asyncio.sleep(0.05)
        long = asyncio.create_task(pool.start(spec(deadline_s=5000)))
        await asyncio.sleep(0.05)
        short.cancel()
        counting.gate.set()
        box = await long
        assert counting.started_for[box].deadline_s >= 5000
        with pytest.raises(asyncio.CancelledError):
            await short

    with_pool("embedded", test, ready=1, warm_after=1, max_age_s=10)


def test_who_stops_waiting_loses_nothing() -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        counting.gate.clear()
        waiting = [asyncio.create_task(pool.start(spec())) for _ in range(3)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        counting.gate.set()
        assert isinstance((await asyncio.gather(*waiting, return_exceptions=True))[0], asyncio.CancelledError)
        # what was started for the one who left is on the shelf, up to its size, or closed
        await until(lambda: not pool._starts)
        shelved = [ready.sandbox for shelf in pool._shelves.values() for ready in shelf.ready]
        taken = [task.result() for task in waiting[1:]]
        assert all(box.alive for box in [*shelved, *taken])
        await until(lambda: sum(box.alive for box in counting.started) == len(shelved) + len(taken))

    with_pool("embedded", test, ready=1, warm_after=1)


def test_a_closed_pool_refuses() -> None:
    async def test(pool: SandboxPool, counting: Counting) -> None:
        counting.gate.clear()
        waiting = asyncio.create_task(pool.start(spec()))
        await asyncio.sleep(0.05)
        await pool.close()
        with pytest.raises(SandboxDead, match="pool was closed"):
            await waiting
        with pytest.raises(SandboxDead, match="pool is closed"):
            await pool.start(spec())

    with_pool("embedded", test, ready=1, warm_after=1)


@settings(max_examples=200, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), max_size=8), ready=st.integers(0, 6)
)  # fmt: skip
def test_the_shelves_together_never_hold_more_than_they_may(asked: list[tuple[int, float]], ready: int) -> None:
    pool = SandboxPool(_Nothing(), PoolSettings(ready=ready, idle_s=50))  # type: ignore[abstract]
    for number, (times, at) in enumerate(asked):
        pool._shelves[number] = pool_module._Shelf(SandboxSpec(), asked=times, asked_at=at)
    targets = [pool._target(shelf, 100.0) for shelf in pool._shelves.values()]
    assert sum(targets) <= ready
    warm = [shelf for shelf in pool._shelves.values() if shelf.asked >= 3 and shelf.asked_at > 50]
    assert sum(targets) >= min(ready, len(warm))
    for shelf, target in zip(pool._shelves.values(), targets, strict=True):
        assert not target or shelf in warm


class _Nothing(SandboxBackend):
    name, run_id = "nothing", "nothing"


_Nothing.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def test_kinds_differ_by_everything_that_a_started_sandbox_cannot_be_given() -> None:
    base = spec(env={"A": "1"})
    same = [dict(labels={"a": "b"}), dict(deadline_s=5.0), dict(env={"A": "1"})]
    assert {_kind(dataclasses.replace(base, **change)) for change in same} == {_kind(base)}  # type: ignore[arg-type]
    assert _kind(spec(env={"A": "1"}, output_bytes=5)) == _kind(base)
    other = [dict(image="x"), dict(state="s"), dict(workdir="/w"), dict(env={"A": "2"})]
    kinds = {_kind(dataclasses.replace(base, **change)) for change in other}  # type: ignore[arg-type]
    kinds |= {_kind(spec(env={"A": "1"}, **{name: 77})) for name in ("memory_bytes", "cpus", "pids", "nofile")}
    assert len(kinds) == 8
    assert _kind(base) not in kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_has_the_kept_files_and_nothing_else(kind: str) -> None:
    async def main() -> None:
        backend = make(kind, "fork")
        try:
            async with await backend.start(spec()) as box:
                await box.exec("mkdir -p d && ln -s nowhere d/link && printf x >'d/odd name' && chmod 741 'd/odd name'")
                state = await backend.keep_state(box)
                await box.exec("rm -rf d; touch later")
            forks = await asyncio.gather(*(backend.start(spec(state=state)) for _ in range(2)))
            looked = "readlink d/link; stat -c %a 'd/odd name'; cat 'd/odd name'; ls"
            for fork in forks:
                assert (await fork.exec(looked)).output == b"nowhere\n741\nxd\n"
            await forks[0].exec("touch d/mine")
            assert (await forks[1].exec("ls d")).output == b"link\nodd name\n"
            await asyncio.gather(*(fork.close() for fork in forks))
            await backend.drop_state(state)
            with pytest.raises(StartFailed):
                await backend.start(spec(state=state))
        finally:
            await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_prepared_once(kind: str) -> None:
    prepared = 0

    async def prepare(box: Sandbox) -> str:
        nonlocal prepared
        prepared += 1
        await box.put("made", b"%d" % prepared)
        return f"value {prepared}"

    async def main() -> None:
        backend = make(kind, "states")
        try:
            started = await asyncio.gather(*(backend.states.start("k", spec(), prepare) for _ in range(3)))
            assert [value for _, value in started] == ["value 1"] * 3
            for box, _ in started:
                assert await box.get("made") == b"1"
                await box.close()
            box, value = await backend.states.start("other", spec(), prepare)
            assert (value, await box.get("made")) == ("value 2", b"2")
            await box.close()

            async def breaks(box: Sandbox) -> str:
                raise OSError("the preparation breaks")

            with pytest.raises(OSError, match="breaks"):
                await backend.states.start("broken", spec(), breaks)
            box, value = await backend.states.start("broken", spec(), prepare)
            assert value == "value 3"
            await box.close()
            # An image clean-up took the state away: it is made again.
            for state, _ in list(backend.states._kept.values()):
                await backend.drop_state(state)
            box, value = await backend.states.start("k", spec(), prepare)
            assert value == "value 4"
            await box.close()
        finally:
            await backend.close()

    asyncio.run(main())
