"""Runs a command and ends its whole process tree, whoever dies first: `python guard.py GRACE_S COMMAND ARGS...`.

Promises: after a word on standard input or SIGTERM the command gets SIGTERM, and after GRACE_S seconds everything that
descends from it SIGKILL, also what left its session or was orphaned (this process is the subreaper of them all). When
standard input ends without a word (our parent died, however it died), the grace is ORPHANED_S. When the command ends by
itself, what it left behind is killed as well. If this process is itself killed, the kernel kills the command. Linux
only; imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
ORPHANED_S = 1.0
_libc = ctypes.CDLL(None)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    ahead = children(pid)
    while ahead:
        found += ahead
        ahead = [child for parent in ahead for child in children(parent)]
    return found


def kill_all() -> None:
    """Until none is left: a killed parent's children come to us."""
    while living := descendants(os.getpid()):
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is our parent's to judge
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
    while child.poll() is None and not stopping:
        ready, _, _ = select.select([0, wake_out], [], [], 5.0)
        if wake_out in ready:
            os.read(wake_out, 4096)
        if 0 in ready:
            stopping = True
            if not os.read(0, 4096):
                grace_s = min(grace_s, ORPHANED_S)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    code = child.poll()
    kill_all()
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
