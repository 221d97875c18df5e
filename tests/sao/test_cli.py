"""The `sao` command with the shipped demo policy: one real rollout, its replay, and every refusal as one paragraph."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.log import TrajectoryLog
from data.trajectory import Status
from data.wal import MAGIC
from sao.paths import DEMO_POLICY
from tests.sao.command import whole_sao as sao

SMALL = ("rollout", "--plain", "--sandbox", "embedded", "--episodes", "6", "--run", "small")


def test_rollout_then_replay_then_execute(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = sao(*SMALL, capsys=capsys)
    assert code == 0, said
    assert "6/6 episodes" in said
    assert "95 % Wilson, T = 1" in said
    done = list(TrajectoryLog(runs / "small" / "log").read())
    assert sorted(one.identity.draw for one in done) == list(range(6))
    assert {one.outcome.status for one in done} == {Status.GRADED}
    assert all(one.action_mask.any() and (one.versions[one.action_mask] == 0).all() for one in done)
    summary = json.loads((runs / "small" / "summary.json").read_text())
    assert (summary["episodes"], summary["infra_errors"]) == (6, 0)

    code, said = sao("replay", "small", "--plain", "--list", capsys=capsys)
    assert code == 0
    assert all(one.identity.episode_id in said for one in done)
    code, said = sao("replay", "small", "--plain", "--episode", "2", "--execute", capsys=capsys)
    assert code == 0, said
    assert '"name": "view"' in said
    assert "0 differ" in said
    assert "byte for byte the logged one" in said

    # Again: everything is there, nothing runs twice; then the plan grows.
    code, said = sao(*SMALL, capsys=capsys)
    assert code == 0
    assert len(list(TrajectoryLog(runs / "small" / "log").read())) == 6
    code, said = sao(*SMALL[:-3], "9", "--run", "small", capsys=capsys)
    assert code == 0, said
    assert sorted(one.identity.draw for one in TrajectoryLog(runs / "small" / "log").read()) == list(range(9))


@pytest.fixture
def refusals(tmp_path: Path) -> Path:
    """Bad inputs of a user, in one folder."""
    (tmp_path / "broken.toml").write_text("name = x")
    shutil.copytree(DEMO_POLICY, tmp_path / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*", "*.jinja"))
    shutil.copytree(DEMO_POLICY, tmp_path / "no-template", ignore=shutil.ignore_patterns("*.jinja"))
    (tmp_path / "no-id.jsonl").write_text('{"repo": "x"}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config", "broken.toml"], ["broken.toml is not valid TOML", "line 1"]),
        (["--set", "rollout.episode=3"], ["unknown key 'rollout.episode'", "did you mean 'episodes'"]),
        (["--model", "no-tokenizer"], ["no tokenizer.json"]),
        (["--model", "no-template"], ["no chat template"]),
        (["--model", "nowhere"], ["No model at nowhere"]),
        (["--tasks", "nowhere.jsonl"], ["no task set at", "nowhere.jsonl"]),
        (["--tasks", "no-id.jsonl"], ["row 1", "instance_id"]),
        (["--set", "agent.preset=mine"], ["no agent preset 'mine'", "Known: default, demo"]),
        (["--set", "tasks.split=test"], ["test", "train"]),
    ],
)
def test_bad_input_is_one_paragraph_before_anything_starts(
    runs: Path, refusals: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    code, said = sao(*SMALL, *words, capsys=capsys)
    assert code == 2
    assert said.startswith("error:")
    for part in expected:
        assert part in said
    assert "Traceback" not in said
    assert not runs.exists(), "nothing was started"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--critic", "nowhere"], "train.critic: nowhere holds no critic"),
        (["--model", "nowhere"], "No model at nowhere"),
        (["--control", "nothing"], "control 'nothing' is unknown"),
        (["--set", "agent.temperature=0.5"], "temperature 1 only"),
    ],
)
def test_bad_input_of_training_starts_nothing(
    runs: Path, refusals: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    code, said = sao("train", "--plain", *words, capsys=capsys)
    assert code == 2
    assert expected in said
    assert "Traceback" not in said
    assert not runs.exists(), "nothing was started"


def test_no_engine_although_asked_for(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{runs}/no.sock")
    code, said = sao("rollout", "--plain", "--sandbox", "docker", "--episodes", "2", capsys=capsys)
    assert code == 3
    assert "no Docker engine answers" in said
    assert "--sandbox embedded" in said
    assert "Traceback" not in said


def test_a_log_of_another_format_version_is_refused_and_kept(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sao(*SMALL, "--set", "rollout.seal_every=64", capsys=capsys)[0] == 0
    (runs / "small" / "summary.json").unlink()
    log = runs / "small" / "log"
    [wal] = [path for path in log.iterdir() if path.name.startswith("wal-")]
    raw = bytearray(wal.read_bytes())
    at = len(MAGIC)
    raw[at : at + 4] = struct.pack("<I", 77)
    wal.write_bytes(raw)
    before = wal.read_bytes()
    code, said = sao(*SMALL, capsys=capsys)
    assert code == 2
    assert "has format version 77" in said
    assert "Traceback" not in said
    assert wal.read_bytes() == before


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for some trajectories, not for all."""
    place = tmp_path / "small-disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAO_RUNS", str(full_disk))
    code, said = sao(*SMALL[:-3], "64", "--run", "small", capsys=capsys)
    assert code == 2
    assert "error:" in said
    assert "space" in said.lower()
    assert "Traceback" not in said
    kept = TrajectoryLog(full_disk / "small" / "log")
    draws = [one.identity.draw for one in kept.read(strict=True)]
    assert draws
    assert len(draws) == len(set(draws))


def test_own_rows_in_the_columns_of_a_known_set(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--tasks` alone means SWE-bench's columns; `--set tasks.name` says whose they are."""
    row = {"id": "a", "problem": "1 + 1?", "answer": "2"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    code, said = sao("tasks", "validate", "--tasks", "rows.jsonl", "--plain", capsys=capsys)
    assert code == 2
    assert "a SWE row needs" in said
    words = ("tasks", "validate", "--tasks", "rows.jsonl", "--set", "tasks.name=maths", "--plain")
    code, said = sao(*words, capsys=capsys)
    assert (code, "1 of 1 usable" in said) == (0, True), said
