"""Who owns a sandbox: a driver process, named so that a reused process number is not taken for it.

Promises: `owner_alive` says False only when the owner is certainly dead: same machine boot, same process namespace, and
no process of that number and start time. Owners seen from elsewhere are judged by their sandboxes' deadlines alone.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


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
