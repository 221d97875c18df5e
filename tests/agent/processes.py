"""Is a process still there?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: Sequence[int], within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
