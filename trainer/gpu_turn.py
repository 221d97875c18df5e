"""Whose turn it is on a device that trainer and servers share (engine.mode = "colocated").

Two locks of the kernel in the run folder, no state in files: `turn` is held by the side that has the device, `want` by
the trainer from the moment it has a batch until its step is published.

    rollouts  holds turn ·· sees want ── servers sleep ── leaves turn ····· waits for want ── holds turn ── servers wake
    trainer   ·· batch ── holds want ── waits for turn ──────────► step, publish ── leaves turn and want

Promises: never both at once; a side that dies, however, has no lock any more, and the other goes on; the trainer's wait
ends when it is told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.05


class _Lock:
    """One holder at a time, over processes; two of them in one process exclude each other as well."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> bool:
        """Now or not at all."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)


class GpuTurn:
    """One side's view of it. `folder`: of the run."""

    def __init__(self, folder: Path) -> None:
        self._turn, self._want = _Lock(folder / "gpu-turn.lock"), _Lock(folder / "gpu-want.lock")

    def close(self) -> None:
        self._turn.close()
        self._want.close()

    # ---- the trainer's side ----

    @contextlib.contextmanager
    def step(self, stop: Callable[[], bool]) -> Iterator[bool]:
        """The device for one step, with what was published of it; False when `stop` came before it was free."""
        while not self._want.take():
            if stop():
                yield False
                return
            time.sleep(_POLL_S)
        try:
            while not self._turn.take():
                if stop():
                    yield False
                    return
                time.sleep(_POLL_S)
            try:
                yield True
            finally:
                _free_cached_memory()
                self._turn.leave()
        finally:
            self._want.leave()

    # ---- the rollouts' side ----

    async def take(self) -> None:
        """Wait until the trainer neither has nor wants it."""
        while self.wanted() or not self._turn.take():  # noqa: ASYNC110 - a file lock has no event
            await asyncio.sleep(_POLL_S)

    def wanted(self) -> bool:
        if self._want.take():
            self._want.leave()
            return False
        return True

    def give(self) -> None:
        self._turn.leave()


def _free_cached_memory() -> None:
    """What torch keeps for later is memory that the servers cannot have."""
    import gc

    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
