"""Patches turned round: git itself is asked whether they undo what was done."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.patches import reverse_patch
from data.task import TaskError

LINES = st.lists(st.sampled_from(["a", "-- b", "++ c", "@@ -1 +1 @@", "", " d", "\\ e"]), max_size=8)
TEXT = st.tuples(LINES, st.booleans()).map(lambda made: "\n".join(made[0]) + "\n" * made[1])
TREES = st.dictionaries(st.sampled_from(["a.py", "folder/b.py", "c"]), TEXT, max_size=3)


def git(folder: Path, *words: str, text: bytes | None = None) -> bytes:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=env, input=text, check=True, stdout=subprocess.PIPE
    ).stdout


def write(folder: Path, tree: dict[str, str]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.unlink()
    for name, text in tree.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES, TREES, st.booleans())
def test_a_turned_patch_undoes_the_patch(old: dict[str, str], new: dict[str, str], executable: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        git(folder, "init", "-q")
        write(folder, old)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "--allow-empty", "-m", "old")
        write(folder, new)
        if executable and new:
            (folder / next(iter(new))).chmod(0o755)
        git(folder, "add", "-A")
        patch = git(folder, "diff", "--cached", "-M").decode()
        turned = reverse_patch(patch, "here")
        assert reverse_patch(turned, "there") == patch
        if patch:
            git(folder, "apply", "--index", "--whitespace=nowarn", "-", text=turned.encode())
        assert git(folder, "status", "--porcelain") == b""


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", "in the middle of a hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n?a\n", "starts with '?'"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "cannot be turned round: GIT binary patch"),
        ("diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "cannot be turned round: copy from x"),
    ],
)
def test_what_cannot_be_turned_is_refused(patch: str, words: str) -> None:
    with pytest.raises(TaskError, match="row 3: the patch") as caught:
        reverse_patch(patch, "row 3")
    assert words in str(caught.value)
