"""Who owns a sandbox: a driver process, named so that a reused process number is not taken for it.

Promises: `owner_alive` says False only when the owner is certainly dead: same machine boot, same process namespace, and
no process of that number and start time. Owners seen from elsewhere are judged by their sandboxes' deadlines alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

GRACE_S = 60.0
"""How long after its deadline a sandbox is left to end by itself."""
Standing = Literal["in use", "abandoned", "elsewhere"]
"""elsewhere: of another machine, boot or process namespace; its deadline decides."""


@cache
def _place() -> str:
    """This boot of this machine, and the process namespace the numbers belong to."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip().replace('-', '')[:16]}.{space.readlink().name.strip('pid:[]')}"
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str | None:
    """Start time in clock ticks since boot; None when there is no such process (a zombie counts as none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def owner_id() -> str:
    """This process: `<pid>-<start time>-<place>`; fit for a label and for a folder's name."""
    return f"{os.getpid()}-{_start_time(os.getpid())}-{_place()}"


def owner_alive(owner: str) -> bool | None:
    """False: certainly dead. None: cannot be judged from here (another machine, boot or process namespace)."""
    pid, _, rest = owner.partition("-")
    start, _, place = rest.partition("-")
    if not pid.isdigit() or not place or place != _place() or place == "unknown":
        return None
    return _start_time(int(pid)) == start


def standing(owner: str, ends_at: float | None) -> Standing:
    """What may be done with something of `owner` that should be gone at `ends_at` (seconds since the epoch)."""
    alive = owner_alive(owner)
    if alive is False or (ends_at is not None and time.time() > ends_at + GRACE_S):
        return "abandoned"
    return "in use" if alive else "elsewhere"


@dataclass(frozen=True)
class Found:
    """Something of a sandbox that is on this machine now, whoever made it."""

    kind: Literal["container", "volume", "image", "folder", "control group"]
    name: str
    standing: Standing
    owner: str = ""
    run: str = ""
    sandbox: str = ""
    """The sandbox that it is or was part of, where that is known."""
    made_at: float | None = None
    """Seconds since the epoch; None: not known."""
    ends_at: float | None = None
    note: str = ""
    """Its image, its state: for people."""

    @property
    def pid(self) -> int | None:
        """The owner's process number, where that means something here."""
        head = self.owner.partition("-")[0]
        return int(head) if head.isdigit() and self.standing != "elsewhere" else None
