"""Puts a task's repository into a sandbox and proves its hygiene.

Promises, after `provide`:
* HEAD is base_commit; for files and bundles index and work tree are base_commit's too, on branch `main`;
* nothing newer than base_commit is left: every object in the repository is reachable from base_commit, there is no
  other ref, remote, reflog, stash or alternate. Proved from git's own object list; any doubt is an EnvironmentFault;
* the `Snapshot` holds the base tree and a stat record of every file, taken before the agent acts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from data.gitobjects import object_id, repository_tar
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import quote, read_output
from envs.swe.row import SweRow
from envs.swe.worktree import LISTING, Entry, Snapshot, parse_listing

PREPARE_TIMEOUT_S = 600.0
_MAX_LISTING = 64 << 20
_BUNDLE = "/tmp/.task.bundle"

# $D repository, $B base commit. fd 3 is the real output; everything else goes to stderr, kept in $L for the fault text.
_HEAD = """
L=/tmp/.prepare.log
exec 3>&1 >"$L" 2>&1
die() { echo "hygiene: $*" >&3; tail -c 2000 "$L" >&3; exit 9; }
"""

_FROM_BUNDLE = """
mkdir -p "$D" && cd "$D" || die "cannot make $D"
git init -q . || die "git init failed"
git fetch -q --no-tags "$BUNDLE" '+refs/*:refs/bundle/*' || die "the bundle cannot be read"
rm -f "$BUNDLE"
git checkout -q -f --detach "$B" || die "base_commit is not in the bundle"
"""

# Removes what could lead to newer history. The work tree stays as it is (images build in place).
_CLEAN = """
cd "$D" || die "no repository folder $D"
[ -d .git ] && [ ! -L .git ] || die "$D/.git is no plain folder (worktrees and submodules as tasks are not supported)"
git rev-parse -q --verify "$B^{commit}" >/dev/null || die "base_commit is not in the repository"
if [ -s .git/objects/info/alternates ]; then
  git repack -q -a -d || die "repack failed"; rm -f .git/objects/info/alternates
fi
git update-ref --no-deref HEAD "$B" || die "HEAD cannot be set"
git for-each-ref --format='delete %(refname)' | git update-ref --no-deref --stdin || die "refs cannot be deleted"
git update-ref refs/heads/main "$B" && git symbolic-ref HEAD refs/heads/main || die "HEAD cannot be set"
git read-tree "$B" || die "the index cannot be set"
for r in $(git remote); do git remote remove "$r" || die "remote $r stays"; done
rm -rf .git/logs .git/worktrees .git/rr-cache .git/*_HEAD .git/AUTO_MERGE .git/rebase-apply .git/rebase-merge \\
  .git/sequencer .git/hooks .git/objects/info/commit-graph .git/objects/info/commit-graphs .git/lost-found
git repack -q -a -d && git prune --expire=now && git pack-refs --all --prune && git update-index -q --refresh
"""

# The check of last resort: the set of all objects against the set of objects reachable from base_commit.
_CHECK = """
cd "$D" || die "no repository folder $D"
[ "$(git rev-parse HEAD)" = "$B" ] || die "HEAD is not base_commit"
[ -z "$(git rev-list --all --not "$B" | head -c 100)" ] || die "a ref leads to newer history"
[ -z "$(git remote)" ] || die "a remote is configured"
[ ! -s .git/objects/info/alternates ] || die "objects are borrowed from another repository"
[ -z "$(find .git -maxdepth 1 -name modules -print)" ] || die "submodule repositories are inside .git"
git rev-list --objects --no-object-names "$B" | sort -u >/tmp/.reachable || die "history cannot be walked"
git cat-file --batch-all-objects --unordered --batch-check='%(objectname)' | sort -u >/tmp/.all || die "no object list"
[ -s /tmp/.all ] || die "no objects"
extra=$(comm -13 /tmp/.reachable /tmp/.all | head -n 5)
[ -z "$extra" ] || die "objects that base_commit does not reach: $extra"
rm -f /tmp/.reachable /tmp/.all
"""

_SNAPSHOT = f"""
date +%s >&3; git ls-tree -r -z "$B" >&3 || die "no base tree"
printf '\\0' >&3
{LISTING} >&3 || die "files cannot be listed (the image needs GNU find and tar)"
tar --version >/dev/null || die "no tar"
rm -f "$L"
"""

_proved: set[str] = set()
"""Digests of archives made by this process whose hygiene was proved: the same bytes need no second proof."""


@dataclass(frozen=True)
class Provided:
    """What a prepared repository is: its snapshot, and whether its work tree equals base_commit byte for byte."""

    snapshot: Snapshot
    exact: bool


async def provide(sandbox: Sandbox, row: SweRow) -> Provided:
    """Put `row`'s repository at its repo_dir and prove hygiene. Raises EnvironmentFault, SandboxError."""
    if row.files is not None:
        return await _provide_files(sandbox, row, row.files)
    steps = _CLEAN + _CHECK
    if row.bundle is not None:
        await sandbox.put(_BUNDLE, await asyncio.to_thread(row.bundle.read_bytes))
        steps = _FROM_BUNDLE + steps
    else:
        # Cleaning a large repository takes long: an image made clean once is only checked.
        steps = f"if ! ({_CHECK}) 3>/dev/null; then\n{_CLEAN}\nfi\n{_CHECK}"
    return Provided(_snapshot(row, await _run(sandbox, row, steps + _SNAPSHOT)), exact=False)


async def _provide_files(sandbox: Sandbox, row: SweRow, files: Mapping[str, str]) -> Provided:
    """Tiny repositories: every file is compared by content at the end, so no stat record is taken."""
    made = await asyncio.to_thread(repository_tar, files)
    if made.commit != row.base_commit:
        raise EnvironmentFault(
            f"task {row.task_id}: its files make commit {made.commit}, its base_commit says {row.base_commit}"
        )
    await sandbox.put_tar(row.repo_dir, made.archive)
    digest = hashlib.sha256(made.archive).hexdigest()
    if digest not in _proved:
        await _run(sandbox, row, f"{_CHECK}\n{_SNAPSHOT}")
        _proved.add(digest)
    base = {path.encode(): Entry("100644", object_id("blob", text.encode())) for path, text in files.items()}
    return Provided(Snapshot(base, None, 0.0), exact=True)


async def _run(sandbox: Sandbox, row: SweRow, steps: str) -> bytes:
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} BUNDLE={_BUNDLE}\n"
    try:
        output, code = await read_output(
            sandbox, variables + _HEAD + steps, timeout_s=PREPARE_TIMEOUT_S, max_bytes=_MAX_LISTING
        )
    except ValueError as error:
        raise EnvironmentFault(f"task {row.task_id}: the repository's file list is {error}") from error
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: {output.decode('utf-8', 'replace').strip()[-2500:]}")
    return output


def _snapshot(row: SweRow, output: bytes) -> Snapshot:
    stamp, _, rest = output.partition(b"\n")
    tree, separator, listing = rest.partition(b"\0\0")
    if not separator:
        raise EnvironmentFault(f"task {row.task_id}: base_commit has no files")
    base: dict[bytes, Entry] = {}
    for record in tree.split(b"\0"):
        head, _, path = record.partition(b"\t")
        mode, _, object_id = head.split(b" ")
        base[path] = Entry(mode.decode(), object_id.decode())
    return Snapshot(base, parse_listing(listing), float(stamp))
