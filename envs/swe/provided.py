"""A started sandbox that holds a row's repository, in the cheapest way that keeps the hygiene proof.

Promises: the same as `start` and `provide` one after the other. A repository that has to be made clean inside its
sandbox (it stands in the image, or its bundle is too large to be kept as bytes) is made clean and proved once for each
backend; every later sandbox forks from that state. No agent ever acted in a state that is kept.
"""

from __future__ import annotations

from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec
from envs.swe.repository import provide
from envs.swe.row import SweRow
from envs.swe.worktree import Snapshot

_LARGE_BUNDLE = 32 << 20


async def start_provided(backend: SandboxBackend, spec: SandboxSpec, row: SweRow) -> tuple[Sandbox, Snapshot]:
    """The snapshot has no stat record. Raises SandboxError, EnvironmentFault; nothing is left then."""
    if _forks(row):
        key = ("repository", row.image, row.repo_dir, row.base_commit, row.bundle)
        return await backend.states.start(key, spec, lambda sandbox: provide(sandbox, row))
    sandbox = await backend.start(spec)
    try:
        return sandbox, await provide(sandbox, row)
    except BaseException:
        await sandbox.close()
        raise


def _forks(row: SweRow) -> bool:
    if row.files is not None:
        return False
    return row.bundle is None or row.bundle.stat().st_size > _LARGE_BUNDLE
