"""Functions in processes of their own: results, exceptions, limits, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from envs import aside as module
from envs.aside import INLINE, Aside, AsideFault, TooHard, aside


@pytest.fixture
def one() -> Iterator[Aside]:
    made = Aside(1, cpu_s=0.3, memory=256 << 20)
    yield made
    made.close()


def test_results_and_exceptions_come_back(one: Aside) -> None:
    async def go() -> None:
        assert await one.run(sorted, ([3, 1, 2],), {"reverse": True}) == [3, 2, 1]
        with pytest.raises(ZeroDivisionError):
            await one.run(divmod, (1, 0))
        assert await one.run(bytes, (40 << 20,)) == bytes(40 << 20)  # larger than any pipe

    asyncio.run(go())


def test_what_is_too_hard_is_ended_and_the_next_call_works(one: Aside) -> None:
    async def go() -> None:
        first = await one.run(os.getpid, ())
        with pytest.raises(TooHard, match=r"more than 0\.3 processor seconds"):
            await one.run(pow, (3, 10**9))  # one long multiplication, no byte code between
        with pytest.raises(TooHard, match="256 MiB"):
            await one.run(bytes, (1 << 30,))
        assert await one.run(os.getpid, ()) != first

    asyncio.run(go())


def test_a_death_is_a_fault(one: Aside) -> None:
    async def go() -> None:
        with pytest.raises(AsideFault, match="code 3"):
            await one.run(os._exit, (3,))
        process = one._idle.get()
        one._idle.put(process)
        pid = await one.run(os.getpid, ())
        os.kill(pid, signal.SIGKILL)  # while it is idle
        with pytest.raises(AsideFault, match="code -9"):
            await one.run(os.getpid, ())
        assert await one.run(os.getpid, ()) != pid

    asyncio.run(go())


def test_the_loop_goes_on(one: Aside) -> None:
    async def go() -> None:
        await one.run(os.getpid, ())
        work = asyncio.ensure_future(one.run(pow, (3, 10**9)))
        beats = 0
        while not work.done():
            await asyncio.sleep(0.01)
            beats += 1
        assert beats > 5  # some 30 in 0.3 s
        with pytest.raises(TooHard):
            work.result()

    asyncio.run(go())


def test_small_work_runs_here() -> None:
    async def go() -> None:
        assert await aside(INLINE, os.getpid) == os.getpid()
        assert await aside(INLINE + 1, os.getpid) != os.getpid()

    asyncio.run(go())
    module._shared().close()
    module._shared.cache_clear()


def test_processes_end_with_ours() -> None:
    """Also when ours is killed in the middle of a call."""
    script = (
        "import asyncio, os\nfrom envs.aside import Aside\nmade = Aside(1, cpu_s=0.5)\n"
        "print(asyncio.run(made.run(os.getpid, ())), flush=True)\n"
        "asyncio.run(made.run(pow, (3, 10**9)))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        time.sleep(0.2)
        ours.kill()
    end = time.monotonic() + 60
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
