"""`sao train` as a user starts it, real sandboxes, a random policy: killed whole, killed by sides, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sao.paths import ROOT

from .training_sides import make_policy

pytestmark = pytest.mark.slow


class Training:
    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "killed"
        self.out = folder / "output"
        self.environment = {**os.environ, "SAO_RUNS": str(folder / "runs")}
        (folder / "policy").mkdir()
        self.command = [
            *(sys.executable, "-c", "from sao.cli import main; main()", "train", "--plain", "--run", "killed"),
            *("--model", str(make_policy(folder / "policy")), "--sandbox", "embedded", "--steps", "8", "--batch", "4"),
            *("--set", "train.value_episodes=0", "--set", "train.heldout_every=0", "--set", "train.checkpoint_every=3"),
            *("--set", "train.step.critic_only_steps=1", "--set", "rollout.concurrency=4"),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        out = self.out.open("ab")
        return subprocess.Popen(self.command, env=self.environment, cwd=ROOT, stdout=out, stderr=out)

    def consumed(self) -> int:
        try:
            return int(json.loads((self.run / "trainer_progress.json").read_text())["consumed"])
        except FileNotFoundError:
            return 0

    def sides(self, process: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
        found = {}
        for child in psutil.Process(process.pid).children():
            line = child.cmdline() if child.status() != psutil.STATUS_ZOMBIE else []
            found.update({side: child for side in ("trainer", "rollouts") if side in line})
        return found

    def until(self, condition: Callable[[], bool], seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.out.read_text()[-3000:]
            time.sleep(0.1)


@pytest.mark.timeout(900)
def test_killed_interrupted_and_continued(tmp_path: Path) -> None:
    training = Training(tmp_path)
    process = training.start()
    try:
        training.until(lambda: training.consumed() >= 8)
        sides = training.sides(process)
        process.kill()  # the parent: both sides must end by themselves
        process.wait()
        _, alive = psutil.wait_procs(list(sides.values()), timeout=10)  # milliseconds on a quiet machine
        assert alive == []

        process = training.start()
        for side in ("trainer", "rollouts"):
            training.until(lambda: len(training.sides(process)) == 2)
            before = training.sides(process)
            goal = training.consumed() + 4
            before[side].kill()
            training.until(
                lambda side=side, before=before: training.sides(process).get(side) not in (None, before[side])
            )
            training.until(lambda goal=goal: training.consumed() >= goal)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 1, "stopped before the plan's end"

        process = training.start()
        assert process.wait(400) == 0, training.out.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    assert json.loads((training.run / "summary.json").read_text())["faults"] == []
    assert training.consumed() == 32
    left = [p for p in psutil.process_iter(["cmdline"]) if str(training.run) in " ".join(p.info["cmdline"] or ())]
    assert left == []
