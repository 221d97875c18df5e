"""Images that are made here, without any registry: the base image with a task's repository and its test runner.

Promises: laid out as SWE-bench's images are (the repository at /testbed on a branch of its own and with nothing newer
than its base commit, `python`, /opt/miniconda3/bin/activate with a `conda` function); nothing runs while an image is
made; the same parts on the same base image are made once. Packages are pure Python, from wheels or as plain files.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data.installed import run_script
from data.tarball import Member, pack
from data.task import TaskError
from envs.images.names import MADE_HERE
from envs.sandbox.contract import ImageMissing, StartFailed
from envs.swe.row import BASE_IMAGE

TESTBED = "/testbed"
LIBRARY = "usr/lib/python3/dist-packages"
"""Where every Debian's python3 looks, whatever its minor version."""
_LAYOUT = 1
"""Version of what is put into an image; a new one makes every image anew."""


def make_task_image(
    api: Any,
    name: str,
    repository: Path,
    base_commit: str,
    *,
    wheels: Sequence[Path] = (),
    packages: Iterable[tuple[str, bytes]] = (),
    parent: str = BASE_IMAGE,
) -> str:
    """Image `name` on the engine of `api` (a docker.APIClient), unless it is there with these very parts. Blocking.

    `repository`: a git repository or bundle whose main is `base_commit`. `packages`: path below the library folder and
    content of each file. Raises ImageMissing, StartFailed, TaskError."""
    import docker

    files = [*packages, *(file for wheel in wheels for file in _wheel(wheel))]
    try:
        below = api.inspect_image(parent)["Id"]
    except docker.errors.ImageNotFound:
        raise ImageMissing(f"no image {parent} to build {name} on: {run_script('base-image')} makes sao-base") from None
    parts = hashlib.sha256(f"{_LAYOUT} {below} {base_commit}".encode())
    for path, data in files:
        parts.update(f"\n{path} {hashlib.sha256(data).hexdigest()}".encode())
    digest = parts.hexdigest()
    try:
        if (api.inspect_image(name)["Config"].get("Labels") or {}).get(MADE_HERE) == digest:
            return name
    except docker.errors.ImageNotFound:
        pass
    lines = f"FROM {parent}\nADD layer.tar /\nLABEL {MADE_HERE}={digest}\nWORKDIR {TESTBED}\n"
    with tempfile.TemporaryDirectory(prefix="sao-image-") as folder:
        layer = pack([*_layout(), *_library(files), *_repository(repository, base_commit, Path(folder) / "testbed")])
    context = pack([Member(b"Dockerfile", lines.encode()), Member(b"layer.tar", layer)])
    for event in api.build(fileobj=io.BytesIO(context), custom_context=True, tag=name, decode=True, rm=True):
        if "error" in event:
            raise StartFailed(f"image {name} could not be made: {str(event['error']).strip()}")
    return name


def _layout() -> Iterator[Member]:
    yield Member(b"opt/miniconda3/bin/activate", b"conda() { :; }\n", 0o755)
    yield Member(b"usr/local/bin/python", b'#!/bin/sh\nexec /usr/bin/python3 "$@"\n', 0o755)


def _library(files: Iterable[tuple[str, bytes]]) -> Iterator[Member]:
    for path, data in files:
        yield Member(f"{LIBRARY}/{path}".encode(), data)


def _wheel(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            first = name.split("/", 1)[0]
            if name.startswith("/") or ".." in name.split("/") or first.endswith(".data"):
                raise TaskError(f"{wheel.name} is no plain wheel: it holds {name}")
            if not name.endswith("/"):
                yield name, archive.read(name)


def _repository(source: Path, base_commit: str, folder: Path) -> Iterator[Member]:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (
        ("init", "-q", "--initial-branch=main", str(folder)),
        ("-C", str(folder), "fetch", "-q", "--no-tags", str(source.resolve()), "refs/heads/main"),
        ("-C", str(folder), "checkout", "-q", "-B", "main", base_commit),
    ):
        done = subprocess.run(["git", *words], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise TaskError(f"{source}: no repository at {base_commit} could be made of it: {done.stderr.strip()}")
    (folder / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    for path in sorted(folder.rglob("*")):
        name = f"{TESTBED[1:]}/{path.relative_to(folder)}".encode()
        if path.is_symlink():
            raise TaskError(
                f"{source}: {path.relative_to(folder)} is a link, which a locally made image does not carry"
            )
        yield Member(name, None if path.is_dir() else path.read_bytes(), path.stat().st_mode & 0o777)
