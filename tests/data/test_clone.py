"""Packing from every kind of clone, with real git: it works, or one line says which command completes the clone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from data.pack import pack
from data.task import Task, TaskError
from tests.data.test_pack import ENV, git, make, repo

__all__ = ["repo"]  # a fixture of the neighbour


def clone(source: Path, to: Path, *how: str) -> Path:
    git(source, "config", "uploadpack.allowFilter", "true")
    git(source, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(source.parent, "clone", "-q", *how, source.as_uri(), str(to))
    return to


def state(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("how", "revisions", "says"),
    [
        (["--depth=2"], {"base": "HEAD~1", "fix": "HEAD"}, "shallow clone, the history of [0-9a-f]{10} is cut"),
        (["--depth=1"], {"base": "HEAD~2", "fix": "HEAD~1"}, "no revision 'HEAD~2'. The clone is shallow"),
        (["--depth=1"], {"base": "HEAD", "fix": "v2"}, "neither a patch file nor a revision. The clone is shallow"),
        (["--filter=blob:none"], {}, "partial clone, [1-9] or more objects"),
        (["--filter=tree:0"], {}, "partial clone, [1-9] or more objects"),
    ],
)
def test_an_incomplete_clone_names_the_command_that_completes_it(
    repo: Path, tmp_path: Path, how: list[str], revisions: dict[str, str], says: str
) -> None:
    copy = clone(repo, tmp_path / "a copy", *how)
    before = state(copy)
    with pytest.raises(TaskError, match=says) as refused:
        make(copy, tmp_path / "out" / "rows.jsonl", **revisions)
    assert state(copy) == before  # nothing was fetched into the user's repository
    assert "\n" not in str(refused.value)
    said = re.search(r"git -C .* fetch [^,]*", str(refused.value))
    assert said is not None
    subprocess.run(shlex.split(said[0]), env=ENV, check=True, capture_output=True)
    assert "calc.py" in make(copy, tmp_path / "out" / "rows.jsonl").row["patch"]


def test_sha256(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--object-format=sha256")
    task = _two_commits(folder, tmp_path / "out" / "rows.jsonl")
    assert len(task.row["base_commit"]) == 64
    git(tmp_path, "clone", "-q", str(tmp_path / "out" / task.row["bundle"]), "again")
    assert git(tmp_path / "again", "rev-list", "--all") == task.row["base_commit"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user(repo: Path, tmp_path: Path) -> None:
    subprocess.run(["chown", "-R", "1234:1234", str(repo)], check=True)
    assert "calc.py" in make(repo, tmp_path / "rows.jsonl").row["patch"]


def test_bare_linked_and_from_inside(repo: Path, tmp_path: Path) -> None:
    expected = dict(make(repo, tmp_path / "rows.jsonl", instance_id="one").row)
    git(repo, "clone", "-q", "--bare", str(repo), str(tmp_path / "bare.git"))
    git(repo, "worktree", "add", "-q", str(tmp_path / "linked"), "v1")
    git(tmp_path, "clone", "-q", "--shared", str(repo), str(tmp_path / 'colon:quote"d'))
    for folder in (tmp_path / "bare.git", tmp_path / "linked", tmp_path / 'colon:quote"d', repo / "tests"):
        row = make(folder, tmp_path / "rows.jsonl", instance_id="one").row
        assert {**row, "repo": ""} == {**expected, "repo": ""}


def test_variables_of_a_hook_name_no_other_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nothing"))
    assert make(repo, tmp_path / "rows.jsonl").row["base_commit"] == _head(repo, "v1")


def test_a_patch_file_for_a_repository_whose_path_has_a_colon(repo: Path, tmp_path: Path) -> None:
    by_revision = make(repo, tmp_path / "a" / "rows.jsonl", instance_id="one").row
    patch = tmp_path / "fix.patch"
    patch.write_text(by_revision["patch"] + by_revision["test_patch"])
    moved = repo.rename(tmp_path / 'c:o"l\\on')
    by_file = make(moved, tmp_path / "b" / "rows.jsonl", instance_id="one", fix=patch).row
    assert {**by_file, "repo": ""} == {**by_revision, "repo": ""}


@pytest.mark.parametrize("setting", ["", "diff.submodule=log", "diff.ignoreSubmodules=all"])
def test_submodules(tmp_path: Path, setting: str) -> None:
    """One that stays as it is is no hindrance; a fix that moves one cannot be a task."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    if setting:
        git(folder, "config", *setting.split("="))
    _point(folder, "1")
    task = _two_commits(folder, tmp_path / "out" / "rows.jsonl")
    assert "vendor" not in task.row["patch"] + task.row["test_patch"]
    (folder / "calc.py").write_text("def add(a, b):\n    return b + a\n")
    (folder / "tests/test_calc.py").write_text("import unittest\n# newest\n")
    _point(folder, "2")
    git(folder, "add", "calc.py", "tests")
    git(folder, "commit", "-qm", "moves it")
    with pytest.raises(TaskError, match=r"moves the submodule vendor/dep: .* patch file without it"):
        make(folder, tmp_path / "out" / "rows.jsonl", base="HEAD~1", fix="HEAD")


def test_a_submodule_itself(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "super")
    allowed = ("-c", "protocol.file.allow=always")
    git(tmp_path / "super", *allowed, "submodule", "--quiet", "add", str(repo), "dep")
    assert make(tmp_path / "super" / "dep", tmp_path / "rows.jsonl").row["base_commit"] == _head(repo, "v1")


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is no git repository"):
        make(tmp_path, tmp_path / "rows.jsonl")
    with pytest.raises(TaskError, match="is no folder"):
        make(tmp_path / "nothing", tmp_path / "rows.jsonl")


def _head(folder: Path, revision: str) -> str:
    return git(folder, "rev-parse", revision)


def _point(folder: Path, digit: str) -> None:
    """A submodule entry at a made-up commit: packing never looks inside."""
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{digit * 40},vendor/dep")


def _two_commits(folder: Path, out: Path) -> Task:
    for sign, note in (("-", ""), ("+", "# new\n")):
        (folder / "tests").mkdir(exist_ok=True)
        (folder / "calc.py").write_text(f"def add(a, b):\n    return a {sign} b\n")
        (folder / "tests/test_calc.py").write_text(f"import unittest\n{note}")
        git(folder, "add", "calc.py", "tests")
        git(folder, "commit", "-qm", sign)
    return pack(
        folder,
        base="HEAD~1",
        fix="HEAD",
        tests=["tests"],
        test_command="python3 -m unittest -v tests.test_calc",
        problem_statement="add() subtracts",
        out=out,
    )
