"""What the agent changed, read from its sandbox without trusting anything it could write.

Promises: neither HEAD, index, configuration, attributes, hooks nor file times that the agent can set have a say. A
file counts as untouched only if inode, mode and change time (ctime, which no user can set) are those of the snapshot
taken before the agent acted; everything else is fetched and compared by content. Paths are bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import secrets
import tarfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from envs.aside import TooHard, aside
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import PLAIN_ENV, quote, read_output, run_script
from envs.swe.submodules import lost_paths, unlisted

LISTING = r"find . -path ./.git -prune -o \( -type f -o -type l \) -printf '%i %C@ %m %p\0'"
COLLECT_TIMEOUT_S = 120.0
_TAR_OPTIONS = "--anchored --no-wildcards --hard-dereference --format=gnu"
_SUBMODULE = "160000"
_GONE = 7
_CHANGED_WHILE_READ = 1
"""tar's exit code when a background process of the agent still writes: what was read counts."""
MOST_FILES = 50_000
"""Changed or new files that are read; more is graded as a failure."""
_MAX_LISTING = 64 << 20
_RACY_S = 0.02
"""A file changed this shortly before the record could change again without a new ctime (clocks tick at >= 100 Hz)."""
_AT_ONCE_S = 2.0
_RACY_COARSE_S = 2.0
"""On file systems that keep whole seconds."""


_LONGEST_PATH, _LONGEST_NAME = 3840, 255
"""Bytes; the repository's own folder comes before a path."""

P = ParamSpec("P")
T = TypeVar("T")


class Unreadable(ValueError):
    """The work tree cannot be read back although its sandbox lives: the agent's doing, graded as a failure."""


@dataclass(frozen=True)
class Entry:
    """One path of a git tree: mode as git writes it (100644, 100755, 120000, 160000), hex object id."""

    mode: str
    object_id: str
    size: int = 0
    """Bytes, where known."""


@dataclass(frozen=True)
class Stat:
    inode: bytes
    ctime: float
    mode: bytes


