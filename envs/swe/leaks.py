"""Looks for a row's own fix in a sandbox in which an agent is about to act.

Promises: the agent never gets a sandbox in which the reference fix stands in a file that it could read: a copy beside
the repository, an editor's backup, a coverage page, an installed package, a wheel. Such a file is an EnvironmentFault
that names it. base_commit's own files are no leak, nor are places that the row allows (column `allowed`) and those of
`ALLOWED`. What a mark is: envs.swe.marks. One search for each repository and fix of a backend, whatever the episodes.
"""

from __future__ import annotations

import asyncio
import fnmatch
import secrets
from collections.abc import Hashable, Iterable
from weakref import WeakKeyDictionary

from data.tarball import Member, pack
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.swe.git import quote, read_output
from envs.swe.marks import Mark, found_in, marks_of, patched_names
from envs.swe.row import BASE_IMAGE, SweRow
from envs.swe.worktree import Snapshot, fetch, same

ALLOWED = ("*/pip/_vendor/*", "*/setuptools/_vendor/*", "/opt/miniconda3/lib/*", "/opt/miniconda3/pkgs/*")
"""Installers bring packages of their own, of any later version. Every image of their kind has them."""
_TIMEOUT_S = 900.0
_MAX_LIST = 64 << 20
_BATCH, _MAX_BATCH = 32 << 20, 160 << 20
"""Bytes fetched in one go, and at most with the headers of tar and the last file."""
_MAX_WHOLE = 256 << 20
"""Files outside of installed packages, together: beyond that the rest is searched like installed packages."""

INSTALLED = (
    *("/usr/*", "/lib*", "/bin/*", "/sbin/*", "/etc/*", "/var/lib/*", "/var/cache/*", "/opt/miniconda3/*"),
    *("*/site-packages/*", "*/dist-packages/*", "*/node_modules/*"),
)
"""Where a system and packages are installed: of files there, those are looked into that are archives or hold a line."""
_ARCHIVES = ("whl", "egg", "zip", "jar", "tar", "gz", "tgz", "bz2", "xz", "txz", "lzma", "pack", "bundle")
_SKIPPED = ("/proc", "/sys", "/dev", "/usr/share/man", "/usr/share/doc", "/usr/share/info", "/usr/share/locale")


def _any(option: str, patterns: Iterable[str]) -> str:
    return "\\( " + " -o ".join(f"{option} {quote(pattern)}" for pattern in patterns) + " \\)"


# $D repository, $W scratch folder. Prints records "<kind><size> <path>\0": g = holds a line of the fix, a = an archive,
# f = any other file outside of INSTALLED, m = a tracked file that is not base_commit's. Packs in git's own folders are
# for hygiene.sh to judge.
_SEARCH = rf"""
cd "$D" || exit 9
all() {{
  find / "$D" -xdev \( {_any("-path", _SKIPPED)} -o -path "$D/.git" -o -path "$W" \) -prune -o \
    -type f -size +0 ! -path '*/objects/pack/*' "$@"
}}
all -size -8M -print0 | sort -zu | xargs -0 -r grep -l -a -Z -F -f "$W/lines" -- | xargs -0 -r stat --printf 'g%s %n\0'
all -size -64M {_any("-name", (f"*.{ending}" for ending in _ARCHIVES))} -printf 'a%s %p\0'
all -size -8M ! {_any("-path", INSTALLED)} -printf 'f%s %p\0'
[ ! -d .git ] || git diff-files --name-only -z | sed -z "s|^|m0 $D/|"
"""

_searched: WeakKeyDictionary[SandboxBackend, dict[Hashable, asyncio.Lock | None]] = WeakKeyDictionary()
"""What was searched and found clean (None), or is being searched."""


def needs_search(row: SweRow) -> bool:
    """The project's base image knows no task, and a repository from the row is base_commit alone."""
    return not (row.image == BASE_IMAGE and (row.files is not None or row.bundle is not None))


def row_marks(row: SweRow) -> tuple[Mark, ...]:
    return (*marks_of(row.patch), *marks_of(row.bug_patch, backwards=True))


async def refuse_leaks(sandbox: Sandbox, row: SweRow, snapshot: Snapshot, backend: SandboxBackend) -> None:
    """Raises EnvironmentFault naming the files in which the fix stands."""
    if not needs_search(row) or not (marks := row_marks(row)):
        return
    key = (row.image, row.repo_dir, row.base_commit, row.bundle, row.allowed, row.removed, row.hidden, marks)
    done = _searched.setdefault(backend, {})
    if done.get(key, ...) is None:
        return
    lock = done.setdefault(key, asyncio.Lock())
    assert lock is not None
    async with lock:
        if done[key] is None:
            return
        if leaks := await find_leaks(sandbox, row, snapshot, marks):
            raise EnvironmentFault(_words(row, leaks))
        done[key] = None


