"""A folder that one process writes: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def hold(folder: Path) -> IO[str] | None:
    """Take `folder`, made where it is not there, for this process until what this returns is closed. None: another has
    it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
