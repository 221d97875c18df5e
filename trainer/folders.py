"""Folders that are there whole or not at all: written aside, flushed to the disk, named last, verified by hash.

Promises: a reader never sees a folder under its final name before every byte of it is durable; a folder is written
once (an existing name is an error); `verify` finds a changed, missing or truncated file; left-overs of killed writers
are known by their names and `sweep` removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data.crashpoints import crash_point
from data.locks import hold
from data.reading import InputError, read_object

MANIFEST = "manifest.json"
_ASIDE = ".partial-"
_DOOMED = ".removed-"


class FolderError(RuntimeError):
    """A folder is incomplete, changed or in the way; the text says which file and what to do."""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(parts: Iterable[bytes]) -> str:
    """sha256 over the parts in their order: what manifests call their data."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(target: Path, manifest: Mapping[str, Any], points: str) -> Iterator[Path]:
    """Yields a folder to write into; on leaving, adds the manifest (with the files' hashes) and names it `target`.

    `points` prefixes the crash points on the way. An exception inside leaves nothing under the final name."""
    if target.exists():
        raise FolderError(f"{target} exists: such a folder is written once. Move it away, or use another run")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.parent / f"{_ASIDE}{target.name}-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        crash_point(f"{points}.middle")
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        listed = {
            str(path.relative_to(aside)): {"sha256": sha256(path), "bytes": path.stat().st_size} for path in files
        }
        text = json.dumps({**manifest, "files": listed}, indent=1, sort_keys=True, allow_nan=False) + "\n"
        (aside / MANIFEST).write_text(text, encoding="utf-8")
        for path in (*files, aside / MANIFEST, *(folder for folder in aside.rglob("*") if folder.is_dir()), aside):
            fsync_path(path)
        crash_point(f"{points}.before_rename")
        os.rename(aside, target)
        fsync_path(target.parent)
        crash_point(f"{points}.after_rename")
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest, its `format` being `kind`. Raises FolderError."""
    path = folder / MANIFEST
    try:
        manifest = read_object(path)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise FolderError(
                f"{folder} holds no {MANIFEST}: it is no {kind} folder, or was removed meanwhile"
            ) from None
        raise FolderError(f"{error}: remove {folder}, the one before it is used then") from None
    if manifest.get("format") != kind:
        raise FolderError(f"{path} has format {manifest.get('format')!r}, this program reads {kind!r}")
    return manifest


def verify(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest, after checking every listed file's size and hash. Raises FolderError naming the first bad one."""
    manifest = read_manifest(folder, kind)
    for name, facts in manifest["files"].items():
        path = folder / name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise FolderError(f"{path} is missing: {folder} was changed after it was written; remove it") from None
        if size != facts["bytes"] or sha256(path) != facts["sha256"]:
            raise FolderError(f"{path} is not what was written ({size} bytes, {facts['bytes']} then); remove {folder}")
    return manifest


def remove(folder: Path) -> None:
    """Out of sight at once, then gone: no reader finds half a folder."""
    doomed = folder.parent / f"{_DOOMED}{folder.name}-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds `folder` (made where it is not there) for this process; the kernel lets go of it when that dies. Raises
    FolderError where another has it."""
    lock = hold(folder)
    if lock is None:
        raise FolderError(f"another process writes to {folder}: wait for it or end it, or name another")
    with lock:
        yield


def sweep(parent: Path) -> None:
    """Remove what killed writers left. Only for the folder's one writer."""
    for pattern in (f"{_ASIDE}*", f"{_DOOMED}*"):
        for path in parent.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
