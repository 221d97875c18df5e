"""The pure-Python repository against real git: ids, fsck, status, log, diff."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.gitobjects import GitObjectError, commit_id, object_id, repository_tar

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

# Sorting traps: git orders the folder "a" as "a/", after "a.py" and "a-b"; and a non-ASCII name and text.
FILES = {
    "shop/cart.py": "def total(price, tax):\n    return price + tax\n",
    "shop/__init__.py": "",
    "a/x.py": "x = 1\n",
    "a.py": "a = 1\n",
    "a-b": "dash\n",
    "a/deep/er/y.txt": "no newline at end",
    "été.md": "naïve\n",
}


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
        },
    )
    assert done.returncode == 0, f"git {args}: {done.stdout}{done.stderr}"
    return done.stdout


def unpack(folder: Path, archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def test_known_object_ids() -> None:
    assert object_id("blob", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert object_id("blob", b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert object_id("tree", b"") == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@needs_git
def test_real_git_agrees(tmp_path: Path) -> None:
    made = repository_tar(FILES)
    unpack(tmp_path, made.archive)
    assert git(tmp_path, "rev-parse", "HEAD").strip() == made.commit == commit_id(FILES)
    # Read-only: git must find it clean from the index as written, not from one that it refreshed first.
    assert git(tmp_path, "--no-optional-locks", "status", "--porcelain") == ""
    assert git(tmp_path, "diff", "--name-only") == ""
    assert git(tmp_path, "fsck", "--strict", "--full") == ""
    assert git(tmp_path, "branch", "--show-current").strip() == "main"
    assert git(tmp_path, "log", "--format=%an %at %s").strip() == "micro 1735689600 Start"
    assert set(git(tmp_path, "-c", "core.quotePath=false", "ls-files").split("\n")[:-1]) == set(FILES)


@needs_git
def test_commit_equals_the_one_git_makes(tmp_path: Path) -> None:
    made = repository_tar(FILES)
    unpack(tmp_path, made.archive)
    tree = git(tmp_path, "rev-parse", "HEAD^{tree}")
    shutil.rmtree(tmp_path / ".git")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    assert git(tmp_path, "write-tree") == tree


@needs_git
def test_edits_are_seen(tmp_path: Path) -> None:
    """Also an edit that keeps the size: the config trusts size and time, and an edit changes the time."""
    unpack(tmp_path, repository_tar(FILES).archive)
    path = tmp_path / "shop/cart.py"
    path.write_text(path.read_text().replace("+", "-"))
    (tmp_path / "new.py").write_text("n = 1\n")
    assert git(tmp_path, "status", "--porcelain").splitlines() == [" M shop/cart.py", "?? new.py"]
    assert "+    return price - tax" in git(tmp_path, "diff")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "Second")
    assert git(tmp_path, "rev-list", "--count", "HEAD").strip() == "2"
    assert git(tmp_path, "fsck", "--strict") == ""


@needs_git
def test_clean_without_the_times_of_the_tar(tmp_path: Path) -> None:
    unpack(tmp_path, repository_tar(FILES).archive)
    for path in tmp_path.rglob("*"):
        path.touch()
    assert git(tmp_path, "status", "--porcelain") == ""


def test_deterministic_and_order_free() -> None:
    made = repository_tar(FILES)
    assert made == repository_tar(dict(reversed(FILES.items())))
    assert made.commit == "9158b4914ca33015c7e048657941b05c8b482ba8"
    assert (
        hashlib.sha256(made.archive).hexdigest() == "87e4b76e27cdeeecd03737a69bde4d4acaea1e8053f8fc8f7676c740a21fdea9"
    )


def test_message_changes_the_commit_only() -> None:
    assert commit_id(FILES, message="Other\n") != commit_id(FILES)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", ".git/config", "x/.GIT/hooks", "a\0b", "a\\b"]
)
def test_bad_paths_are_named(path: str) -> None:
    with pytest.raises(GitObjectError) as error:
        repository_tar({path: "x"})
    assert repr(path) in str(error.value)


@pytest.mark.parametrize("files", [{"a": "1", "a/b": "2"}, {"a/b": "2", "a": "1"}])
def test_file_and_folder_of_one_name(files: dict[str, str]) -> None:
    with pytest.raises(GitObjectError, match="both a file and a folder"):
        repository_tar(files)


_name = st.text("abcXYZ019._-é", min_size=1, max_size=6).filter(lambda text: text.strip(".") and text.lower() != ".git")
_paths = st.lists(_name, min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(_paths, st.text(max_size=40).filter(lambda text: text.isprintable()), max_size=6))
def test_tar_holds_exactly_the_files(files: dict[str, str]) -> None:
    if any(other.startswith(path + "/") for path in files for other in files):
        with pytest.raises(GitObjectError):
            repository_tar(files)
        return
    made = repository_tar(files)
    assert made.commit == commit_id(files)
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as tar:
        names = tar.getnames()
        assert len(names) == len(set(names))
        held = {
            name: tar.extractfile(name).read().decode()
            for name in names
            if tar.getmember(name).isfile() and not name.startswith(".git/")
        }  # type: ignore[union-attr]
    assert held == files
