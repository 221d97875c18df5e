"""What the driver writes for git, read by git; and which patches it takes apart itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.gitobjects import object_id
from envs.swe.stage import displaced, git_folder, index_of, plain_new_files
from envs.swe.worktree import Content, Entry, Unreadable
from tests.envs.swe_support import TEST_PATCH


def git(folder: Path, *words: str, **env: str) -> str:
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"], **env}
    return subprocess.run(["git", *words], cwd=folder, env=plain, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_git_reads_the_folder_and_the_index(tmp_path: Path, form: str) -> None:
    repo, scratch = tmp_path / "r", tmp_path / "s"
    repo.mkdir()
    git(repo, "init", "-q", f"--object-format={form}")
    (repo / "old.txt").write_text("old\n")
    (repo / "gone.txt").write_text("gone\n")
    git(repo, "add", "-A")
    git(repo, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    commit = git(repo, "rev-parse", "HEAD").strip()
    base = {}
    for line in git(repo, "ls-tree", "-r", commit).splitlines():
        head, path = line.split("\t")
        base[path.encode()] = Entry(head.split()[0], head.split()[2])
    written = {
        b"old.txt": Content("100755", b"new\n"),
        b"a/" + b"deep/" * 40 + b"x": Content("100644", b"\0\xff"),
        'é \n"q"'.encode(): Content("120000", b"old.txt"),
    }
    for name, data in git_folder(str(repo), commit, written.values()).items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_bytes(data)
    (scratch / "index").write_bytes(index_of(base, written, frozenset({b"gone.txt"}), commit))
    env = {"GIT_DIR": str(scratch), "GIT_WORK_TREE": str(repo)}
    assert git(repo, "fsck", "--no-dangling", **env) == ""
    listed = git(repo, "ls-files", "-s", "-z", **env).split("\0")[:-1]
    assert listed == [
        f"{content.mode} {content.object_id(commit)} 0\t{path.decode()}" for path, content in sorted(written.items())
    ]
    git(repo, "checkout-index", "-f", "-a", **env)
    assert (repo / "old.txt").read_bytes() == b"new\n"
    assert (repo / "old.txt").stat().st_mode & 0o100
    assert (repo / 'é \n"q"').readlink() == Path("old.txt")
    changed = git(repo, "diff-index", "--cached", "--name-status", "-z", commit, **env)
    assert "D\0gone.txt\0" in changed


@pytest.mark.parametrize("path", [b"../x", b"a/../b", b".git/x", b"a/.GIT/hooks/y", b"/x", b"a//b", b"./x", b""])
def test_paths_git_cannot_hold_are_the_agents_failure(path: bytes) -> None:
    with pytest.raises(Unreadable, match="git cannot hold"):
        index_of({}, {path: Content("100644", b"")}, frozenset(), "1" * 40)


def test_displaced() -> None:
    base = dict.fromkeys([b"a", b"b/c", b"b/d/e", b"f"])
    written = {b"a/x": Content("100644", b""), b"b": Content("100644", b""), b"f": Content("100644", b"")}
    assert displaced(written, base) == {b"a", b"b/c", b"b/d/e"}


NEW = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1{1} @@\n{2}"


def test_a_plain_patch_is_what_git_makes_of_it(tmp_path: Path) -> None:
    patch = TEST_PATCH + NEW.format("a/b-c.txt", "", "+one\n\\ No newline at end of file\n")
    found = plain_new_files(patch.encode(), {})
    assert found is not None
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.decode(): content.data for path, content in found.items()} == files
    assert plain_new_files(b"", {}) == {}


@pytest.mark.parametrize(
    "patch",
    [
        NEW.format("x", ",2", "+one\n"),
        NEW.format("x", ",1", "+one\n+two\n"),
        NEW.format("x", "", "+one\n") + "garbage\n",
        NEW.format("x", "", "+one"),
        NEW.format("../x", "", "+one\n"),
        NEW.format(".git/x", "", "+one\n"),
        NEW.format("a/.Git/x", "", "+one\n"),
        NEW.format("known", "", "+one\n"),
        NEW.format("known/x", "", "+one\n"),
        NEW.format("x", "", "+one\n") + NEW.format("x/y", "", "+one\n"),
        NEW.format("x", "", "+one\n") + NEW.format("x", "", "+two\n"),
        NEW.format("x", "", "+one\n").replace("100644", "120000"),
        NEW.format("x", "", "+one\n").replace("new file mode", "old mode"),
        NEW.format("x", "", "+one\n").replace("+++ b/x", "+++ b/y"),
        'diff --git "a/\\303" "b/\\303"\nnew file mode 100644\n--- /dev/null\n+++ "b/\\303"\n@@ -0,0 +1 @@\n+x\n',
        "diff --git a/x b/x\nnew file mode 100644\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    ],
)
def test_every_other_patch_is_gits(patch: str) -> None:
    assert plain_new_files(patch.encode(), {b"known": Entry("100644", "1" * 40)}) is None


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), min_size=1, max_size=5), st.booleans())
def test_contents_come_out_as_they_went_in(lines: list[bytes], newline: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if newline else b"")
    if not data.strip(b"\n") or (not newline and not lines[-1]):
        return  # git writes these in other words
    body = b"".join(b"+" + line + b"\n" for line in lines) + (b"" if newline else b"\\ No newline at end of file\n")
    head = NEW.format("f", f",{len(lines)}", "").encode()
    found = plain_new_files(head + body, {})
    assert found == {b"f": Content("100644", data)}
    assert found[b"f"].object_id("1" * 40) == object_id("blob", data)
