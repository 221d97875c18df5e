"""A disk limit for sandboxes whose file system has no quota: what they hold is looked at while they run.

Promises: a command during which the sandbox holds more than its limit is ended with everything else in it, within
LOOK_EVERY_S and what can be written in that time, and its result says so; the sandbox lives on, and what deletes files
may run; one that holds several times its limit, by many short commands, is given up as OutOfDisk. A look that fails
counts as none: the guard never fails a command by itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from envs.sandbox.contract import ExecResult, OutOfDisk

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
LOOK_AFTER = 16
"""Commands that end sooner are looked at once in so many, and no oftener than LOOK_EVERY_S."""
GIVE_UP_AT = 4
"""Times the limit."""
CUT_CODE = 137


class DiskGuard:
    def __init__(self, used: Callable[[], Awaitable[int | None]], limit: Callable[[], int]) -> None:
        """`used`: bytes the sandbox has written, None where that cannot be told."""
        self._used, self._limit = used, limit
        self._unseen = self._held = 0
        self._looked = -math.inf

    async def run(self, command: Coroutine[Any, Any, ExecResult], cut: Callable[[], None]) -> ExecResult:
        """The command's result; `cut` ends it and everything else in the sandbox."""
        loop = asyncio.get_running_loop()
        watch: asyncio.Task[bool] | None = None

        def start() -> None:
            nonlocal watch
            watch = loop.create_task(self._watch(cut))

        timer = loop.call_later(LOOK_EVERY_S, start)  # most commands are over by then: no task for them
        try:
            result = await command
        finally:
            timer.cancel()
            if watch is not None and not watch.done():
                watch.cancel()
                await asyncio.wait({watch})
        over = watch is not None and not watch.cancelled() and watch.result()
        self._unseen += 1
        if over or (self._unseen >= LOOK_AFTER and loop.time() - self._looked >= LOOK_EVERY_S):
            await self._look()  # after its end it is known exactly
        if not over:
            return result
        note = f"\nsh: the disk limit of {self._limit() >> 20} MiB is passed: everything that ran was ended\n".encode()
        return dataclasses.replace(result, output=result.output + note, exit_code=CUT_CODE, timed_out=False)

    async def _watch(self, cut: Callable[[], None]) -> bool:
        """Look until the sandbox is over its limit, and end what runs."""
        while True:
            # A sandbox that was over its limit already may delete, not add.
            allowed = max(self._limit(), self._held)
            try:
                over = await self._look() > allowed
            except OutOfDisk:
                cut()
                raise
            if over:
                cut()
                return True
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> int:
        loop = asyncio.get_running_loop()
        try:
            held = await self._used() or 0
        except Exception as error:  # the engine's moment of weakness is not the command's
            log.warning("a sandbox's disk use could not be read (%s)", error)
            self._looked = loop.time()
            return 0
        # Only now: a look that its command's end broke off has seen nothing.
        self._unseen, self._looked = 0, loop.time()
        if held > GIVE_UP_AT * self._limit():
            raise OutOfDisk(
                f"a sandbox holds {held >> 20} MiB, its disk limit is {self._limit() >> 20} MiB; give it more, or "
                "start a fresh one"
            )
        self._held = held
        return held
