"""One real project as a task: more-itertools 10.8.0 with one real fix of its history reverted.

The release's source archive carries its own unittest tests. It is downloaded on this machine (never in a sandbox),
checked against a pinned SHA-256, and put into a git repository whose first commit has the fix and its test taken back
(`real_tasks/more-itertools-last.patch`, which names project and licence). Nothing of the package is kept in this tree.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from data.task import TaskError

PACKAGE, VERSION = "more-itertools", "10.8.0"
ARCHIVE = "more_itertools-10.8.0.tar.gz"
SHA256 = "f638ddf8a1a0d134181275fb5d58b086ead7c6a72429ad725c67503f13ba30bd"
PATCH = Path(__file__).parent / "real_tasks" / "more-itertools-last.patch"
INSTANCE_ID = "more-itertools-last"
TESTS = ("tests",)
TEST_COMMAND = (
    "python3 -m unittest -v tests.test_more.FirstTests tests.test_more.LastTests tests.test_more.NthOrLastTests "
    "tests.test_more.OneTests tests.test_more.TailTests"
)
PROBLEM = """\
`last()` fails on an object that iterates well but has switched reversing off.

A class may set `__reversed__ = None` to say that `reversed()` must not be used on its objects. `more_itertools.last()`
then raises `ValueError: last() was called on an empty iterable` (or returns the default) although the object has items:

    class OneItem:
        __reversed__ = None

        def __iter__(self):
            return iter([1])

    more_itertools.last(OneItem())   # expected: 1

The function is in more_itertools/more.py.
"""
DOWNLOAD_TIMEOUT_S = 300
_DATE = "2025-09-02T12:00:00+00:00"


class DownloadFailed(RuntimeError):
    """The package index did not give the archive; the text says what was run and what it said."""


@dataclass(frozen=True)
class RealRepository:
    """A repository on this machine: `base` has the bug, `PATCH` is its fix."""

    folder: Path
    base: str


def download(cache: Path) -> Path:
    """The source archive in `cache`, downloaded by pip unless it is there. Raises DownloadFailed."""
    archive = cache / ARCHIVE
    if not archive.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", ":all:", "--dest", str(cache), f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise DownloadFailed(f"pip did not download {PACKAGE} within {DOWNLOAD_TIMEOUT_S} s") from error
        if done.returncode != 0 or not archive.is_file():
            said = (done.stderr or done.stdout).strip()[-1500:]
            raise DownloadFailed(
                f"pip could not download {PACKAGE}=={VERSION} as source ({said}). Check the network and the package "
                f"index, or put {ARCHIVE} into {cache} yourself"
            )
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise DownloadFailed(f"{archive} has SHA-256 {found}, expected {SHA256}: remove the file and try again")
    return archive


def build_repository(archive: Path, folder: Path) -> RealRepository:
    """Unpack into `folder` (which must not exist) and commit the state without the fix. Same id on every machine."""
    if folder.exists():
        raise TaskError(f"{folder} exists already: give a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        root = ARCHIVE.removesuffix(".tar.gz")
        members = [member for member in tar.getmembers() if member.name.startswith(root + "/")]
        for member in members:
            member.name = member.name.removeprefix(root + "/")
        tar.extractall(folder, members=[member for member in members if member.name], filter="data")
    _git(folder, "init", "-q", "--initial-branch=main")
    _git(folder, "apply", "--reverse", str(PATCH.resolve()))
    _git(folder, "add", "--all", "--force", ".")
    _git(folder, "commit", "-q", "--no-verify", "-m", f"{PACKAGE} {VERSION} before the fix of last()")
    return RealRepository(folder, _git(folder, "rev-parse", "HEAD").strip())


def _git(folder: Path, *arguments: str) -> str:
    who = {"NAME": "tasks", "EMAIL": "tasks@example.invalid", "DATE": _DATE}
    env = {
        **os.environ,
        **{f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    command = ["git", "-c", "core.autocrlf=false", "-c", "core.hooksPath=" + os.devnull, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TaskError(f"{folder}: git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
