"""SIGKILL of the driver while 16 episodes run: nothing finished is lost, nothing is torn, nothing is left.

SAO_KILLS sets the number of kills (default 2 for each backend; `make chaos` takes 10). Real policy, real sandboxes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from data.log import LogMissing, TrajectoryLog
from data.trajectory import Status
from sao.paths import ROOT

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("SAO_KILLS", "2"))


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


def wait_for(condition, seconds: float, driver: Driver, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() in (None, 0), driver.output()
        assert time.monotonic() < end, driver.output()
        time.sleep(0.05)


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def containers(run: str) -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=sao.run={run}"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


@pytest.mark.timeout(1200)
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
            wait_for(lambda goal=goal: len(driver.finished()) >= goal, 180, driver, process)
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
    assert process.wait(timeout=600) == 0, driver.output()
    assert survivors(left_behind) == [], "processes outlive their driver and the next start"
    done = [one for one in TrajectoryLog(driver.log).read(strict=True)]
    assert set(known) <= {one.identity.episode_id for one in done}
    graded = Counter(one.identity.draw for one in done if one.outcome.status is Status.GRADED)
    assert graded == Counter(range(episodes)), "every draw is graded exactly once"
    assert [one for one in done if one.outcome.status is Status.INFRA_ERROR] == []
    left = [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("sao-")]
    assert left == [], "folders are left after the next start"
    if backend == "docker":
        assert containers("chaos") == []
