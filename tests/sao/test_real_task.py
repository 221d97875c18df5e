"""The demo policy on a real project, as a user runs it: to a limit or a verdict, never to an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.log import TrajectoryLog
from data.trajectory import Status


@pytest.mark.parametrize("backend", ["embedded", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_demo_policy_runs_on_a_real_project(real_rows: Path, backend: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sao", "rollout", "--plain", "--tasks", str(real_rows), "--episodes", "2"]
    ended = subprocess.run(
        [*command, "--sandbox", backend, "--run", "real"],
        env={**os.environ, "SAO_RUNS": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    played = list(TrajectoryLog(tmp_path / "real" / "log").read())
    assert [trajectory.outcome.status for trajectory in played] == [Status.GRADED] * 2
    assert all(trajectory.turns > 0 for trajectory in played)
