"""Ends every process of a sandbox from this machine's side, when its own end does not come.

Promises: SIGKILL reaches every process of the table whose init is given, round after round until none is left, so that
busy ones beside it do not keep its init from ending (which the kernel has end the others, when it gets its turn); what
ran at idle priority gets an ordinary turn to end in. Never a process of this machine's own table; a process number that
was used again in the meantime is not touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


class Table:
    """A sandbox's process table, held: while this is open its number is no other's. Context manager."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.number = os.fstat(descriptor).st_ino

    @classmethod
    def of(cls, pid: int) -> Table | None:
        """None when it cannot be seen, or is this machine's own."""
        try:
            table = cls(os.open(PROC / str(pid) / "ns" / "pid", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        if table.number != _number("self"):
            return table
        table.close()
        return None

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def members(self) -> list[int]:
        """Those that have not ended."""
        found = (int(entry) for entry in os.listdir(PROC) if entry.isdigit())
        return [pid for pid in found if _number(pid) == self.number and not _ghost(pid)]

    def end(self, seconds: float = 10.0) -> bool:
        """Kill all its processes; True when none is left. Blocking."""
        end, pause = time.monotonic() + seconds, 0.001
        while members := self.members():
            for pid in members:
                self._kill(pid)
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(0.05, 2 * pause)
        return True

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            watch = os.pidfd_open(pid)
            try:
                if _number(pid) == self.number:  # from here on the process number is the watched one's, or nobody's
                    with contextlib.suppress(OSError):
                        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
                    signal.pidfd_send_signal(watch, signal.SIGKILL)
            finally:
                os.close(watch)


def _number(pid: int | str) -> int | None:
    try:
        return os.stat(PROC / str(pid) / "ns" / "pid").st_ino
    except OSError:
        return None


def _ghost(pid: int) -> bool:
    """It only waits to be collected. Where the first thread alone has ended, others go on."""
    try:
        words = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return True
    return not words or (words[0] in "ZX" and int(words[17]) < 2)
