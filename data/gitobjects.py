"""A git repository made in pure Python: work tree plus `.git` with one commit, as a tar.

Promises:
* ids are git's own (blob, tree, commit, SHA-1); the same files always give the same commit id and the same archive;
* the unpacked folder is a clean repository on branch `main`: `git fsck`, `git status`, `git log`, `git diff` work;
* no git is run, nothing touches the disk.

The index records size and time of every file and the repository's config tells git to trust these two alone
(`core.checkStat minimal`), so a first `git status` need not read the files again when the tar's times were kept; where
they were not kept, git reads the contents and still finds them clean.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from data.tarball import Member, pack

AUTHOR = "micro <micro@example.invalid>"
EPOCH = 1735689600
"""2025-01-01T00:00:00Z: author, committer and file time of every repository made here."""
MESSAGE = "Start\n"

_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = false
\tbare = false
\tlogallrefupdates = true
\ttrustctime = false
\tcheckStat = minimal
"""
_FILE_MODE, _DIRECTORY_MODE = 0o100644, 0o40000


class GitObjectError(ValueError):
    """The files cannot be put into a git repository; the text names the path."""


@dataclass(frozen=True)
class RepositoryTar:
    """`archive`: uncompressed tar of work tree and `.git`; `commit`: hex id of its one commit."""

    archive: bytes
    commit: str


@dataclass(frozen=True)
class _Objects:
    commit: str
    blobs: Mapping[str, str]
    """Path -> hex id."""
    payloads: Mapping[str, bytes]
    """Hex id -> header and body, as hashed; empty unless asked for."""


def object_id(kind: str, body: bytes) -> str:
    """Hex id of a git object, e.g. ``object_id("blob", b"")`` is ``e69de29bb2d1d6434b8b29ae775ad8c2e48c5391``."""
    return hashlib.sha1(_payload(kind, body), usedforsecurity=False).hexdigest()


def commit_id(files: Mapping[str, str], *, message: str = MESSAGE) -> str:
    """Hex id of the commit that `repository_tar` makes of the same arguments, without making the tar."""
    return _objects(files, message, keep=False).commit


def repository_tar(files: Mapping[str, str], *, message: str = MESSAGE) -> RepositoryTar:
    """Work tree and `.git` of `files` (relative POSIX path -> text, stored as UTF-8). Raises GitObjectError."""
    objects = _objects(files, message, keep=True)
    tree = _Archive()
    for path in sorted(files):
        tree.add(path, files[path].encode())
    for directory in (".git/objects/info", ".git/objects/pack", ".git/refs/heads", ".git/refs/tags"):
        tree.add_directories(directory)
    tree.add(".git/HEAD", b"ref: refs/heads/main\n")
    tree.add(".git/config", _CONFIG.encode())
    tree.add(".git/refs/heads/main", f"{objects.commit}\n".encode())
    for name, payload in sorted(objects.payloads.items()):
        # Stored, not deflated: the bytes then do not depend on which zlib this machine has.
        tree.add(f".git/objects/{name[:2]}/{name[2:]}", zlib.compress(payload, 0), mode=0o444)
    # One second younger than the files: git re-reads files that are not older than the index ("racy").
    tree.add(".git/index", _index(files, objects.blobs), mtime=EPOCH + 1)
    return RepositoryTar(pack(tree.members), objects.commit)


def _payload(kind: str, body: bytes) -> bytes:
    return f"{kind} {len(body)}\0".encode() + body


def _objects(files: Mapping[str, str], message: str, *, keep: bool) -> _Objects:
    payloads: dict[str, bytes] = {}

    def store(kind: str, body: bytes) -> str:
        payload = _payload(kind, body)
        name = hashlib.sha1(payload, usedforsecurity=False).hexdigest()
        if keep:
            payloads[name] = payload
        return name

    root: dict[str, object] = {}
    blobs: dict[str, str] = {}
    for path, text in files.items():
        parts = _checked_parts(path)
        folder = root
        for part in parts[:-1]:
            inner = folder.setdefault(part, {})
            if not isinstance(inner, dict):
                raise GitObjectError(f"{path!r}: {part!r} is both a file and a folder; rename one")
            folder = inner
        if parts[-1] in folder:
            raise GitObjectError(f"{path!r} is both a file and a folder; rename one")
        blobs[path] = folder[parts[-1]] = store("blob", text.encode())

    def tree(folder: Mapping[str, object]) -> str:
        entries = []
        for name, inner in folder.items():
            raw = name.encode()
            if isinstance(inner, dict):
                # git sorts a folder as if its name ended in a slash.
                entries.append((raw + b"/", b"%o %s\0" % (_DIRECTORY_MODE, raw), tree(inner)))
            else:
                entries.append((raw, b"%o %s\0" % (_FILE_MODE, raw), str(inner)))
        entries.sort()
        return store("tree", b"".join(head + bytes.fromhex(name) for _, head, name in entries))

    stamp = f"{AUTHOR} {EPOCH} +0000"
    body = f"tree {tree(root)}\nauthor {stamp}\ncommitter {stamp}\n\n{message}"
    return _Objects(store("commit", body.encode()), blobs, payloads)


def _checked_parts(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise GitObjectError(f"{path!r} is no plain relative path; use 'folder/file.py'")
    if any(part.lower() == ".git" for part in parts):
        raise GitObjectError(f"{path!r} lies in git's own folder; leave .git to this module")
    return parts


def _index(files: Mapping[str, str], blobs: Mapping[str, str]) -> bytes:
    return index_file(
        (path.encode(), _FILE_MODE, bytes.fromhex(blobs[path]), EPOCH, len(text.encode()))
        for path, text in files.items()
    )


def index_file(entries: Iterable[tuple[bytes, int, bytes, int, int]]) -> bytes:
    """Index format version 2 (gitformat-index) of (path, mode, raw id, time of change, size), each path once: entries
    sorted by path, padded to 8 bytes, a hash of the ids' own kind at the end. Time 0: git looks at the file itself."""
    ordered = sorted(entries)
    chunks = [struct.pack(">4sLL", b"DIRC", 2, len(ordered))]
    for path, mode, name, mtime, size in ordered:
        stat = (0, 0, mtime, 0, 0, 0, mode, 0, 0, size)
        entry = struct.pack(f">10L{len(name)}sH", *stat, name, min(len(path), 0xFFF)) + path
        chunks.append(entry + b"\0" * (8 - len(entry) % 8))
    body = b"".join(chunks)
    if ordered and len(ordered[0][2]) == 32:
        return body + hashlib.sha256(body).digest()
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


class _Archive:
    """Members in order, each folder once and before what is in it."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._made: set[str] = set()

    def add_directories(self, directory: str) -> None:
        for name in (*_parents(directory), directory):
            if name and name not in self._made:
                self._made.add(name)
                self.members.append(Member(name.encode(), None, 0o755, EPOCH))

    def add(self, path: str, data: bytes, *, mode: int = 0o644, mtime: int = EPOCH) -> None:
        self.add_directories(path.rpartition("/")[0])
        self.members.append(Member(path.encode(), data, mode, mtime))
