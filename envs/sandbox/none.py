"""No sandbox at all, for tasks that are answered in text: asking it for one is an error, so nothing runs unguarded."""

from __future__ import annotations

from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec, StartFailed
from envs.sandbox.owner import Found


class NoSandbox(SandboxBackend):
    name = "none"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    async def check(self) -> None:
        """Nothing can be wrong with it."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        raise StartFailed("this run has no sandboxes (sandbox.backend is none), but a tool asks for one: use auto")

    async def survey(self) -> list[Found]:
        return []

    async def reap(self) -> list[str]:
        return []

    async def keep_state(self, sandbox: Sandbox) -> str:
        raise StartFailed("there is no sandbox whose state could be kept")

    async def drop_state(self, state: str) -> None:
        """None was kept."""

    async def close(self) -> None:
        """Nothing is held."""
