"""Named points where a test may kill this process, as a power cut or the kernel would: no handlers, no clean-up.

`SAO_CRASH_AT=name` or `name:n` (the n-th time this process passes it; default 1) raises SIGKILL there. Unset, a point
is one dictionary look-up. Nothing else of the program reads the variable, and no point does anything else.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "SAO_CRASH_AT"

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Dies here when the variable names this point and this is its n-th passing."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, count = wanted.partition(":")
    if point != name:
        return
    _passed[name] += 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
