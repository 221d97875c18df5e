"""How late an event loop runs: what one episode does to all others.

Promises: always on and cheap (a beat every 20 ms); every delay goes into the histogram, the worst is kept; a stall
in which the loop's own thread worked longer than `limit_s` (where it waited for a busy machine, it did not) is counted
and told once, with the place in the code where it stood.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

BEAT_S = 0.02
LIMIT_S = 0.2
BOUNDS_MS = (10, 50, 100, 200, 500, 1000, 5000)
_KEPT = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stall:
    seconds: float
    where: str
    """Where the loop stood, `file:line function`, innermost of this project; empty where nothing was seen."""


@dataclass
class Pulse:
    """Delays of one event loop so far."""

    beats: int = 0
    worst_s: float = 0.0
    stalls: int = 0
    """Delays over the limit."""
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    """By `BOUNDS_MS`; the last one counts what is longer."""
    longest: list[Stall] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self.beats += 1
        self.worst_s = max(self.worst_s, seconds)
        self.counts[sum(seconds * 1000 > bound for bound in BOUNDS_MS)] += 1

    def summary(self) -> dict[str, Any]:
        """For a run's report."""
        names = [f"<= {bound} ms" for bound in BOUNDS_MS] + [f"> {BOUNDS_MS[-1]} ms"]
        return {
            "worst_ms": round(1000 * self.worst_s, 1),
            "stalls": self.stalls,
            "limit_ms": round(1000 * LIMIT_S),
            "delays": {name: count for name, count in zip(names, self.counts, strict=True) if count},
            "longest": [{"ms": round(1000 * stall.seconds, 1), "where": stall.where} for stall in self.longest],
        }

    def line(self) -> str:
        """For a live view."""
        stalled = f", {self.stalls} over {1000 * LIMIT_S:.0f} ms" if self.stalls else ""
        return f"worst delay {1000 * self.worst_s:.0f} ms{stalled}"


class PulseWatch:
    """Async context manager around what the loop does; `pulse` is what was seen. `alarm` gets each stall."""

    def __init__(self, alarm: Callable[[Stall], None] | None = None, *, limit_s: float = LIMIT_S) -> None:
        self.pulse = Pulse()
        self._alarm, self._limit = alarm, limit_s
        self._thread_id = 0
        self._due = float("inf")
        self._seen: tuple[float, str] = (0.0, "")
        self._over = threading.Event()

    async def __aenter__(self) -> PulseWatch:
        self._thread_id = threading.get_ident()
        self._task = asyncio.create_task(self._beat(), name="pulse")
        self._looker = threading.Thread(target=self._look, name="pulse", daemon=True)
        self._looker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._due = due = time.monotonic() + BEAT_S
            worked = time.thread_time()
            await asyncio.sleep(BEAT_S)
            late = max(0.0, time.monotonic() - due)
            self.pulse.add(late)
            if late > self._limit and time.thread_time() - worked > self._limit:
                self._stalled(late, due)

    def _stalled(self, late: float, due: float) -> None:
        seen, where = self._seen
        stall = Stall(late, where if seen == due else "")
        pulse = self.pulse
        pulse.stalls += 1
        pulse.longest = sorted([*pulse.longest, stall], key=lambda each: -each.seconds)[:_KEPT]
        _log.warning("the episodes' event loop stood still for %.0f ms %s", 1000 * late, stall.where)
        if self._alarm is not None:
            self._alarm(stall)

    def _look(self) -> None:
        """In a thread: where the loop stands when it is late. It cannot say so itself."""
        while not self._over.wait(self._limit / 4):
            due = self._due
            if time.monotonic() - due > self._limit / 2 and self._seen[0] != due:
                self._seen = (due, _place(sys._current_frames().get(self._thread_id)))


def _place(frame: FrameType | None) -> str:
    """The innermost frame, and the innermost of this project's packages where that is another one."""
    inner = _named(frame)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] not in _PACKAGES:
        frame = frame.f_back
    ours = _named(frame)
    return inner if not ours or ours == inner else f"{ours}, in {inner}"


_PACKAGES = ("data", "envs", "agent", "trainer", "eval", "sao")


def _named(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno} {frame.f_code.co_name}"
