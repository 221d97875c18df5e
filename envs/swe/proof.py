"""Hygiene of a repository archive that our own code made, proved from its bytes before they go into any sandbox.

Promises: an archive that passes holds nothing but a work tree, one branch `main` at base_commit, an index and loose
objects, every one of which is reachable from base_commit and has the id of its own bytes. What is not known to be
harmless is refused: this is a list of what may be there, not of what may not.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping

from data.tarball import unpack
from envs.environment import EnvironmentFault

_OBJECT = re.compile(r"\.git/objects/([0-9a-f]{2})/([0-9a-f]{38})")
_CONFIG = re.compile(r"\[core\]\n(\t[A-Za-z]+ = [A-Za-z0-9]+\n)+")
_FOLDERS = {".git", ".git/objects", ".git/objects/info", ".git/objects/pack", ".git/refs", ".git/refs/heads"}
_FOLDERS |= {".git/refs/tags"}


def prove(archive: bytes, base_commit: str, what: str) -> None:
    """Raises EnvironmentFault; `what` names the task."""
    try:
        files, objects = _read(archive, base_commit)
        seen, tree = {base_commit}, _body("commit", objects[base_commit])
        head, _, _ = tree.partition(b"\nauthor ")
        if not re.fullmatch(rb"tree [0-9a-f]{40}", head):
            raise ValueError("base_commit has a history")
        reached = dict(_walk(head[5:].decode(), objects, seen, b""))
        if extra := sorted(objects.keys() - seen):
            raise ValueError(f"objects that base_commit does not reach: {', '.join(extra[:5])}")
        if files != reached:
            raise ValueError("the work tree is not base_commit's")
    except (ValueError, KeyError, IndexError, zlib.error) as error:
        raise EnvironmentFault(f"{what}: hygiene of the repository made from its files: {error!r}") from error


def _walk(tree: str, objects: Mapping[str, bytes], seen: set[str], folder: bytes) -> Iterator[tuple[bytes, str]]:
    """Path and id of every file below `tree`; what was passed goes into `seen`."""
    seen.add(tree)
    body, at = _body("tree", objects[tree]), 0
    while at < len(body):
        end = body.index(b"\0", at)
        mode, _, name = body[at:end].partition(b" ")
        at = end + 21
        child = body[end + 1 : at].hex()
        if mode == b"40000":
            yield from _walk(child, objects, seen, folder + name + b"/")
        else:
            _body("blob", objects[child])
            seen.add(child)
            yield folder + name, child


def _body(kind: str, payload: bytes) -> bytes:
    head, _, body = payload.partition(b"\0")
    if head != f"{kind} {len(body)}".encode():
        raise ValueError(f"an object is no {kind}")
    return body


def _read(archive: bytes, base_commit: str) -> tuple[dict[bytes, str], dict[str, bytes]]:
    """Work tree as path -> id, and objects as id -> header and body."""
    files: dict[bytes, str] = {}
    objects: dict[str, bytes] = {}
    for member in unpack(archive):
        name, data = member.name.decode(), member.data
        if data is None and (name in _FOLDERS or _OBJECT.fullmatch(f"{name}/{'0' * 38}")):
            continue
        inside = name.split("/")[0].lower() == ".git"
        if data is None:
            if inside:
                raise ValueError(f"{name} is not expected")
        elif not inside:
            files[member.name] = _id(b"blob %d\0" % len(data) + data)
        elif match := _OBJECT.fullmatch(name):
            payload = zlib.decompress(data)
            if _id(payload) != match[1] + match[2]:
                raise ValueError(f"object {match[1]}{match[2]} is not what its name says")
            objects[match[1] + match[2]] = payload
        elif not _known(name, data, base_commit):
            raise ValueError(f"{name} is not expected")
    return files, objects


def _known(name: str, data: bytes, base_commit: str) -> bool:
    match name:
        case ".git/HEAD":
            return data == b"ref: refs/heads/main\n"
        case ".git/refs/heads/main":
            return data == f"{base_commit}\n".encode()
        case ".git/config":
            return _CONFIG.fullmatch(data.decode()) is not None
        case ".git/index":
            return True  # ids and names of the work tree at most; its objects are counted below
    return False


def _id(payload: bytes) -> str:
    return hashlib.sha1(payload, usedforsecurity=False).hexdigest()
