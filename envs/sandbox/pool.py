"""A warm pool in front of a backend: ready sandboxes of the kinds that are asked for, so that a start costs nothing.

Promises: a sandbox is handed out once and never comes back; what is handed out is what `start` of the backend would
have made for the same spec, up to its extra labels, and ends at the spec's own deadline; a kind gets ready sandboxes
only after it was asked for `warm_after` times and loses them when nobody asks for `idle_s`, so images that are used
once cost nothing; at most `ready` wait at any time; one that died while it waited is never handed out. Starts for
those who wait come before starts for the shelf. A failed start reaches one who waits, typed as the backend's; when
nobody waits, the shelf rests for a growing pause. Whatever happens to the driver, ready sandboxes end like all others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any

from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxDead, SandboxSpec
from envs.sandbox.wrapped import WrappedBackend

log = logging.getLogger(__name__)
STOCKING_AT_ONCE = max(2, (os.cpu_count() or 1) // 4)
_TEND_S = 5.0
_LONGEST_REST_S = 60.0


@dataclass(frozen=True)
class PoolSettings:
    ready: int = 4
    """Ready sandboxes in all; 0 turns the pool off."""
    warm_after: int = 3
    """A kind (image, state, limits, environment) is kept ready once it was asked for so often."""
    idle_s: float = 60.0
    """Nobody asked for a kind so long: its ready sandboxes are closed."""
    max_age_s: float = 600.0
    """A ready sandbox is replaced after so long; it is started with a deadline later by as much."""


def _kind(spec: SandboxSpec) -> Hashable:
    """`spec` without what a started sandbox can still be given: labels, deadline, the cap of outputs."""
    plain = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for name in ("labels", "deadline_s"):
        del plain[name]
    plain["limits"] = dataclasses.replace(spec.limits, output_bytes=0)
    plain["env"] = tuple(sorted(spec.env.items()))
    return tuple(plain.items())


@dataclass
class _Ready:
    sandbox: Sandbox
    since: float
    ends_at: float
    """By its lease; monotonic seconds."""

    def lasts(self, seconds: float) -> bool:
        return self.ends_at - time.monotonic() >= seconds


@dataclass
class _Waiting:
    future: asyncio.Future[_Ready]
    deadline_s: float


@dataclass
class _Shelf:
    """Ready sandboxes of one kind, and those who wait for one."""

    spec: SandboxSpec
    asked: int = 0
    asked_at: float = 0.0
    ready: deque[_Ready] = field(default_factory=deque)
    waiting: list[_Waiting] = field(default_factory=list)
    starting: int = 0
    failed: int = 0
    rests_until: float = 0.0

    @property
    def stocking(self) -> int:
        """Starts on their way that nobody waits for."""
        return max(0, self.starting - len(self.waiting))


class SandboxPool(WrappedBackend):
    """See the module."""

    def __init__(self, backend: SandboxBackend, settings: PoolSettings | None = None) -> None:
        super().__init__(backend)
        self.settings = settings or PoolSettings()
        self._shelves: dict[Hashable, _Shelf] = {}
        self._starts: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if self._closed:
            raise SandboxDead("the sandbox pool is closed: its run has ended")
        now = time.monotonic()
        kind = _kind(spec)
        shelf = self._shelves.get(kind)
        if shelf is None:
            shelf = self._shelves[kind] = _Shelf(dataclasses.replace(spec, labels={}))
        if spec.deadline_s > shelf.spec.deadline_s:
            shelf.spec = dataclasses.replace(shelf.spec, deadline_s=spec.deadline_s)
        shelf.asked, shelf.asked_at = shelf.asked + 1, now
        if not self._warm(shelf, now):
            return await self.backend.start(spec)
        return _adopted((await self._take(shelf, spec)).sandbox, spec)

    async def fill(self, spec: SandboxSpec) -> None:
        """Have ready ones of this kind before anybody asks; returns when they are. Raises what a start raises."""
        shelf = self._shelves.setdefault(_kind(spec), _Shelf(dataclasses.replace(spec, labels={})))
        shelf.asked, shelf.asked_at = max(shelf.asked, self.settings.warm_after), time.monotonic()
        missing = max(0, self._target(shelf, time.monotonic()) - len(shelf.ready) - shelf.starting)
        shelf.starting += missing
        made = await asyncio.gather(*(self._make(shelf) for _ in range(missing)), return_exceptions=True)
        for ready in made:
            if isinstance(ready, _Ready):
                self._shelve(shelf, ready)
        for error in made:
            if isinstance(error, BaseException):
                raise error

    async def empty(self) -> None:
        """Close all ready ones; the next asks are as if there had been none before."""
        shelves, self._shelves = list(self._shelves.values()), {}
        for shelf in shelves:
            shelf.asked = 0
            while shelf.ready:
                self._discard(shelf.ready.popleft())
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*self._ends)

    async def _take(self, shelf: _Shelf, spec: SandboxSpec) -> _Ready:
        while shelf.ready:
            ready = shelf.ready.popleft()
            if self._fit(ready) and ready.lasts(spec.deadline_s):
                self._spur(shelf)
                return ready
            self._discard(ready)
        waiter = _Waiting(asyncio.get_running_loop().create_future(), spec.deadline_s)
        shelf.waiting.append(waiter)
        self._spur(shelf)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter in shelf.waiting:
                shelf.waiting.remove(waiter)
            elif not waiter.future.cancelled() and waiter.future.exception() is None:
                self._shelve(shelf, waiter.future.result())
            raise

    # -- stock

    def _warm(self, shelf: _Shelf, now: float) -> bool:
        settings = self.settings
        return settings.ready > 0 and shelf.asked >= settings.warm_after and now - shelf.asked_at < settings.idle_s

    def _target(self, shelf: _Shelf, now: float) -> int:
        """How many of this kind should be ready: the most recently asked for come first, all the same share."""
        warm = [each for each in self._shelves.values() if self._warm(each, now)]
        warm.sort(key=lambda each: -each.asked_at)
        rank = next((at for at, each in enumerate(warm) if each is shelf), None)
        if rank is None:
            return 0
        return max(self.settings.ready // len(warm), int(rank < self.settings.ready))

    def _spur(self, shelf: _Shelf) -> None:
        """Start as many as are waited for and are missing on the shelf."""
        now = time.monotonic()
        stock = 0 if now < shelf.rests_until else self._target(shelf, now) - len(shelf.ready)
        # A start that nobody waits for must not hold up one that somebody does, of whatever kind.
        room = STOCKING_AT_ONCE - sum(each.stocking for each in self._shelves.values())
        count = max(0, len(shelf.waiting) - shelf.starting) + max(0, min(stock - shelf.stocking, room))
        shelf.starting += count
        for _ in range(count):
            _spawn(self._start_one(shelf), self._starts)

    async def _make(self, shelf: _Shelf) -> _Ready:
        """The caller has counted it in `starting`."""
        lives = shelf.spec.deadline_s + self.settings.max_age_s
        began = time.monotonic()
        try:
            sandbox = await self.backend.start(dataclasses.replace(shelf.spec, deadline_s=lives))
        finally:
            shelf.starting -= 1
        shelf.failed = 0
        return _Ready(sandbox, time.monotonic(), began + lives)

    async def _start_one(self, shelf: _Shelf) -> None:
        try:
            ready = await self._make(shelf)
        except Exception as error:
            self._failed(shelf, error)
        else:
            self._shelve(shelf, ready)
            self._spur(shelf)

    def _shelve(self, shelf: _Shelf, ready: _Ready) -> None:
        for waiter in shelf.waiting:
            if not waiter.future.done() and ready.lasts(waiter.deadline_s):
                shelf.waiting.remove(waiter)
                waiter.future.set_result(ready)
                return
        if self._closed or len(shelf.ready) >= self._target(shelf, time.monotonic()):
            self._discard(ready)
        else:
            shelf.ready.append(ready)
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())

    def _failed(self, shelf: _Shelf, error: Exception) -> None:
        """Who waits hears of it, unless enough other starts are on their way; it is theirs to try again."""
        if len(shelf.waiting) > shelf.starting:
            waiter = shelf.waiting.pop(0)
            if not waiter.future.done():
                waiter.future.set_exception(error)
                return
        shelf.failed += 1
        rest = min(2.0**shelf.failed, _LONGEST_REST_S)
        shelf.rests_until = time.monotonic() + rest
        log.warning("a sandbox could not be made ready (%s); the next try is in %.0f s", error, rest)

    def _fit(self, ready: _Ready) -> bool:
        return ready.sandbox.alive and time.monotonic() - ready.since < self.settings.max_age_s

    async def _tend(self) -> None:
        """Close what is too old, dead or of a kind that nobody asks for any more; start what is missing."""
        while not self._closed:
            await asyncio.sleep(_TEND_S)
            now = time.monotonic()
            for kind, shelf in list(self._shelves.items()):
                keep = self._target(shelf, now)
                fit = [ready for ready in shelf.ready if self._fit(ready)]
                for ready in [each for each in shelf.ready if not self._fit(each)] + fit[keep:]:
                    self._discard(ready)
                shelf.ready = deque(fit[:keep])
                if shelf.ready or shelf.waiting or shelf.starting or self._warm(shelf, now):
                    self._spur(shelf)
                elif now - shelf.asked_at > self.settings.idle_s:
                    del self._shelves[kind]

    def _discard(self, ready: _Ready) -> None:
        _spawn(ready.sandbox.close(), self._ends)

    async def drop_state(self, state: str) -> None:
        for kind in [kind for kind, shelf in self._shelves.items() if shelf.spec.state == state]:
            for ready in self._shelves.pop(kind).ready:
                await ready.sandbox.close()
        await super().drop_state(state)

    async def close(self) -> None:
        self._closed = True
        if self._tending is not None:
            self._tending.cancel()
        for shelf in self._shelves.values():
            for waiter in shelf.waiting:
                if not waiter.future.done():
                    error = SandboxDead("the sandbox pool was closed while a sandbox was waited for")
                    waiter.future.set_exception(error)
            for ready in shelf.ready:
                self._discard(ready)
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*self._ends)
        await super().close()


def _spawn(work: Coroutine[Any, Any, None], kept: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work)
    kept.add(task)
    task.add_done_callback(kept.discard)


_expiring: set[asyncio.Task[None]] = set()


def _adopted(sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
    """Give a ready sandbox to a caller: from now on it is one of `spec`."""
    sandbox.adopt(spec)
    loop = asyncio.get_running_loop()
    loop.call_later(spec.deadline_s, _expire, weakref.ref(sandbox))
    return sandbox


def _expire(sandbox: weakref.ref[Sandbox]) -> None:
    """The deadline by the spec; the sandbox's own lease, for when there is no driver any more, is a little later."""
    if (left := sandbox()) is not None:
        _spawn(left.close(), _expiring)
