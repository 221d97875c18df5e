"""A started sandbox that holds a row's repository, in the cheapest way that keeps the hygiene proof.

Promises: the same as `start`, `settle` and `provide` one after the other. A repository that has to be made clean inside
its sandbox (it stands in the image, or its bundle is too large to be kept as bytes) is made clean and proved once for
each backend; every later sandbox forks from that state. No agent ever acted in a state that is kept.
"""

from __future__ import annotations

from typing import NamedTuple

from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec
from envs.swe.leaks import refuse_leaks
from envs.swe.repository import provide, require_writable
from envs.swe.row import SweRow
from envs.swe.settle import Settled, forget_hidden, settle
from envs.swe.worktree import Snapshot

_LARGE_BUNDLE = 32 << 20


class Provided(NamedTuple):
    sandbox: Sandbox
    snapshot: Snapshot
    """Without a stat record."""
    row: SweRow
    """Settled: its base_commit is a commit's id."""


async def start_provided(
    backend: SandboxBackend, spec: SandboxSpec, row: SweRow, *, for_agent: bool = False
) -> Provided:
    """`for_agent`: neither hidden tests nor the row's own fix are there. Raises SandboxError, EnvironmentFault; nothing
    is left then."""
    if _forks(row):
        made_of = (row.image, row.repo_dir, row.base_commit, row.bundle, row.bug_patch, row.hidden, row.removed)
        key = ("repository", *made_of)
        sandbox, (snapshot, settled) = await backend.states.start(key, spec, lambda sandbox: _prepare(sandbox, row))
    else:
        sandbox = await backend.start(spec)
        try:
            snapshot, settled = await _prepare(sandbox, row)
        except BaseException:
            await sandbox.close()
            raise
    if for_agent:
        try:
            await forget_hidden(sandbox, settled.of(row))
            await refuse_leaks(sandbox, settled.of(row), snapshot, backend)
        except BaseException:
            await sandbox.close()
            raise
    return Provided(sandbox, snapshot, settled.of(row))


async def _prepare(sandbox: Sandbox, row: SweRow) -> tuple[Snapshot, Settled]:
    """What is kept with the state belongs to every row of the same image, so no row is in it."""
    if row.files is None and row.bundle is None:
        await require_writable(sandbox, row)
    settled = await settle(sandbox, row)
    return await provide(sandbox, settled.of(row)), settled


def _forks(row: SweRow) -> bool:
    if row.files is not None:
        return False
    return row.bundle is None or row.bundle.stat().st_size > _LARGE_BUNDLE
