"""Paths inside a sandbox, worked out without asking it.

Promises: the answer is absolute and normal; a relative path stays below the workdir and no path climbs above the root,
else PathRefused. Links are the sandbox's own affair: they are followed inside it, where they cannot lead out.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from collections import OrderedDict

from data.tarball import unpack
from envs.sandbox.contract import PathRefused


def inside(path: str, workdir: str) -> str:
    """`path` as an absolute path in the sandbox."""
    if not path or "\0" in path:
        raise PathRefused(f"{path!r} is not a path: it must not be empty or hold a NUL byte")
    depth = 0
    for part in path.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            root = "the sandbox's root" if path.startswith("/") else workdir
            raise PathRefused(f"{path!r} climbs out of {root}; give a path below it")
    # "//x" is its own thing to POSIX; one slash is meant
    return "/" + posixpath.normpath(posixpath.join(workdir, path)).lstrip("/")


_sound: OrderedDict[bytes, None] = OrderedDict()
"""Digests of archives that were checked: prepared repositories go into many sandboxes."""
_REMEMBERED = 4096


def check_archive(archive: bytes) -> None:
    """Refuse members that would land outside their directory, and what is not an uncompressed tar."""
    digest = hashlib.sha256(archive).digest()
    if digest not in _sound:
        _check(archive)
        _sound[digest] = None
        if len(_sound) > _REMEMBERED:
            _sound.popitem(last=False)


def _check(archive: bytes) -> None:
    try:
        plain = list(unpack(archive))
    except ValueError:
        return _check_any(archive)
    for member in plain:
        name = member.name.decode("utf-8", "surrogateescape")
        if name.startswith("/"):
            raise PathRefused(f"archive member {name!r} has an absolute path")
        inside(name, "/")


def _check_any(archive: bytes) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            links: set[str] = set()
            for member in tar:
                if member.name.startswith("/"):
                    raise PathRefused(f"archive member {member.name!r} has an absolute path")
                name = inside(member.name, "/")
                if member.isdev():
                    raise PathRefused(f"archive member {member.name!r} is a device or a fifo")
                if any(name.startswith(link + "/") for link in links):
                    raise PathRefused(f"archive member {member.name!r} goes through a link of the archive")
                if member.issym():
                    links.add(name)
                if member.islnk():
                    inside(member.linkname.lstrip("/"), "/")
    except tarfile.TarError as error:
        raise ValueError(f"not an uncompressed tar archive: {error}") from error
