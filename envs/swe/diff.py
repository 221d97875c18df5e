"""The driver's diff: from the agent's changes to a patch against base_commit, made in a fresh sandbox.

Promises: the patch is git's own, binary-safe, and applies to base_commit byte for byte; it is a function of the work
tree's contents only. Ignore rules are those of base_commit (the agent cannot hide or reveal files by editing them),
plus what Python leaves behind; paths left out by them are reported.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from data.tarball import Member, pack
from envs.aside import TooHard, aside
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import EXPORTS, PLAIN_ENV, quote, read_output
from envs.swe.row import SweRow
from envs.swe.stage import displaced, git_folder, index_of
from envs.swe.worktree import Changes, Content, Entry, Snapshot, fetch

_TIMEOUT_S = 300.0
# $D repository, $B base commit, $W the driver's folder with a git folder of its own.
_DIFF = """git diff-index --cached -p --binary --full-index --no-ext-diff --no-textconv --no-renames --no-color \\
  --src-prefix=a/ --dst-prefix=b/ -U3 --diff-algorithm=myers "$B" -- >&3 || fail"""
_DROP = """xargs -0 rm -rf -- <"$W/gone"
xargs -0 dirname -z -- <"$W/gone" | sort -zu | xargs -0 rmdir -p --ignore-fail-on-non-empty -- 2>/dev/null"""
_WRITE = 'GIT_INDEX_FILE="$GIT_DIR/placed" git checkout-index -f -q -z --stdin <"$W/list" || fail'
_NOTHING = 3
"""Steps of a script that does nothing."""
_LEFTOVERS = b"__pycache__/\n*.py[cod]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n.coverage\n"


class PatchTooLarge(ValueError):
    """The agent changed or deleted more than a patch may hold: graded as a failure."""


@dataclass(frozen=True)
class Diff:
    patch: bytes
    ignored: tuple[bytes, ...] = ()
    """New paths left out by base_commit's ignore rules, or because no git would apply them."""


@dataclass(frozen=True)
class Bench:
    """What is to come into the fresh sandbox with the diff, in one go."""

    folder: str
    """A new folder of the driver's."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Put below it."""
    tests: Mapping[bytes, Content] | None = None
    """The hidden tests' files, which win over the agent's. None: the work tree is not touched; else it becomes
    base_commit with the agent's changes and then these."""
    kept: frozenset[bytes] = frozenset()
    """Files of base_commit that the agent's changes do not reach in the work tree."""


async def make_diff(
    sandbox: Sandbox, row: SweRow, snapshot: Snapshot, changes: Changes, bench: Bench, *, max_bytes: int
) -> Diff:
    """`sandbox` is fresh and holds `row`'s repository (`snapshot`). Raises PatchTooLarge."""
    base, written = snapshot.base, dict(changes.written)
    if snapshot.pristine is None and written:
        # Images and attributes (line endings) may make a pristine file differ from its blob: then it is no change.
        known = snapshot.files or {}
        pristine = await fetch(sandbox, row.repo_dir, [path for path in written if path in known], max_bytes=1 << 30)
        written = {path: content for path, content in written.items() if pristine.get(path) != content}
    ignored = {path for path, content in written.items() if _no_git_takes(path, content)}
    ignored |= await _ignored(
        sandbox, row, [path for path in written if path not in base and path not in ignored], base
    )
    written = {path: content for path, content in written.items() if path not in ignored}
    patch = await _place(sandbox, row, base, written, changes.deleted, bench, max_bytes)
    return Diff(patch, tuple(sorted(ignored)))


def _no_git_takes(path: bytes, content: Content) -> bool:
    """Git refuses links of this name for safety, and with them the whole patch."""
    return content.mode == "120000" and b".gitmodules" in path.lower().split(b"/")


