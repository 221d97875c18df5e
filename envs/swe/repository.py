"""Puts a task's repository into a sandbox and proves its hygiene.

Promises, after `provide`:
* HEAD is base_commit; for files and bundles index and work tree are base_commit's too, on branch `main`;
* nothing newer than base_commit is left: every object in the repository is reachable from base_commit, there is no
  other ref, remote, reflog, stash or alternate. Proved from git's own object list; any doubt is an EnvironmentFault;
* the `Snapshot` tells the base tree and the state of the work tree, taken before the agent acts.
Repositories that come from this machine are prepared and proved once and put as bytes from then on.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.gitobjects import object_id, repository_tar
from envs.environment import EnvironmentFault, ImageUnfit
from envs.sandbox.contract import Sandbox
from envs.swe.git import PLAIN_ENV, quote, read_output
from envs.swe.hygiene import TIMEOUT_S, clean, remake
from envs.swe.proof import prove
from envs.swe.row import SweRow
from envs.swe.worktree import LISTING, Entry, Snapshot, parse_listing, read_tar

_MAX_LISTING = 64 << 20
_BUNDLE = "/tmp/.task.bundle"
_NOT_OURS = (
    "find . -type d -user 0 ! -perm -u+w -exec chmod u+w {} + 2>/dev/null; "
    '[ -w . ] || echo "$PWD"; find . -path "./.git/objects/*" -prune -o \\( -type f -o -type d \\) '
    '! -user 0 ! -writable -printf "%p of user %u, mode %m\\n" 2>/dev/null | head -n 3'
)
"""What cannot be written and whose rights cannot be changed either. A find that does not know this says nothing."""

# $D repository, $B base commit. fd 3 is the real output; everything else goes to stderr, kept in $L for the fault text.
_HEAD = """
L=/tmp/.prepare.log
exec 3>&1 >"$L" 2>&1
die() { echo "hygiene: $*" >&3; tail -c 2000 "$L" >&3; exit 9; }
"""

_FROM_BUNDLE = """
mkdir -p "$D" && cd "$D" || die "cannot make $D"
# Asked for only where it is needed: an older git does not know the option.
[ ${#B} = 64 ] && FORM=--object-format=sha256
git init -q $FORM . || die "git init failed (a sha256 repository needs git 2.29 or newer in the image)"
git fetch -q --no-tags "$BUNDLE" '+refs/*:refs/bundle/*' || die "the bundle cannot be read"
rm -f "$BUNDLE"
git checkout -q -f --detach "$B" || die "base_commit is not in the bundle"
"""

# The pause lets the clock that stamps files tick on, so that hardly a file is "racy" (see envs.swe.worktree).
_RECORD = f"""
cd "$D" || die "no repository folder $D"
sleep 0.04; date +%s.%N >&3
{LISTING} >&3 || die "files cannot be listed (the image needs GNU find and tar)"
tar --version >/dev/null || die "no tar"
rm -f "$L"
"""

_SMALL = 512 << 10
"""Bytes in a work tree. Up to here all files are compared by content; above, a stat record tells which need a look."""
_MAX_ARCHIVE = 32 << 20
"""Larger repositories are prepared anew every time."""
_MAX_KEPT = 256 << 20


@dataclass(frozen=True)
class Prepared:
    """A repository whose hygiene was proved, as bytes: putting the same bytes elsewhere needs no second proof."""

    archive: bytes
    base: Mapping[bytes, Entry]
    pristine: Mapping[bytes, Entry]


_kept: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()
"""By what the repository was made from; the least recently used go first when they grow past _MAX_KEPT bytes."""


async def provide(sandbox: Sandbox, row: SweRow) -> Snapshot:
    """Put `row`'s repository at its repo_dir and prove hygiene. Raises EnvironmentFault, SandboxError.

    The snapshot has no stat record: `record` adds it for the sandbox in which an agent will act."""
    if row.files is not None:
        return await _provide_files(sandbox, row, row.files)
    if row.bundle is not None:
        return await _provide_bundle(sandbox, row, row.bundle)
    cleaned = await clean(sandbox, row)
    installed = tuple(path.encode("utf-8", "surrogateescape") for path in row.installed)
    return Snapshot(cleaned.base, None, removed=cleaned.removed, installed=installed)


async def require_writable(sandbox: Sandbox, row: SweRow) -> None:
    """Raises ImageUnfit where the repository in the image is not the sandbox's to write."""
    script = f"cd {quote(row.repo_dir)} || exit 0; {_NOT_OURS}"
    found, _ = await read_output(sandbox, script, timeout_s=TIMEOUT_S, max_bytes=_MAX_LISTING, env=PLAIN_ENV)
    if not found.strip():
        return
    shown = "; ".join(found.decode("utf-8", "replace").split("\n")[:3])
    raise ImageUnfit(
        f"task {row.task_id}: the repository {row.repo_dir} in image {row.image} cannot be written ({shown}): a "
        "sandbox runs as user 0 without rights over other users' files. Make an image of it in which they are root's: "
        f"FROM {row.image or 'IMAGE'}, USER root, RUN chown -R 0:0 {row.repo_dir} && chmod -R u+w {row.repo_dir}"
    )


async def record(sandbox: Sandbox, row: SweRow, snapshot: Snapshot) -> Snapshot:
    """`snapshot` with a stat record of the work tree, unless all of it is small enough to be compared by content."""
    small = sum(entry.size for entry in snapshot.pristine.values()) if snapshot.pristine is not None else _SMALL + 1
    if small <= _SMALL:
        return snapshot
    stamp, _, listing = (await _run(sandbox, row, _RECORD)).partition(b"\n")
    return dataclasses.replace(snapshot, files=parse_listing(listing), taken_at=float(stamp))


async def _provide_files(sandbox: Sandbox, row: SweRow, files: Mapping[str, str]) -> Snapshot:
    key = ("files", row.base_commit, tuple(files.items()))
    if (prepared := _recall(key)) is None:
        made = repository_tar(files)
        if made.commit != row.base_commit:
            raise EnvironmentFault(
                f"task {row.task_id}: its files make commit {made.commit}, its base_commit says {row.base_commit}"
            )
        prove(made.archive, row.base_commit, f"task {row.task_id}")
        base = {
            path.encode(): Entry("100644", object_id("blob", text.encode()), len(text)) for path, text in files.items()
        }
        prepared = _keep(key, Prepared(made.archive, base, base))
    await sandbox.put_tar(row.repo_dir, prepared.archive)
    return Snapshot(prepared.base, prepared.pristine)


async def _provide_bundle(sandbox: Sandbox, row: SweRow, bundle: Path) -> Snapshot:
    stat = await asyncio.to_thread(bundle.stat)
    key = ("bundle", str(bundle), stat.st_mtime_ns, stat.st_size, row.base_commit)
    if (prepared := _recall(key)) is not None:
        await sandbox.put_tar(row.repo_dir, prepared.archive)
        return Snapshot(prepared.base, prepared.pristine)
    await sandbox.put(_BUNDLE, await asyncio.to_thread(bundle.read_bytes))
    await _run(sandbox, row, _FROM_BUNDLE)
    base = (await remake(sandbox, row))[0].base
    try:
        script = f"cd {quote(row.repo_dir)} && tar -cf - --format=gnu . 2>/dev/null"
        archive, code = await read_output(sandbox, script, timeout_s=TIMEOUT_S, max_bytes=_MAX_ARCHIVE)
    except ValueError:  # too large to keep
        return Snapshot(base, None)
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: the prepared repository cannot be read (tar: exit code {code})")
    pristine = {
        path: Entry(content.mode, content.object_id(row.base_commit), len(content.data))
        for path, content in read_tar(archive, _MAX_ARCHIVE).items()
        if path.split(b"/")[0] != b".git"
    }
    _keep(key, Prepared(archive, base, pristine))
    return Snapshot(base, pristine)


def _recall(key: tuple[object, ...]) -> Prepared | None:
    if key in _kept:
        _kept.move_to_end(key)
    return _kept.get(key)


def _keep(key: tuple[object, ...], prepared: Prepared) -> Prepared:
    _kept[key] = prepared
    while len(_kept) > 1 and sum(len(each.archive) for each in _kept.values()) > _MAX_KEPT:
        _kept.popitem(last=False)
    return prepared


async def _run(sandbox: Sandbox, row: SweRow, steps: str) -> bytes:
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} BUNDLE={_BUNDLE}\n"
    try:
        output, code = await read_output(
            sandbox, variables + _HEAD + steps, timeout_s=TIMEOUT_S, max_bytes=_MAX_LISTING
        )
    except ValueError as error:
        raise EnvironmentFault(f"task {row.task_id}: the repository's file list is {error}") from error
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: {output.decode('utf-8', 'replace').strip()[-2500:]}")
    return output
