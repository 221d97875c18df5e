"""The driver's diff: from the agent's changes to a patch against base_commit, made in a fresh sandbox.

Promises: the patch is git's own, binary-safe, and applies to base_commit byte for byte; it is a function of the work
tree's contents only. Ignore rules are those of base_commit (the agent cannot hide or reveal files by editing them),
plus what Python leaves behind; paths left out by them are reported.
"""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import RAW_ATTRIBUTES, quote, read_output
from envs.swe.row import SweRow
from envs.swe.worktree import Changes, Content, Entry, Snapshot, fetch

_TIMEOUT_S = 300.0
_LEFTOVERS = b"__pycache__/\n*.py[cod]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n.coverage\n"


@dataclass(frozen=True)
class Diff:
    patch: bytes
    ignored: tuple[bytes, ...] = ()
    """New paths left out by base_commit's ignore rules."""


async def make_diff(sandbox: Sandbox, row: SweRow, snapshot: Snapshot, changes: Changes, *, max_bytes: int) -> Diff:
    """`sandbox` is fresh and holds `row`'s repository (`snapshot`); its work tree is not touched."""
    base, written = snapshot.base, dict(changes.written)
    if snapshot.pristine is None and written:
        # Images and attributes (line endings) may make a pristine file differ from its blob: then it is no change.
        known = snapshot.files or {}
        pristine = await fetch(sandbox, row.repo_dir, [path for path in written if path in known], max_bytes=1 << 30)
        written = {path: content for path, content in written.items() if pristine.get(path) != content}
    ignored = await _ignored(sandbox, row, [path for path in written if path not in base], base)
    written = {path: content for path, content in written.items() if path not in ignored}
    if not written and not changes.deleted:
        return Diff(b"", tuple(sorted(ignored)))
    patch = await _diff(sandbox, row, base, written, changes.deleted, max_bytes)
    return Diff(patch, tuple(sorted(ignored)))


async def _ignored(sandbox: Sandbox, row: SweRow, new: list[bytes], base: Mapping[bytes, Entry]) -> set[bytes]:
    links = {path for path, entry in base.items() if entry.mode == "120000"}
    # Below what base_commit has as a link git refuses to answer; no rule of base_commit speaks of such a path.
    new = [path for path in new if not any(path[:i] in links for i in _slashes(path))]
    if not new:
        return set()
    folder = f"/tmp/.driver-{secrets.token_hex(8)}"
    await sandbox.put(f"{folder}/new", b"\0".join(new) + b"\0")
    await sandbox.put(f"{folder}/leftovers", _LEFTOVERS)
    script = (
        f"cd {quote(row.repo_dir)} && git -c core.excludesFile={folder}/leftovers check-ignore -z --stdin <{folder}/new"
    )
    output, code = await read_output(sandbox, script, timeout_s=_TIMEOUT_S, max_bytes=64 << 20)
    if code not in (0, 1):  # 1: nothing is ignored
        raise EnvironmentFault(
            f"task {row.task_id}: git check-ignore failed: {output.decode('utf-8', 'replace')[:500]}"
        )
    return {path for path in output.split(b"\0") if path} if code == 0 else set()


def _slashes(path: bytes) -> list[int]:
    return [i for i, byte in enumerate(path) if byte == 0x2F]


async def _diff(
    sandbox: Sandbox,
    row: SweRow,
    base: Mapping[bytes, Entry],
    written: Mapping[bytes, Content],
    deleted: frozenset[bytes],
    max_bytes: int,
) -> bytes:
    """Blobs travel under numbers, never under the agent's path names; the index is written entry by entry."""
    folder = f"/tmp/.driver-{secrets.token_hex(8)}"
    like = row.base_commit
    null = b"0" * len(like)
    index = [b"0 %s\t%s" % (null, path) for path in sorted(deleted)]
    blobs: dict[str, bytes] = {}
    for path, content in sorted(written.items()):
        name = content.object_id(like)
        blobs[name] = content.data
        index.append(b"%s %s\t%s" % (content.mode.encode(), name.encode(), path))
    # A path that turns from file to folder (or back) must lose its old entry first.
    index = [b"0 %s\t%s" % (null, path) for path in _displaced(written, base)] + index
    names = "".join(f"{folder}/{name}\n" for name in blobs).encode()
    await sandbox.put_tar(folder, pack_files({**blobs, "names": names, "index-info": b"\0".join(index) + b"\0"}))
    script = f"""
exec 3>&1 >{folder}/log 2>&1
fail() {{ tail -c 1000 {folder}/log >&3; exit 9; }}
cd {quote(row.repo_dir)} || fail
export GIT_INDEX_FILE={folder}/index
git hash-object -w --no-filters --stdin-paths <{folder}/names || fail
git read-tree {row.base_commit} && git update-index -z --index-info <{folder}/index-info || fail
mkdir -p .git/info && printf '%s' {quote(RAW_ATTRIBUTES)} >.git/info/attributes
git diff-index --cached -p --binary --full-index --no-ext-diff --no-textconv --no-renames --no-color \\
  --src-prefix=a/ --dst-prefix=b/ -U3 --diff-algorithm=myers {row.base_commit} -- >&3 || fail
"""
    try:
        output, code = await read_output(sandbox, script, timeout_s=_TIMEOUT_S, max_bytes=4 * max_bytes)
    except ValueError as error:
        raise EnvironmentFault(f"task {row.task_id}: the diff has {error}") from error
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: git diff failed: {output.decode('utf-8', 'replace')[-1000:]}")
    return output


def _displaced(written: Mapping[bytes, Content], base: Mapping[bytes, Entry]) -> list[bytes]:
    """Base paths that cannot stay beside `written`: parents that were files, children of what became a file."""
    parents = {path[:i] for path in written for i in _slashes(path)}
    return [
        path
        for path in base
        if path not in written and (path in parents or any(path[:i] in written for i in _slashes(path)))
    ]


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """A tar of plain files for `put_tar`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()