async def _ignored(sandbox: Sandbox, row: SweRow, new: list[bytes], base: Mapping[bytes, Entry]) -> set[bytes]:
    if not new:
        return set()
    folder = f"/tmp/.driver-{secrets.token_hex(8)}"
    rules = {path: entry for path, entry in base.items() if path.split(b"/")[-1] == b".gitignore"}
    files = {
        "index": index_of(rules, {}, frozenset(), row.base_commit),
        "new": b"".join(b"./" + path + b"\0" for path in new),  # ":(x)" alone would be read as a rule
        "leftovers": _LEFTOVERS,
        "tree/.keep": b"",
    }
    await sandbox.put_tar(folder, pack_files(files))
    # Asked in a work tree that holds base_commit's ignore files alone: links, submodules and nested repositories of
    # the real one, on whose far side git refuses to answer, are not there.
    script = (
        f"export GIT_DIR={quote(row.repo_dir)}/.git GIT_WORK_TREE={folder}/tree GIT_INDEX_FILE={folder}/index\n"
        f"cd {folder}/tree && git checkout-index -a -q && "
        f"git -c core.excludesFile={folder}/leftovers check-ignore --no-index -z --stdin <{folder}/new"
    )
    output, code = await read_output(sandbox, script, timeout_s=_TIMEOUT_S, max_bytes=64 << 20)
    if code not in (0, 1):  # 1: nothing is ignored
        raise EnvironmentFault(
            f"task {row.task_id}: git check-ignore failed: {output.decode('utf-8', 'replace')[:500]}"
        )
    return {path.removeprefix(b"./") for path in output.split(b"\0") if path} if code == 0 else set()


def _without(written: Mapping[bytes, Content], winners: Mapping[bytes, Content]) -> dict[bytes, Content]:
    """`written` as far as it can stay beside `winners`."""
    lost = displaced(winners, written)
    return {path: content for path, content in written.items() if path not in winners and path not in lost}


def _staged(
    place: tuple[str, str],
    base: Mapping[bytes, Entry],
    written: Mapping[bytes, Content],
    deleted: frozenset[bytes],
    bench: Bench,
) -> tuple[bytes, bool]:
    """What goes into the driver's folder, and whether its script has anything to do. `place`: repository and commit.

    Blobs travel under their ids, never under the agent's path names. A path that turns from file to folder (or back)
    loses its old entry."""
    repo_dir, base_commit = place
    gone = deleted | displaced(written, base)
    tests = bench.tests or {}
    standing = dict.fromkeys(bench.kept, Content("100644", b""))
    both = {**_without(written, {**standing, **tests}), **tests}
    contents = (*written.values(), *tests.values())
    files = {f"git/{name}": data for name, data in git_folder(repo_dir, base_commit, contents).items()}
    steps = [
        'cd "$D" || exit 9; exec 3>&1 >"$W/log" 2>&1',
        'fail() { tail -c 1000 "$W/log" >&3; exit 9; }',
        'export GIT_DIR="$W/git" GIT_WORK_TREE="$D"',
    ]
    if written or gone:
        files["git/index"] = index_of(base, written, gone, base_commit)
        steps.append(_DIFF)
    if bench.tests is not None:
        if dropped := gone - bench.kept:
            files["gone"] = b"".join(path + b"\0" for path in sorted(dropped))
            steps.append(_DROP)
        if both:
            files["git/placed"] = index_of(base, both, gone | displaced(both, base), base_commit)
            files["list"] = b"".join(path + b"\0" for path in sorted(both))
            steps.append(_WRITE)
    if len(steps) == _NOTHING:
        return pack_files(bench.files) if bench.files else b"", False
    variables = f"D={quote(repo_dir)} B={base_commit} W={bench.folder}\n"
    files["place.sh"] = (EXPORTS + variables + "\n".join(steps)).encode()
    return pack_files({**files, **bench.files}), True


async def _place(
    sandbox: Sandbox,
    row: SweRow,
    base: Mapping[bytes, Entry],
    written: Mapping[bytes, Content],
    deleted: frozenset[bytes],
    bench: Bench,
    max_bytes: int,
) -> bytes:
    size = sum(len(path) + len(content.data) + 100 for path, content in written.items())
    place = (row.repo_dir, row.base_commit)
    try:
        archive, diffs = await aside(size, _staged, place, base, written, deleted, bench)
    except TooHard as error:
        raise PatchTooLarge(f"the changes cannot be made a patch: {error}") from error
    if archive:
        await sandbox.put_tar(bench.folder, archive)
    if not diffs:
        return b""
    try:
        output, code = await read_output(
            sandbox, f". {bench.folder}/place.sh", timeout_s=_TIMEOUT_S, max_bytes=4 * max_bytes, env=PLAIN_ENV
        )
    except ValueError as error:
        raise PatchTooLarge(f"the patch has {error}") from error
    if code != 0:
        raise EnvironmentFault(f"task {row.task_id}: git diff failed: {output.decode('utf-8', 'replace')[-1000:]}")
    return output


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """A tar of plain files for `put_tar`."""
    return pack(Member(name.encode(), data) for name, data in files.items())
