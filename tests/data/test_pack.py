"""Packing a user's own repository, with real git."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from data.pack import append_row, pack
from data.task import Task, TaskError

ENV = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{role}_{key}": "t@example.invalid" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
}


def git(repo: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repo, env=ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """v1 (bug) -> v2 (fix and test) -> v3 (later work), a dirty work tree, a tag, a hostile configuration."""
    folder = tmp_path / "my project"
    (folder / "tests").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "calc.py").write_bytes(b"def add(a, b):\r\n    return a - b\r\n")
    (folder / "tests/test_calc.py").write_text("import unittest\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "v1")
    git(folder, "tag", "v1")
    (folder / "calc.py").write_bytes(b"def add(a, b):\r\n    return a + b\r\n")
    (folder / "tests/test_calc.py").write_text("import unittest\n# new\n")
    (folder / "tests/data.bin").write_bytes(b"\0\1\xff")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "v2")
    git(folder, "tag", "v2")
    (folder / "later.txt").write_text("secret of the future")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "v3")
    (folder / "calc.py").write_text("dirty")
    git(folder, "config", "diff.external", "false")
    git(folder, "config", "color.ui", "always")
    git(folder, "config", "diff.noprefix", "true")
    return folder


def make(repo: Path, out: Path, **changes: Any) -> Task:
    arguments: dict[str, Any] = {
        "base": "v1",
        "fix": "v2",
        "tests": ["tests"],
        "test_command": "python3 -m unittest -v tests.test_calc",
        "problem_statement": "add() subtracts",
        "out": out,
    }
    return pack(repo, **{**arguments, **changes})


def test_row_and_bundle(repo: Path, tmp_path: Path) -> None:
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD")
    task = make(repo, tmp_path / "out" / "rows.jsonl")
    row = task.row
    assert task.kind == "swe"
    assert row["base_commit"] == git(repo, "rev-parse", "v1")
    assert row["log_parser"] == "unittest"
    assert row["eval_script"] == "cd /testbed && python3 -m unittest -v tests.test_calc 2>&1\n"
    assert "calc.py" in row["patch"]
    assert "tests/" not in row["patch"]
    assert "tests/test_calc.py" in row["test_patch"]
    assert "GIT binary patch" in row["test_patch"]
    assert row["patch"].startswith("diff --git a/calc.py b/calc.py\n")
    assert "\x1b" not in row["patch"]
    bundle = Path(task.base_dir) / row["bundle"]
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "main", str(bundle), str(clone))
    assert git(clone, "rev-list", "--all") == row["base_commit"]
    assert not (clone / "later.txt").exists()
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD")) == before
    # the two patches rebuild v2
    for column in ("patch", "test_patch"):
        subprocess.run(["git", "apply", "-"], cwd=clone, env=ENV, input=row[column].encode(), check=True)
    assert (clone / "calc.py").read_bytes() == b"def add(a, b):\r\n    return a + b\r\n"
    assert (clone / "tests/data.bin").read_bytes() == b"\0\1\xff"


def test_text_that_is_not_utf8_survives_json(repo: Path, tmp_path: Path) -> None:
    git(repo, "checkout", "-qf", "v1")
    (repo / "latin.py").write_bytes(b"# caf\xe9\n")
    (repo / "tests/test_latin.py").write_text("import latin\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "latin")
    row = json.loads(json.dumps(dict(make(repo, tmp_path / "rows.jsonl", fix="HEAD").row)))
    row["patch"].encode("utf-8")
    git(repo, "checkout", "-qf", "v1")
    subprocess.run(["git", "apply", "-"], cwd=repo, env=ENV, input=row["patch"].encode(), check=True)
    assert (repo / "latin.py").read_bytes() == b"# caf\xe9\n"


def test_fix_as_a_patch_file_gives_the_same_row(repo: Path, tmp_path: Path) -> None:
    patch = tmp_path / "fix.patch"
    plain = ["-c", "diff.external=", "-c", "color.ui=never", "-c", "diff.noprefix=false"]
    command = ["git", *plain, "diff", "--no-ext-diff", "--binary", "v1", "v2"]
    patch.write_bytes(subprocess.run(command, cwd=repo, env=ENV, capture_output=True, check=True).stdout)
    by_revision = make(repo, tmp_path / "a" / "rows.jsonl")
    by_file = make(repo, tmp_path / "b" / "rows.jsonl", fix=patch)
    assert {**by_file.row} == {**by_revision.row}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"base": "nope"}, "no revision 'nope'"),
        ({"fix": "nope"}, "neither a patch file nor a revision"),
        ({"fix": "v1"}, "changes nothing outside"),
        ({"tests": ["test"]}, "there is no 'test'"),
        ({"tests": ["tests", "nothing"]}, "there is no 'nothing'"),
        ({"tests": []}, "changes no tests"),
        ({"tests": ["tests/data.bin"]}, "holds tests .tests/test_calc.py"),
        ({"tests": ["../x"]}, "inside the repository"),
        ({"tests": ["calc.py", "tests"]}, "changes nothing outside"),
        ({"problem_statement": " "}, "all that the agent is told"),
        ({"test_command": "make test"}, "neither unittest nor pytest"),
        ({"test_command": "python3 -m unittest tests"}, "with -v"),
        ({"test_command": "pytest tests"}, "-rA"),
        ({"instance_id": "a/b"}, "instance id"),
    ],
)
def test_mistakes_are_named(repo: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        make(repo, tmp_path / "rows.jsonl", **changes)


def test_a_patch_file_that_does_not_apply(repo: Path, tmp_path: Path) -> None:
    patch = tmp_path / "fix.patch"
    patch.write_text("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(TaskError, match="does not apply to"):
        make(repo, tmp_path / "rows.jsonl", fix=patch)


def test_rows_are_appended_and_replaced_by_id(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    append_row(out, {"instance_id": "a", "n": 1})
    append_row(out, {"instance_id": "b", "text": "\udcff é"})
    append_row(out, {"instance_id": "a", "n": 2})
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [{"instance_id": "b", "text": "\udcff é"}, {"instance_id": "a", "n": 2}]
    out.write_text("{broken\n")
    with pytest.raises(TaskError, match="line 1"):
        append_row(out, {"instance_id": "c"})
    assert out.read_text() == "{broken\n"
