"""Sandboxes that start from a prepared state: prepared once by whoever comes first, forked by everybody after.

Promises: for one key the preparation runs once at a time; what it returned belongs to the state and comes with every
sandbox; the first caller gets the very sandbox it prepared, so a state that is used once costs only its keeping; a
state that cannot be kept, or that is gone, costs a preparation and nothing else; the least recently used goes first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST = 16


class States:
    """The prepared states of one backend; they end with it."""

    def __init__(self, backend: SandboxBackend, most: int = MOST) -> None:
        self._backend, self._most = backend, most
        self._kept: OrderedDict[Hashable, tuple[str, Any]] = OrderedDict()
        self._making: dict[Hashable, asyncio.Lock] = {}

    async def start(
        self, key: Hashable, spec: SandboxSpec, prepare: Callable[[Sandbox], Awaitable[T]]
    ) -> tuple[Sandbox, T]:
        """A started sandbox on which `prepare` was done, and what that returned. `key` names everything that both the
        spec's files and `prepare` depend on. Raises what `start` and `prepare` raise."""
        from envs.sandbox.contract import ImageMissing

        lock = self._making.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._kept:
                return await self._first(key, spec, prepare)
            self._kept.move_to_end(key)
            state, value = self._kept[key]
        try:
            return await self._backend.start(dataclasses.replace(spec, state=state)), value
        except ImageMissing:
            log.warning("the prepared state %s is gone (an image clean-up?); it is made again", state)
            self._kept.pop(key, None)
        return await self.start(key, spec, prepare)

    async def _first(
        self, key: Hashable, spec: SandboxSpec, prepare: Callable[[Sandbox], Awaitable[T]]
    ) -> tuple[Sandbox, T]:
        from envs.sandbox.contract import SandboxError

        sandbox = await self._backend.start(spec)
        try:
            value = await prepare(sandbox)
            try:
                self._kept[key] = (await self._backend.keep_state(sandbox), value)
            except SandboxError as error:
                if not sandbox.alive:
                    raise
                log.warning("%s; the next sandbox is prepared anew", error)
            while len(self._kept) > self._most:
                oldest, (state, _) = self._kept.popitem(last=False)
                self._making.pop(oldest, None)
                await self._backend.drop_state(state)
            return sandbox, value
        except BaseException:
            await sandbox.close()
            raise
