"""Every way into training, with a benchmark's row under every disguise: one trait of it is left, the rest is hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.contamination import EvaluationTask
from sao.paths import DEMO_POLICY
from tests.envs.swe_support import GOLD, TEST_PATCH
from tests.sao.command import runs, sao
from tests.sao.test_guard import real_row, rows, run_of
from trainer.sft import run_sft
from trainer.sft_cli import parse

__all__ = ["runs"]

Row = dict[str, Any]
_HIDDEN = {
    "instance_id": "mine-1", "repo": "me/mine", "base_commit": "0" * 40, "problem_statement": "total() subtracts.",
    "patch": GOLD, "test_patch": TEST_PATCH, "image": "mine/image:1", "hints_text": "",
}  # fmt: skip
DISGUISES: dict[str, Callable[[Row], Row]] = {
    "another id": lambda row: {"instance_id": "mine-1"},
    "the id alone": lambda row: {**_HIDDEN, "instance_id": row["instance_id"]},
    "a fork": lambda row: {
        **_HIDDEN,
        "repo": f"git@github.com:me/{row['repo'].split('/')[1]}-fork.git",
        "base_commit": row["base_commit"],
    },
    "HEAD": lambda row: {**_HIDDEN, "base_commit": "HEAD", "problem_statement": row["problem_statement"]},
    "a sentence before": lambda row: {
        **_HIDDEN,
        "problem_statement": f"Please mend this in the repository. {row['problem_statement']}\n\nThank you!",
    },
    "its image": lambda row: {**_HIDDEN, "image": "ghcr.io/" + row["image"]},
    "its fix": lambda row: {**_HIDDEN, "patch": row["patch"].replace("diff --git a/", "diff --git a/./")},
    "its tests": lambda row: {**_HIDDEN, "test_patch": row["test_patch"]},
}


def disguised(name: str) -> Row:
    row = real_row()
    return {**row, **DISGUISES[name](row)}


@pytest.mark.parametrize("name", DISGUISES)
def test_no_way_in(runs: Path, tmp_path: Path, name: str) -> None:
    path = rows(tmp_path, disguised(name))
    chosen = ("--set", "tasks.name=swe", "--set", f"tasks.path={path}", "--plain")
    for more in ([], ["--dry-run"], ["--control", "batch_leave_one_out"]):
        assert "swebench-verified" in sao("train", *chosen, *more, code=2)
    assert not runs.exists()
    run_of(runs, path)
    assert "swebench-verified" in sao("pretrain-value", "r", "--out", tmp_path / "critic", "--plain", code=2)
    for mode in ("exact", "offpolicy"):
        assert "swebench-verified" in sao("replay", "r", "--train", mode, "--plain", code=2)
    assert not (tmp_path / "critic").exists()


def test_among_own_tasks_the_one_row_is_found(runs: Path, tmp_path: Path) -> None:
    own = [{**real_row(), **_HIDDEN, "instance_id": f"mine-{number}"} for number in range(3)]
    path = rows(tmp_path, *own, {**disguised("its image"), "instance_id": "mine-3"})
    said = sao("train", "--set", "tasks.name=swe", "--set", f"tasks.path={path}", "--dry-run", "--plain", code=2)
    assert "1 of the tasks to train on" in said
    assert "mine-3" in said


@pytest.mark.parametrize("name", ["another id", "a sentence before"])
def test_conversations_that_hold_its_issue_are_refused(tmp_path: Path, name: str) -> None:
    text = disguised(name)["problem_statement"]
    chat = [{"role": "user", "content": text}, {"role": "assistant", "content": "Done."}]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": chat}) + "\n")
    folder = ["--model", str(DEMO_POLICY), "--out", str(tmp_path / "out")]
    config = parse([*folder, "--chats", str(file), "--max-length", "512"])
    with pytest.raises(EvaluationTask, match="swebench-verified"):
        run_sft(config)
