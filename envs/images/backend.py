"""A Docker backend that fetches the images it lacks.

Promises: a start whose image is there costs nothing more; one whose image is missing waits for the pull, and the image
stays until its container uses it; what cannot be fetched is an ImageFault, an infrastructure error.
"""

from __future__ import annotations

from envs.images.store import ImageStore
from envs.sandbox.contract import ImageMissing, Sandbox, SandboxBackend, SandboxSpec
from envs.sandbox.wrapped import WrappedBackend

_TRIES = 3
"""An image may be removed by hand between its pull and the start."""


class FetchingBackend(WrappedBackend):
    """Takes the store over as well: closing it closes both."""

    def __init__(self, backend: SandboxBackend, store: ImageStore) -> None:
        super().__init__(backend)
        self.store = store

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

    async def close(self) -> None:
        await self.store.close()
        await super().close()