@dataclass(frozen=True)
class Content:
    """A regular file's bytes, or a symbolic link's target."""

    mode: str
    data: bytes

    def object_id(self, like: str) -> str:
        """Git's blob id, in the hash that `like` (another id of the repository) has."""
        payload = b"blob %d\0" % len(self.data) + self.data
        if len(like) == 64:
            return hashlib.sha256(payload).hexdigest()
        return hashlib.sha1(payload, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """The repository before the agent acts."""

    base: Mapping[bytes, Entry]
    """base_commit's tree."""
    pristine: Mapping[bytes, Entry] | None
    """The work tree's contents (without .git), also untracked files; None: not known, look into a fresh sandbox."""
    files: Mapping[bytes, Stat] | None = None
    """Stat record of the work tree; None: none was taken, every file is compared by content (small repositories)."""
    taken_at: float = 0.0
    """The sandbox's clock just before the record was taken, seconds."""
    removed: tuple[str, ...] = ()
    """What hygiene took out of the image's repository, for people."""
    installed: tuple[bytes, ...] = ()
    """Folders in the work tree that hold installed packages: nothing in them is read."""


@dataclass(frozen=True)
class Changes:
    """`written` differs from the base tree by content or mode; `deleted` are paths of the base tree."""

    written: Mapping[bytes, Content]
    deleted: frozenset[bytes]
    lost: tuple[bytes, ...] = ()
    """Changed paths in submodules, and submodules that were taken out: no patch holds these."""

    def __bool__(self) -> bool:
        return bool(self.written or self.deleted)


def parse_listing(listing: bytes) -> dict[bytes, Stat]:
    files = {}
    for record in listing.split(b"\0"):
        if record:
            inode, ctime, mode, path = record.split(b" ", 3)
            files[path.removeprefix(b"./")] = Stat(inode, float(ctime), mode)
    return files


async def collect(sandbox: Sandbox, repo_dir: str, snapshot: Snapshot, *, max_bytes: int) -> Changes:
    """Raises Unreadable when the tree is gone, holds more than max_bytes of changes, or its tools were broken.

    What the agent can make long is read in a process of its own (`envs.aside`)."""
    try:
        if snapshot.files is None:
            return _with_unlisted(await _fetch_all(sandbox, repo_dir, snapshot, max_bytes=max_bytes), snapshot)
        listing = await _list(sandbox, repo_dir)
        suspects, deleted, lost = await _apart(len(listing), _listed, listing, snapshot)
        written = await _fetch_changed(sandbox, repo_dir, suspects, snapshot, max_bytes=max_bytes)
    except OSError as error:
        raise Unreadable(f"the agent's files could not be staged for reading: {error}") from error
    return _with_unlisted(Changes(written, deleted, lost), snapshot)


def _with_unlisted(changes: Changes, snapshot: Snapshot) -> Changes:
    """An agent that takes out an empty submodule leaves no trace but the file that lists them."""
    name = b".gitmodules"
    if name not in changes.written and name not in changes.deleted:
        return changes
    content = changes.written.get(name, Content("100644", b""))
    gone = unlisted(_submodules(snapshot), content.data)
    return dataclasses.replace(changes, lost=tuple(sorted({*changes.lost, *gone})))


async def _apart(size: int, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    try:
        return await aside(size, work, *arguments, **named)
    except TooHard as error:
        raise Unreadable(f"the agent's files cannot be read: {error}") from error
    except (ValueError, ArithmeticError, LookupError, EOFError, RecursionError, tarfile.TarError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"the changed files cannot be read back: {error}") from error


def _listed(listing: bytes, snapshot: Snapshot) -> tuple[list[bytes], frozenset[bytes], tuple[bytes, ...]]:
    """Paths that may have changed, those of the base tree that are gone, and what changed in submodules."""
    after = parse_listing(listing)
    _check(after, {})
    suspects = _suspects(after, snapshot)
    _count(suspects)
    return suspects, _deleted(after, snapshot), lost_paths(_submodules(snapshot), snapshot.files or {}, after)


def _count(paths: Collection[bytes]) -> None:
    if len(paths) > MOST_FILES:
        raise Unreadable(f"{len(paths)} files were changed or added, at most {MOST_FILES} are read")


def _deleted(present: Collection[bytes], snapshot: Snapshot) -> frozenset[bytes]:
    before: Collection[bytes] = snapshot.files if snapshot.files is not None else snapshot.pristine or {}
    return frozenset(
        path
        for path, entry in snapshot.base.items()
        if path not in present and path in before and entry.mode != _SUBMODULE
    )


def _unpacked(archive: bytes, snapshot: Snapshot, max_bytes: int) -> Changes:
    """Of an archive of the whole work tree."""
    modules, everything = _modules(snapshot), read_tar(archive, max_bytes)
    contents = {path: content for path, content in everything.items() if not (in_git(path) or path.startswith(modules))}
    _check(contents, contents)
    return Changes(_differing(contents, snapshot), _deleted(contents, snapshot), _lost(everything, snapshot))


def _lost(everything: Mapping[bytes, Content], snapshot: Snapshot) -> tuple[bytes, ...]:
    submodules, before = _submodules(snapshot), snapshot.pristine or {}
    if not submodules:
        return ()
    heads = tuple(path + b"/" for path in submodules)
    inside = {path: content for path, content in everything.items() if path.startswith(heads)}
    ids = {
        path: (content.mode, content.object_id(snapshot.base[submodules[0]].object_id))
        for path, content in inside.items()
    }
    return lost_paths(submodules, {path: (entry.mode, entry.object_id) for path, entry in before.items()}, ids)


def _unpacked_some(
    archive: bytes, paths: list[bytes], snapshot: Snapshot, max_bytes: int
) -> tuple[dict[bytes, Content], list[bytes]]:
    """What differs in an archive of `paths`, and which of them it lacks."""
    contents = read_tar(archive, max_bytes)
    _check(contents, contents)
    return _differing(contents, snapshot), [path for path in paths if path not in contents]


def _differing(contents: Mapping[bytes, Content], snapshot: Snapshot) -> dict[bytes, Content]:
    base, pristine = snapshot.base, snapshot.pristine or {}
    written = {
        path: content
        for path, content in contents.items()
        if not (same(content, base.get(path)) or same(content, pristine.get(path)))
    }
    _count(written)
    return written


def _check(present: Collection[bytes], contents: Mapping[bytes, Content]) -> None:
    """What lists and packs the files is the agent's sandbox's own: it may name what no work tree holds. Nothing of it
    may reach the grader's sandbox."""
    for path in present:
        parts = path.split(b"/")
        if not all(part not in (b"", b".", b"..") and len(part) <= _LONGEST_NAME for part in parts) or b"\0" in path:
            raise Unreadable(f"the answer of the sandbox's tools names no file of a work tree: {_shown(path)}")
        if len(path) > _LONGEST_PATH:
            raise Unreadable(f"a path is longer than {_LONGEST_PATH} bytes: {_shown(path)}")
        above = (b"/".join(parts[:i]) for i in range(1, len(parts)))
        if file := next((each for each in above if each in present), None):
            raise Unreadable(f"the answer of the sandbox's tools names a file as a folder: {_shown(file)}")
    for path, content in contents.items():
        if content.mode == "120000" and not (0 < len(content.data) <= 4095 and b"\0" not in content.data):
            raise Unreadable(f"the answer of the sandbox's tools has a link that leads nowhere: {_shown(path)}")


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")[:200]


async def _list(sandbox: Sandbox, repo_dir: str) -> bytes:
    script = f"cd {quote(repo_dir)} 2>/dev/null || exit {_GONE}\n{LISTING} 2>/dev/null"
    try:
        for attempt in (1, 2):
            listing, code = await read_output(
                sandbox, script, timeout_s=COLLECT_TIMEOUT_S, max_bytes=_MAX_LISTING, env=PLAIN_ENV
            )
            if code == 0 or attempt == 2:
                break
            await _unlock(sandbox, repo_dir)
    except EnvironmentFault as fault:
        raise await _whose(sandbox, fault) from fault
    except ValueError as error:
        raise Unreadable(f"the repository's files cannot be listed: {error}") from error
    if code != 0:
        raise Unreadable(f"{repo_dir} is gone" if code == _GONE else "the repository's files cannot be listed")
    return listing


async def _unlock(sandbox: Sandbox, repo_dir: str) -> None:
    """Give the owner's rights back to folders and files that lack them, and to the folders above."""
    parts = repo_dir.split("/")
    above = " ".join(quote("/".join(parts[:i])) for i in range(2, len(parts) + 1))
    script = f"chmod u+rwx {above} 2>/dev/null; cd {quote(repo_dir)} && chmod -R u+rwX . 2>/dev/null; true"
    await run_script(sandbox, script, timeout_s=COLLECT_TIMEOUT_S, env=PLAIN_ENV)


async def _fetch_all(sandbox: Sandbox, repo_dir: str, snapshot: Snapshot, *, max_bytes: int) -> Changes:
    """The whole work tree but .git, in one command."""
    script = f"cd {quote(repo_dir)} 2>/dev/null || exit {_GONE}"
    script += f"; tar -cf - --exclude=./.git {_TAR_OPTIONS} . 2>/dev/null"
    for attempt in (1, 2):
        archive, code = await _read_archive(sandbox, script, max_bytes, last=True)
        if code == 0 or (code == _CHANGED_WHILE_READ and attempt == 2):
            break
        if attempt == 2:
            raise Unreadable(f"{repo_dir} is gone" if code == _GONE else "the repository's files cannot be read")
        await _unlock(sandbox, repo_dir)
    return await _apart(len(archive), _unpacked, archive, snapshot, max_bytes)


def in_git(path: bytes) -> bool:
    """Git tracks nothing below a folder of this name, however it is spelt."""
    return any(part.lower() == b".git" for part in path.split(b"/"))


async def _read_archive(sandbox: Sandbox, script: str, max_bytes: int, *, last: bool = False) -> tuple[bytes, int]:
    try:
        return await read_output(
            sandbox, script, timeout_s=COLLECT_TIMEOUT_S, max_bytes=max_bytes, env=PLAIN_ENV, last=last
        )
    except EnvironmentFault as fault:
        raise await _whose(sandbox, fault) from fault
    except ValueError as error:
        raise Unreadable(f"the changed files cannot be read back: {error}") from error


async def _whose(sandbox: Sandbox, fault: EnvironmentFault) -> EnvironmentFault | Unreadable:
    """Reading ran out of time: the agent's doing (it replaced a tool, or left too much) where the sandbox itself still
    answers at once, else this machine's."""
    began = time.monotonic()
    answer = await run_script(sandbox, ":", timeout_s=10 * _AT_ONCE_S, env=PLAIN_ENV)
    if answer.timed_out or time.monotonic() - began > _AT_ONCE_S:
        return fault
    return Unreadable("reading the repository's files does not come to an end")


def _modules(snapshot: Snapshot) -> tuple[bytes, ...]:
    """What paths in submodules and in installed folders begin with."""
    return tuple(path + b"/" for path in (*_submodules(snapshot), *snapshot.installed))


def _submodules(snapshot: Snapshot) -> tuple[bytes, ...]:
    return tuple(path for path, entry in snapshot.base.items() if entry.mode == _SUBMODULE)


def _suspects(after: Mapping[bytes, Stat], snapshot: Snapshot) -> list[bytes]:
    """Paths that may have changed. Left out: submodules, folders named .git (git tracks neither), installed ones."""
    modules = _modules(snapshot)
    before = snapshot.files or {}
    coarse = all(stat.ctime.is_integer() for stat in before.values())
    safe_before = snapshot.taken_at - (_RACY_COARSE_S if coarse else _RACY_S)
    return [
        path
        for path, stat in after.items()
        if (before.get(path) != stat or stat.ctime >= safe_before) and not in_git(path) and not path.startswith(modules)
    ]


def same(content: Content, entry: Entry | None) -> bool:
    return entry is not None and content.mode == entry.mode and content.object_id(entry.object_id) == entry.object_id


async def fetch(sandbox: Sandbox, repo_dir: str, paths: Iterable[bytes], *, max_bytes: int) -> dict[bytes, Content]:
    """Contents by path; paths that cannot be read are absent. Raises Unreadable above max_bytes."""
    asked = list(paths)

    async def read(archive: bytes) -> tuple[dict[bytes, Content], list[bytes]]:
        contents = await _apart(len(archive), read_tar, archive, max_bytes)
        return contents, [path for path in asked if path not in contents]

    return (await _fetch(sandbox, repo_dir, asked, max_bytes, read))[0] if asked else {}


async def _fetch_changed(
    sandbox: Sandbox, repo_dir: str, paths: list[bytes], snapshot: Snapshot, *, max_bytes: int
) -> dict[bytes, Content]:
    """Those of `paths` that differ from what was there before."""

    async def read(archive: bytes) -> tuple[dict[bytes, Content], list[bytes]]:
        return await _apart(len(archive), _unpacked_some, archive, paths, snapshot, max_bytes)

    if not paths:
        return {}
    written, missing = await _fetch(sandbox, repo_dir, paths, max_bytes, read)
    if missing:
        names = ", ".join(path.decode("utf-8", "replace") for path in missing[:3])
        raise Unreadable(f"{len(missing)} changed files cannot be read: {names}")
    return written


async def _fetch(
    sandbox: Sandbox,
    repo_dir: str,
    paths: list[bytes],
    max_bytes: int,
    read: Callable[[bytes], Awaitable[tuple[dict[bytes, Content], list[bytes]]]],
) -> tuple[dict[bytes, Content], list[bytes]]:
    """What `read` makes of an archive of `paths`, and which of them cannot be read."""
    names = f"/tmp/.driver-{secrets.token_hex(8)}"
    await sandbox.put(names, b"\0".join(b"./" + path for path in paths) + b"\0")
    listed = f"--null --no-recursion --ignore-failed-read -T {names}"
    script = f"cd {quote(repo_dir)} && tar -cf - {_TAR_OPTIONS} {listed} 2>/dev/null"
    made = await read((await _read_archive(sandbox, script, max_bytes))[0])
    if made[1]:
        unlock = f"cd {quote(repo_dir)} && xargs -0 chmod u+r <{names} 2>/dev/null; true"
        await run_script(sandbox, unlock, timeout_s=COLLECT_TIMEOUT_S, env=PLAIN_ENV)
        made = await read((await _read_archive(sandbox, script, max_bytes))[0])
    await run_script(sandbox, f"rm -f {names}", timeout_s=COLLECT_TIMEOUT_S, env=PLAIN_ENV)
    return made


def read_tar(archive: bytes, max_bytes: int) -> dict[bytes, Content]:
    """The agent may have replaced `tar`: sizes are checked before anything is read out."""
    contents: dict[bytes, Content] = {}
    if not archive:
        return contents
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            path = member.name.encode("utf-8", "surrogateescape").removeprefix(b"./")
            if member.issym():
                contents[path] = Content("120000", member.linkname.encode("utf-8", "surrogateescape"))
            elif member.isreg() and not member.issparse() and member.size <= max_bytes:
                stream = tar.extractfile(member)
                data = stream.read() if stream is not None else b""
                contents[path] = Content("100755" if member.mode & 0o100 else "100644", data)
    return contents
