"""Runs a Python file that ends at once when its parent does: `python with_parent.py FILE ARGS...`.

Promises: when the other end of standard input is closed (the parent died, however it died, or closed it), FILE's
process group is killed within milliseconds, whatever it does: computing in C, importing, waiting for a lock. There is
no moment in which a parent's death is missed: the closed end stays closed. A worker that ends by itself leaves nothing.

The watch is a process of its own, forked before anything is imported: a thread would wait for the interpreter's lock,
and the kernel's own signal (PR_SET_PDEATHSIG) comes when the parent's *thread* ends. Start FILE with `stdin=PIPE,
start_new_session=True`. Imports the standard library alone, and little of that.
"""

from __future__ import annotations

import os
import select
import signal
import sys

_LOOK_MS = 1000


def watch() -> None:
    """Fork the watch of this process's standard input."""
    worker = os.getpid()
    if os.fork():
        return
    try:
        # What it holds open would keep the ends of others' pipes open when the worker is gone.
        os.closerange(1, os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 256)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        poll = select.poll()
        poll.register(0, 0)  # asks for nothing: told is only that the other end is closed
        while os.getppid() == worker:
            if poll.poll(_LOOK_MS):
                group = os.getpgid(worker)
                os.killpg(group, signal.SIGKILL) if group == worker else os.kill(worker, signal.SIGKILL)
    except OSError:  # the worker has ended
        pass
    finally:
        os._exit(0)


def command(file: str | None, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs `file` so."""
    return [sys.executable, *options, __file__, str(file), *arguments]


def main() -> None:
    watch()
    import runpy

    del sys.argv[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
