"""A Docker backend that fetches the images it lacks.

Promises: a start whose image is there costs nothing more; one whose image is missing waits for the pull, and the image
stays until its container uses it; what cannot be fetched is an ImageFault, an infrastructure error.
"""

from __future__ import annotations

from envs.images.store import ImageStore
from envs.sandbox.contract import ImageMissing, Sandbox, SandboxBackend, SandboxSpec
from envs.sandbox.owner import Found

_TRIES = 3
"""An image may be removed by hand between its pull and the start."""


class FetchingBackend(SandboxBackend):
    """Takes backend and store over: closing it closes both."""

    def __init__(self, backend: SandboxBackend, store: ImageStore) -> None:
        self.backend, self.store = backend, store
        self.name, self.run_id = backend.name, backend.run_id

    async def check(self) -> None:
        await self.backend.check()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.store.open()
        try:
            sandbox = await self.backend.start(spec)
        except ImageMissing:
            if spec.state:
                raise  # a kept state is nobody's to fetch
        else:
            self.store.used(spec.image)
            return sandbox
        for left in reversed(range(_TRIES)):
            async with self.store.using(spec.image):
                try:
                    return await self.backend.start(spec)
                except ImageMissing:
                    if not left:
                        raise
        raise AssertionError("unreachable")

    async def survey(self) -> list[Found]:
        return await self.backend.survey()

    async def reap(self) -> list[str]:
        return await self.backend.reap()

    async def keep_state(self, sandbox: Sandbox) -> str:
        return await self.backend.keep_state(sandbox)

    async def drop_state(self, state: str) -> None:
        await self.backend.drop_state(state)

    async def close(self) -> None:
        await self.store.close()
        await self.backend.close()
