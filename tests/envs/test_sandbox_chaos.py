"""SIGKILL of the driver at random and at named moments while 16 sandboxes start, run, fork and stop: nothing is left.

On an engine of the test's own, so that "nothing" is exact: containers, volumes, images, processes, mounts, folders.
SAO_SANDBOX_KILLS sets the number of kills (default 6; `make chaos` takes 30, which covers every named moment).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envs.sandbox import SandboxDead, SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine
from envs.sandbox.pool import PoolSettings, SandboxPool
from sao.paths import ROOT
from tests.envs.chaos_driver import MOMENTS
from tests.envs.private_engine import VOLUME_IMAGE, PrivateEngine, private_engine
from tests.envs.sandbox_support import wait_for
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.docker, pytest.mark.slow]
KILLS = int(os.environ.get("SAO_SANDBOX_KILLS", "6"))


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with private_engine() as made:
        yield made


def plan() -> Iterator[tuple[str, int]]:
    """(moment, occurrence), for ever: the named moments in an order of their own, every fourth at random."""
    draw = random.Random(20260729)
    for name in itertools.cycle(draw.sample(MOMENTS, len(MOMENTS))):
        yield name, draw.randint(1, 5)
        if draw.random() < 0.25:
            yield "none", 1


def run_until_killed(engine: PrivateEngine, moment: str, count: int, draw: random.Random) -> str:
    words = [sys.executable, "-m", "tests.envs.chaos_driver", engine.address, moment, str(count)]
    driver = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert driver.stdout is not None
    try:
        if moment == "none":
            driver.stdout.readline()
            time.sleep(draw.uniform(0, 3))
            driver.send_signal(signal.SIGKILL)
        output = driver.communicate(timeout=PATIENCE_S)[0]
    finally:
        driver.kill()
        driver.wait()
    # A moment that does not come so often lets the driver end in peace; anything else is a fault of ours.
    assert driver.returncode == -signal.SIGKILL or "ended" in output, output[-3000:]
    return output


@pytest.mark.timeout(3600)
def test_killed_drivers_leave_nothing(engine: PrivateEngine) -> None:
    draw = random.Random(7)
    killed = reaped = 0
    for moment, count in itertools.islice(plan(), 3 * KILLS):
        output = run_until_killed(engine, moment, count, draw)
        killed += "ended" not in output
        reaped += sum(int(line.split()[1]) for line in output.splitlines() if line.startswith("reaped "))
        # Whatever was started ends by itself, without a reaper: what a kill may leave was never started.
        assert wait_for(lambda: not engine.grouped()), (moment, count, engine.left())
        if killed == KILLS:
            break
    last = run_until_killed(engine, "no such moment", 1, draw)
    assert "ended" in last
    clean = wait_for(lambda: not any(engine.left().values()))
    print(f"kills {killed}, things that the next start removed {reaped}, left: {engine.left()}")
    assert clean, engine.left()
    assert killed == KILLS, f"only {killed} of {KILLS} moments came"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_engine_restarts_in_the_middle(engine: PrivateEngine, how: signal.Signals) -> None:
    """What ran is SandboxDead, what is started meanwhile waits for the engine, nothing is left."""
    spec = SandboxSpec(image=VOLUME_IMAGE, deadline_s=300)

    async def main() -> dict[str, Any]:
        pool = SandboxPool(DockerBackend("restart", Engine(engine.address)), PoolSettings(ready=2, warm_after=1))
        boxes = await asyncio.gather(*(pool.start(spec) for _ in range(4)))
        running = [asyncio.create_task(box.exec("sleep 300", timeout_s=400)) for box in boxes[:2]]
        await asyncio.sleep(0.5)
        restart = asyncio.create_task(asyncio.to_thread(again))
        await asyncio.sleep(0.2)
        starts = [asyncio.create_task(pool.start(spec)) for _ in range(4)]
        ends = await asyncio.gather(*running, return_exceptions=True)
        await restart
        fresh = await asyncio.gather(*starts, return_exceptions=True)
        # A start that was served from the shelf just before its container died is dead now, and says so.
        answers = await asyncio.gather(*(box.exec("echo hi") for box in fresh if not isinstance(box, BaseException)),
                                       return_exceptions=True)  # fmt: skip
        later = await pool.start(spec)
        facts = {"ends": ends, "fresh": fresh, "answers": answers, "later": (await later.exec("echo hi")).output}
        await asyncio.gather(later.close(), *(box.close() for box in boxes))
        await pool.close()
        return facts

    def again() -> None:
        engine.end(how)
        engine.start()

    facts = asyncio.run(main())
    assert [type(end) for end in facts["ends"]] == [SandboxDead, SandboxDead]
    assert not [one for one in facts["fresh"] if isinstance(one, BaseException)]
    assert all(isinstance(one, SandboxDead) or one.output == b"hi\n" for one in facts["answers"])
    assert facts["later"] == b"hi\n"
    if how == signal.SIGKILL:
        # An engine killed between making a container's first process and writing that down forgets it, for ever: a shim
        # and at most runc's init, in which nothing of ours runs yet. No client can see or end them.
        engine.forget("containerd-shim", "containerd-shim-runc-v2", "runc:[1:CHILD]", "runc:[2:INIT]")
    assert wait_for(lambda: not any(engine.left().values())), json.dumps(engine.left())


IDLE_DRIVER = """
import asyncio, sys
from envs.sandbox import SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine
async def main():
    backend = DockerBackend("idle", Engine(sys.argv[1]))
    boxes = await asyncio.gather(*(backend.start(SandboxSpec(image=sys.argv[2], deadline_s=15)) for _ in range(6)))
    for box in boxes:
        await box.exec("setsid sh -c 'trap \\"\\" TERM HUP; while :; do sleep 1000; done' &")
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.timeout(600)
def test_without_driver_and_engine_the_deadline_holds(engine: PrivateEngine) -> None:
    """Both killed at once, the streams into the sandboxes still open: nobody is there to end anything, and at their
    deadline they end all the same. The engine's next start finds nothing to keep."""
    driver = subprocess.Popen(
        [sys.executable, "-c", IDLE_DRIVER, engine.address, VOLUME_IMAGE], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"up\n"
    assert len(engine.grouped()) >= 12
    engine.process.send_signal(signal.SIGSTOP)  # hears nothing of the driver's end
    driver.kill()
    driver.wait()
    engine.process.send_signal(signal.SIGKILL)
    try:
        assert wait_for(lambda: not engine.grouped()), engine.grouped()
    finally:
        engine.end(signal.SIGKILL)
        engine.start()
    assert "ended" in run_until_killed(engine, "no such moment", 1, random.Random(1))
    assert wait_for(lambda: not any(engine.left().values())), json.dumps(engine.left())