def _words(row: SweRow, leaks: dict[str, bytes]) -> str:
    path, mark = next(iter(leaks.items()))
    more = f" (and {len(leaks) - 1} more: {', '.join(list(leaks)[1:4])})" if len(leaks) > 1 else ""
    shown = mark.decode("utf-8", "replace").split("\n")[0][:60]
    return (
        f"task {row.task_id}: its fix can be read in the sandbox, in {path!r}{more}: {shown!r}. Take it out of image "
        f"{row.image} (or name it in the row's column `removed`), or, if it may stay, in the column `allowed`"
    )


async def find_leaks(sandbox: Sandbox, row: SweRow, snapshot: Snapshot, marks: tuple[Mark, ...]) -> dict[str, bytes]:
    """Path -> a mark that was found there."""
    work = f"/tmp/.driver-{secrets.token_hex(8)}"
    lines = b"".join(line + b"\n" for line in dict.fromkeys(mark.line for mark in marks))
    await sandbox.put_tar(work, pack([Member(b"lines", lines)]))
    script = f"D={quote(row.repo_dir)} W={work}\n{_SEARCH}"
    try:
        listing, code = await read_output(
            sandbox, f"{{ {script}\n}} 2>/dev/null; rm -rf {work}", timeout_s=_TIMEOUT_S, max_bytes=_MAX_LIST
        )
    except ValueError as error:
        raise EnvironmentFault(f"task {row.task_id}: the sandbox's files cannot be listed: {error}") from error
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: the sandbox's files cannot be searched (exit code {code})")
    inside = row.repo_dir.encode() + b"/"
    paths = _to_look_at(listing, snapshot, inside)
    of_base: set[bytes] = set()
    hits: dict[str, set[bytes]] = {}
    for batch in _batches(paths):
        for path, content in (await fetch(sandbox, "/", batch, max_bytes=_MAX_BATCH)).items():
            found = await asyncio.to_thread(_found, content.data, marks)
            whole = b"/" + path
            if found and whole.startswith(inside) and same(content, snapshot.base.get(whole.removeprefix(inside))):
                of_base |= found
            elif found:
                hits[whole.decode("utf-8", "backslashreplace")] = found
    names, every = patched_names(row.patch), {mark.text for mark in marks} - of_base
    return {
        path: min(left)
        for path, found in hits.items()
        if (left := found - of_base)
        and not _allowed(path, row)
        and (_tells(path, names) or len(left) > 1 or left >= every)
    }


def _found(data: bytes, marks: tuple[Mark, ...]) -> set[bytes]:
    return set(found_in(data, marks))


def _to_look_at(listing: bytes, snapshot: Snapshot, inside: bytes) -> dict[bytes, int]:
    """Path (without the first slash) -> bytes of what is to be fetched."""
    paths: dict[bytes, int] = {}
    whole = 0
    for record in listing.split(b"\0"):
        head, _, path = record.partition(b" ")
        kind, size = head[:1], int(head[1:] or 0)
        if kind in (b"a", b"f") and path.removeprefix(inside) in snapshot.base and path.startswith(inside):
            continue
        if kind == b"f":
            whole += size
            if whole > _MAX_WHOLE:
                continue
        if path:
            paths[path.lstrip(b"/")] = size
    return paths


def _batches(paths: dict[bytes, int]) -> Iterable[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for path, each in paths.items():
        if batch and (size + each > _BATCH or len(batch) >= 2000):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += each
    if batch:
        yield batch


def _tells(path: str, names: frozenset[str]) -> bool:
    """One mark is enough here: not among installed packages, an archive, or a file named like one that the fix changes.
    In a stranger's package one phrase may be the same by chance."""
    name = path.rsplit("/", 1)[-1]
    installed = any(fnmatch.fnmatchcase(path, pattern) for pattern in INSTALLED)
    return not installed or name.endswith(_ARCHIVES) or any(name.startswith(each) for each in names)


def _allowed(path: str, row: SweRow) -> bool:
    places = (each if each.startswith("/") else f"{row.repo_dir}/{each}" for each in row.allowed)
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in ALLOWED) or any(
        path == place or path.startswith(f"{place.rstrip('/')}/") for place in places
    )
