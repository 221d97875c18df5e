"""A backend in front of another: what a wrapper does not change is the backend's."""

from __future__ import annotations

from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.owner import Found


class WrappedBackend(SandboxBackend):
    """Takes the backend over: closing the wrapper closes it."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        self.name, self.run_id = backend.name, backend.run_id

    async def check(self) -> None:
        await self.backend.check()

    async def check_network(self) -> None:
        await self.backend.check_network()

    async def survey(self) -> list[Found]:
        return await self.backend.survey()

    async def reap(self) -> list[str]:
        return await self.backend.reap()

    async def keep_state(self, sandbox: Sandbox) -> str:
        return await self.backend.keep_state(sandbox)

    async def drop_state(self, state: str) -> None:
        await self.backend.drop_state(state)

    async def close(self) -> None:
        await self.backend.close()
