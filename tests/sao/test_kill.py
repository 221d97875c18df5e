"""SIGKILL of the driver while 16 episodes run: nothing finished is lost, nothing is torn, nothing is left.

SAO_KILLS sets the number of kills (default 2 for each backend; `make chaos` takes 10). Real policy, real sandboxes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from data.log import LogMissing, TrajectoryLog
from data.trajectory import Status
from envs.sandbox.owner import Found
from sao.paths import ROOT

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("SAO_KILLS", "2"))
STALL_S, LIMIT_S = 120.0, 1200.0


class Driver:
    """`sao rollout` as a user starts it, in a folder of its own."""

    def __init__(self, folder: Path, backend: str, episodes: int) -> None:
        self.folder, self.log = folder, folder / "runs" / "chaos" / "log"
        (folder / "tmp").mkdir()
        self.environment = {
            **os.environ,
            "SAO_RUNS": str(folder / "runs"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        self.command = [
            *(sys.executable, "-c", "from sao.cli import main; main()", "rollout", "--run", "chaos", "--plain"),
            *("--episodes", str(episodes), "--sandbox", backend, "--set", "rollout.concurrency=16"),
            *("--set", "rollout.seal_every=16"),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        out = (self.folder / "output").open("ab")
        return subprocess.Popen(self.command, env=self.environment, cwd=ROOT, stdout=out, stderr=out)

    def finished(self) -> list[str]:
        """Episode ids in the log, read as another process would; every record must be whole but a torn last one."""
        try:
            return self._ids()
        except LogMissing:  # nothing was appended yet
            return []

    def _ids(self) -> list[str]:
        return [one.identity.episode_id for one in TrajectoryLog(self.log).read(strict=True)]

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-3000:]


def wait_for(condition: Callable[[], bool], driver: Driver, process: subprocess.Popen[bytes]) -> None:
    """Fails when nothing goes on for STALL_S, not when it is slow: on a machine with many others at work the driver's
    imports alone have taken two minutes, which looked like a hang to a fixed limit."""
    life, alive_at, end = 0, time.monotonic(), time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() in (None, 0), driver.output()
        now, seen = time.monotonic(), signs_of_life(driver, process)
        if seen != life:
            life, alive_at = seen, now
        assert now - alive_at < STALL_S, f"nothing went on for {STALL_S:.0f} s: {driver.output()}"
        assert now < end, f"not there after {LIMIT_S:.0f} s: {driver.output()}"
        time.sleep(0.05)


def signs_of_life(driver: Driver, process: subprocess.Popen[bytes]) -> int:
    """Grows with every second of processor time of the driver and every byte of its run."""
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
        spent = psutil.Process(process.pid).cpu_times()
        files = [path for path in driver.folder.rglob("*") if path.is_file()]
        return int(spent.user + spent.system) + sum(path.stat().st_size for path in files)
    return -1


def has_finished(driver: Driver, count: int) -> bool:
    return len(driver.finished()) >= count


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def on_the_engine(run: str) -> list[Found]:
    """Containers, volumes and images of the run."""
    from envs.sandbox.docker_engine import connect
    from envs.sandbox.docker_survey import survey

    with connect() as engine:
        return [found for found in survey(engine.api()) if found.run == run]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["embedded", pytest.param("docker", marks=pytest.mark.docker)])
def test_killed_drivers_lose_nothing_and_leave_nothing(tmp_path: Path, backend: str) -> None:
    draw = random.Random(20260729)
    episodes = 16 * (KILLS + 2)
    driver = Driver(tmp_path, backend, episodes)
    known: list[str] = []
    left_behind: list[psutil.Process] = []
    for _ in range(KILLS):
        process = driver.start()
        children: list[psutil.Process] = []
        try:
            goal = len(known) + draw.randint(1, 8)
            wait_for(partial(has_finished, driver, goal), driver, process)
            time.sleep(draw.uniform(0, 0.5))
            before = driver.finished()
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        # A driver killed in the middle of a start may leave one waiting process, for the next start to end.
        left_behind += survivors(children)
        now = driver.finished()
        assert set(before) <= set(now), "a finished trajectory was lost"
        assert len(now) == len(set(now))
        known = now

    process = driver.start()
    wait_for(lambda: process.poll() is not None, driver, process)
    assert process.returncode == 0, driver.output()
    assert survivors(left_behind) == [], "processes outlive their driver and the next start"
    done = [one for one in TrajectoryLog(driver.log).read(strict=True)]
    assert set(known) <= {one.identity.episode_id for one in done}
    graded = Counter(one.identity.draw for one in done if one.outcome.status is Status.GRADED)
    assert graded == Counter(range(episodes)), "every draw is graded exactly once"
    assert [one for one in done if one.outcome.status is Status.INFRA_ERROR] == []
    left = [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("sao-")]
    assert left == [], "folders are left after the next start"
    if backend == "docker":
        assert on_the_engine("chaos") == []
