"""Hygiene of a repository that came with its image: envs/swe/hygiene.sh makes it anew and proves it, this module runs
it, reads its report, and does not run it twice for the same state.

Promises: whatever cannot be proved is an EnvironmentFault with the report. A state is recognised by every file's
name, type, size, mode and time, by what the small files of .git say, and by git's variables in the image's
environment; sandboxes of one image are then cleaned with the bytes of the first one's new `.git`, proved there.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import EXPORTS, PLAIN_ENV, quote, read_output, run_script
from envs.swe.row import SweRow
from envs.swe.worktree import Entry

TIMEOUT_S = 600.0
_MAX_OUTPUT = 64 << 20
_SCRIPT, _OUTPUT = "/tmp/.hygiene.sh", "/tmp/.hygiene.out"
_MAX_ARCHIVE = 64 << 20
"""A larger `.git` is made anew in every sandbox."""
_MAX_KEPT = 256 << 20

_LOOK = r"""
cd "$D" || exit 9
{
  find . -printf '%y %m %s %T@ %l %p\0' | sort -z
  find .git -path .git/objects -prune -o -type f -size -64k -print0 | sort -z | xargs -0 -r cat --
  [ ! -f .git/objects/info/alternates ] || cat .git/objects/info/alternates
  env | grep '^GIT_' | sort
} | sha256sum
"""


@dataclass(frozen=True)
class Cleaned:
    """What was found in one state, and how to come from it to the proved one."""

    base: Mapping[bytes, Entry]
    """base_commit's tree."""
    removed: tuple[str, ...]
    """What was taken out, for people."""
    gone: tuple[bytes, ...]
    """Paths outside .git that were removed."""
    archive: bytes | None
    """Tar of the new .git; None: the state was clean already."""


_kept: OrderedDict[tuple[str, ...], Cleaned] = OrderedDict()
"""By image, repository, base and state; the least recently used go first when they grow past _MAX_KEPT bytes."""


@cache
def _script() -> bytes:
    return Path(__file__).with_name("hygiene.sh").read_bytes()


async def clean(sandbox: Sandbox, row: SweRow) -> Cleaned:
    """Make the image's repository at row.repo_dir clean, with proof. Raises EnvironmentFault, SandboxError."""
    look = f"D={quote(row.repo_dir)}\n{_LOOK}"
    state, code = await read_output(sandbox, look, timeout_s=TIMEOUT_S, max_bytes=4096, env=PLAIN_ENV)
    if code != 0 or len(state) < 64:
        return (await remake(sandbox, row))[0]  # it tells what is wrong
    key = (row.image, row.repo_dir, row.base_commit, state[:64].decode())
    if key in _kept:
        _kept.move_to_end(key)
        await _repeat(sandbox, row, _kept[key])
        return _kept[key]
    cleaned, was_clean = await remake(sandbox, row)
    if not was_clean:
        tar = f"cd {quote(row.repo_dir)}/.git && tar -cf - --format=gnu . 2>/dev/null"
        try:
            archive, code = await read_output(sandbox, tar, timeout_s=TIMEOUT_S, max_bytes=_MAX_ARCHIVE, env=PLAIN_ENV)
        except ValueError:  # too large to keep
            return cleaned
        if code != 0:
            raise EnvironmentFault(f"task {row.task_id}: the cleaned repository cannot be read (tar: exit code {code})")
        cleaned = dataclasses.replace(cleaned, archive=archive)
    _kept[key] = cleaned
    while len(_kept) > 1 and sum(len(each.archive or b"") for each in _kept.values()) > _MAX_KEPT:
        _kept.popitem(last=False)
    return cleaned


async def remake(sandbox: Sandbox, row: SweRow) -> tuple[Cleaned, bool]:
    """Run the script, once; whether there was nothing to do. Raises EnvironmentFault, SandboxError."""
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} R=/\n"
    await sandbox.put(_SCRIPT, (EXPORTS + variables).encode() + _script())
    result = await run_script(sandbox, f". {_SCRIPT} >{_OUTPUT}", timeout_s=TIMEOUT_S, env=PLAIN_ENV)
    if result.timed_out:
        raise EnvironmentFault(f"task {row.task_id}: hygiene did not end within {TIMEOUT_S:g} s")
    try:
        output = await sandbox.get(_OUTPUT, max_bytes=_MAX_OUTPUT)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"task {row.task_id}: hygiene left no report: {error}") from error
    await run_script(sandbox, f"rm -f {_SCRIPT} {_OUTPUT}", timeout_s=TIMEOUT_S, env=PLAIN_ENV)
    return _read(row, output, result.exit_code)


async def _repeat(sandbox: Sandbox, row: SweRow, cleaned: Cleaned) -> None:
    if cleaned.archive is None:
        return
    folder = f"{row.repo_dir}/.git"
    script = f"rm -rf {quote(folder)} || exit 9"
    if cleaned.gone:
        await sandbox.put("/tmp/.gone", b"".join(path + b"\0" for path in cleaned.gone))
        script += f"; cd {quote(row.repo_dir)} && xargs -0 rm -rf -- </tmp/.gone && rm /tmp/.gone || exit 9"
    _, code = await read_output(sandbox, script, timeout_s=TIMEOUT_S, max_bytes=4096, env=PLAIN_ENV)
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: hygiene: {folder} cannot be removed (exit code {code})")
    await sandbox.put_tar(folder, cleaned.archive)


def _read(row: SweRow, output: bytes, code: int) -> tuple[Cleaned, bool]:
    removed, gone, tree, was_clean = [], [], [], False
    for record in output.split(b"\0"):
        kind, _, rest = record.partition(b": ")
        if kind == b"removed":
            removed.append(rest.decode("utf-8", "backslashreplace"))
        elif kind == b"gone":
            gone.append(rest)
        elif record == b"clean":
            was_clean = True
        else:
            tree.append(record)
    if code != 0:
        words = b"\0".join(tree).decode("utf-8", "replace").strip()
        report = f" (before that it removed: {'; '.join(removed)})" if removed else ""
        raise EnvironmentFault(f"task {row.task_id}: {words[-2500:] or f'hygiene: exit code {code}'}{report}")
    return Cleaned(_parse_tree(row, b"\0".join(tree)), tuple(dict.fromkeys(removed)), tuple(gone), None), was_clean


def _parse_tree(row: SweRow, output: bytes) -> dict[bytes, Entry]:
    """`git ls-tree -r -z`. Raises EnvironmentFault for an empty one."""
    base: dict[bytes, Entry] = {}
    for record in output.split(b"\0"):
        if record:
            head, _, path = record.partition(b"\t")
            mode, _, name = head.split(b" ")
            base[path] = Entry(mode.decode(), name.decode())
    if not base:
        raise EnvironmentFault(f"task {row.task_id}: base_commit has no files")
    return base
