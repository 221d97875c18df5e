"""The patch reader against git's own reading of git's own patches, and on patches that no git made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.swe.guard.changes import changed_files
from eval.swebench.execute import _APPLY, LADDER

NAMES = st.sampled_from(
    ["a.py", "b c.py", "d/e.py", "d/f g/h", 'q"uote', "tab\there", "ümlaut.py", "b/a b/x", "a/a.py", "--- a", "n\nl"]
)
LINES = st.sampled_from(["x", "--- a/z.py", "+++ b/z.py", "-- a", "diff --git a/z b/z", "@@ -1 +1 @@", "", "\r", "é"])
TEXTS = st.lists(LINES, max_size=6).flatmap(lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"]))
TREES = st.dictionaries(NAMES, TEXTS, max_size=5)


def git(folder: Path, *words: str) -> bytes:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *words]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True).stdout


def write(folder: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


@settings(max_examples=8, deadline=None)
@given(before=TREES, after=TREES, rename=st.booleans())
def test_as_git_reads_it(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, str], after: dict[str, str], rename: bool
) -> None:
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "-q")
    write(folder, before)
    git(folder, "add", "-A")
    base = git(folder, "write-tree").decode().strip()
    for name in before:
        (folder / name).unlink()
    write(folder, after)
    git(folder, "add", "-A")
    options = ["diff-index", "--cached", "-M30%" if rename else "--no-renames", base]
    patch = git(folder, *options, "-p", "--binary", "-U3")
    fields = git(folder, *options, "--name-status", "-z").decode().split("\0")[:-1]
    wanted: list[tuple[str | None, str | None]] = []
    at = 0
    while at < len(fields):
        how = fields[at][0]
        if how == "R":
            wanted.append((fields[at + 1], fields[at + 2]))
            at += 3
            continue
        name = fields[at + 1]
        wanted.append((None if how == "A" else name, None if how == "D" else name))
        at += 2
    found = changed_files(patch)
    assert sorted(map(str, ((each.old, each.new) for each in found))) == sorted(map(str, wanted)), patch.decode()
    if not rename:
        texts = {name: text.encode() for name, text in after.items()}
        for each in found:
            if each.old is None and each.new is not None:
                body = texts[each.new]
                assert each.added == body.removesuffix(b"\n").split(b"\n") if body else each.added == []


def test_plain_and_odd_patches() -> None:
    plain = b"some words\n--- a/x.py\t2020-01-01\n+++ b/x.py\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    (change,) = changed_files(plain)
    assert (change.old, change.new, change.added, change.removed) == ("x.py", "x.py", [b"b"], [b"a"])
    crlf = b"diff --git a/x.py b/x.py\r\nnew file mode 100644\r\n--- /dev/null\r\n+++ b/x.py\r\n@@ -0,0 +1 @@\r\n+b\r\n"
    (change,) = changed_files(crlf)
    assert (change.old, change.new, change.added) == (None, "x.py", [b"b\r"])
    link = b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+t\n"
    link += b"\\ No newline at end of file\n"
    (change,) = changed_files(link)
    assert (change.mode, change.created) == ("120000", True)
    mode = b"diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
    (change,) = changed_files(mode)
    assert (change.old, change.new, change.mode) == ("run", "run", "100755")
    assert changed_files(b"") == changed_files(b"no patch at all\n") == []


@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    changed_files(data)
    changed_files(b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n" + data)


def put_on(repository: Path, patch: bytes) -> int:
    """Exit code of the ladder's script on a repository of this machine."""
    work = repository.parent / "work"
    work.mkdir(exist_ok=True)
    (work / "patch.diff").write_bytes(patch)
    env = {**os.environ, "D": str(repository), "W": str(work), "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(["sh", "-c", _APPLY], env=env, capture_output=True, check=False).returncode


def test_the_ladder_on_an_images_own_changes(tmp_path: Path) -> None:
    """SWE-bench's images hold uncommitted changes, and agents' diffs carry them: the second rung takes such a patch."""
    repository = tmp_path / "repo"
    repository.mkdir()
    git(repository, "init", "-q")
    write(repository, {"tox.ini": "pytest {posargs}\n", "app.py": "a = 1\n", "new dir/x": "\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "x")
    changed = {"tox.ini": "pytest -rA {posargs}\n", "app.py": "a = 2\n"}
    write(repository, changed)
    patch = git(repository, "diff")
    git(repository, "checkout", "-q", "app.py")  # what the image holds: tox.ini is changed
    assert LADDER[put_on(repository, patch)] == "git apply --verbose --3way"
    assert {name: (repository / name).read_text() for name in changed} == changed
    assert LADDER[put_on(repository, patch)] == "git apply --verbose --3way"  # it is on already
    assert {name: (repository / name).read_text() for name in changed} == changed
    assert put_on(repository, patch.replace(b"a = 1", b"b = 1").replace(b"a = 2", b"c = 2")) == 21
