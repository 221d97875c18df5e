"""Real projects as tasks: releases whose source archives carry their tests, with one real fix taken back.

The table is `real_tasks/tasks.toml`. Archives are downloaded on this machine (never in a sandbox), checked against
pinned SHA-256s, and put into a git repository: one commit without the fix (the same id on every machine), one with it.
The fix is what named files differ by in the project's next release, or a small patch that names project and licence.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from data.task import TaskError

_FOLDER = Path(__file__).parent / "real_tasks"
DOWNLOAD_TIMEOUT_S = 300


class DownloadFailed(RuntimeError):
    """The package index did not give what was asked for; the text says what was run and what it said."""


@dataclass(frozen=True)
class Release:
    version: str
    archive: str
    sha256: str

    @property
    def root(self) -> str:
        """The folder in the archive that holds everything."""
        return self.archive.removesuffix(".tar.gz")


@dataclass(frozen=True)
class RealTask:
    instance_id: str
    repo: str
    licence: str
    package: str
    what: str
    """What the fix is of, in words."""
    date: str
    runner: str
    requirements: tuple[str, ...]
    """What the test runner needs beside python3: pure Python, from the package index."""
    tests: tuple[str, ...]
    test_command: str
    problem: str
    base: Release
    later: Release | None
    files: tuple[str, ...]
    """The fix: what these differ by in `later`."""
    reverse: Path | None
    """Or this patch, which `base` has already."""


@dataclass(frozen=True)
class RealRepository:
    """A repository on this machine: `base`, which is main, has the bug; `fix` is the commit after it."""

    folder: Path
    base: str
    fix: str


@cache
def real_tasks() -> Mapping[str, RealTask]:
    table = tomllib.loads((_FOLDER / "tasks.toml").read_text(encoding="utf-8"))
    tasks = (_task(dict(entry), table["runners"]) for entry in table["task"])
    return {task.instance_id: task for task in tasks}


def choose(names: Sequence[str]) -> list[RealTask]:
    """All of them when none is named. Raises TaskError."""
    known = real_tasks()
    if unknown := [name for name in names if name not in known]:
        raise TaskError(f"no real task {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names or known]


def _task(entry: dict[str, Any], runners: Mapping[str, Sequence[str]]) -> RealTask:
    later, reverse = entry.pop("later", None), entry.pop("reverse", None)
    return RealTask(
        instance_id=entry.pop("id"),
        base=Release(**entry.pop("base")),
        later=Release(**later) if later else None,
        files=tuple(entry.pop("files", ())),
        reverse=_FOLDER / reverse if reverse else None,
        requirements=tuple(runners[entry["runner"]]),
        tests=tuple(entry.pop("tests")),
        problem=entry.pop("problem").lstrip("\n"),
        **entry,
    )


def download(package: str, release: Release, folder: Path) -> Path:
    """The source archive in `folder`, downloaded by pip unless it is there. Raises DownloadFailed."""
    archive = folder / release.archive
    if not archive.is_file():
        what = f"{package}=={release.version}"
        pip_download(folder, "--no-deps", "--no-binary", package, what)
        if not archive.is_file():
            raise DownloadFailed(f"pip downloaded {what}, but no {release.archive}: put it into {folder} yourself")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != release.sha256:
        raise DownloadFailed(f"{archive} has SHA-256 {found}, expected {release.sha256}: remove the file and try again")
    return archive


def download_wheels(requirements: Sequence[str], folder: Path) -> list[Path]:
    """The requirements and what they need, as wheels, kept in a folder of their own below `folder`.

    Raises DownloadFailed."""
    if not requirements:
        return []
    kept = folder / ("wheels-" + "-".join(requirements).replace("==", "-"))
    if not kept.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            pip_download(Path(work), "--only-binary", ":all:", *requirements)
            if other := [path.name for path in Path(work).iterdir() if not path.name.endswith("-none-any.whl")]:
                raise DownloadFailed(f"{', '.join(requirements)} needs more than pure Python: {', '.join(other)}")
            shutil.copytree(work, kept.with_suffix(f".{os.getpid()}"))
        try:
            kept.with_suffix(f".{os.getpid()}").rename(kept)
        except OSError:  # another process was quicker
            shutil.rmtree(kept.with_suffix(f".{os.getpid()}"))
    return sorted(kept.glob("*.whl"))


def pip_download(folder: Path, *arguments: str) -> None:
    """What pip's configured index has. Raises DownloadFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    what = " ".join(arguments)
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"pip download {what} did not end within {DOWNLOAD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-1500:]
        raise DownloadFailed(
            f"pip download {what} failed ({said}). Check the network and the package index, or put the file into "
            f"{folder} yourself"
        )


def build_repository(task: RealTask, archives: Path, folder: Path) -> RealRepository:
    """Unpack into `folder` (which must not exist) and commit the states without and with the fix.

    The archives are downloaded into `archives` unless they are there. Raises DownloadFailed, TaskError."""
    if folder.exists():
        raise TaskError(f"{folder} exists already: give a new folder")
    base = download(task.package, task.base, archives)
    later = download(task.package, task.later, archives) if task.later else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    _unpack(base, task.base.root, folder)
    _git(task, folder, "init", "-q", "--initial-branch=main")
    if task.reverse is not None:
        _git(task, folder, "apply", "--reverse", str(task.reverse.resolve()))
    without = _commit(task, folder, f"{task.package} {task.base.version} before the fix of {task.what}")
    _git(task, folder, "checkout", "-q", "-b", "fix")
    if task.reverse is not None:
        _git(task, folder, "apply", str(task.reverse.resolve()))
    if task.later is not None and later is not None:
        _unpack(later, task.later.root, folder, task.files)
    return RealRepository(folder, without, _commit(task, folder, f"The fix of {task.what}"))


def _unpack(archive: Path, root: str, folder: Path, only: Sequence[str] = ()) -> None:
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if member.name.startswith(root + "/")]
        for member in members:
            member.name = member.name.removeprefix(root + "/")
        wanted = [member for member in members if member.name and (not only or member.name in only)]
        if missing := sorted(set(only) - {member.name for member in wanted}):
            raise TaskError(f"{archive.name} has no {', '.join(missing)}")
        tar.extractall(folder, members=wanted, filter="data")


def _commit(task: RealTask, folder: Path, message: str) -> str:
    _git(task, folder, "add", "--all", "--force", ".")
    _git(task, folder, "commit", "-q", "--no-verify", "-m", message)
    return _git(task, folder, "rev-parse", "HEAD").strip()


def _git(task: RealTask, folder: Path, *arguments: str) -> str:
    who = {"NAME": "tasks", "EMAIL": "tasks@example.invalid", "DATE": task.date}
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
