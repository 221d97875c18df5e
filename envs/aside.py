"""Pure functions in processes of their own, so that no input holds up the episodes of the same event loop.

Promises: the caller's loop goes on; a call that spends more than `cpu_s` processor seconds, or its memory, is ended and
raises `TooHard`; what the function raises is raised here; a process that dies otherwise is an `AsideFault`, never a
result. The limit counts processor time, so that no verdict depends on how busy the machine is. Importing this costs
nothing; processes start with the first call and end when this one does, also when it is killed: at once, or with the
call they are at.

What is small is not worth the way there and back: `aside` runs it here below `INLINE` bytes. So `work` must be linear,
a function of a module, and its arguments and result must be picklable.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pickle
import queue
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from envs.environment import EnvironmentFault

INLINE = 1 << 16
"""Bytes that a linear function reads in a few milliseconds."""
CPU_S = 60.0
MEMORY = 4 << 30
"""Bytes a process may take beyond what its imports took."""
_HEAD = struct.Struct(">Q")
_FOLDER = Path(__file__).resolve().parents[1]

P = ParamSpec("P")
T = TypeVar("T")


class TooHard(ValueError):
    """Not done within the limits of time and memory: what was given is to blame."""


class AsideFault(EnvironmentFault):
    """The process could not answer: this machine is to blame."""


async def aside(size: int, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`work(*arguments, **named)`, elsewhere when the `size` bytes that it has to read are too many for the loop.
    Raises TooHard, AsideFault."""
    if size <= INLINE:
        return work(*arguments, **named)
    return await _shared().run(work, arguments, named)


class Aside:
    """`workers` processes, started when first needed."""

    def __init__(self, workers: int, *, cpu_s: float = CPU_S, memory: int = MEMORY) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="aside")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(cpu_s, memory))

    async def run(self, work: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any] | None = None) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, (work, arguments, named or {}))

    def _ask(self, job: tuple[Any, ...]) -> Any:
        worker = self._idle.get()
        try:
            good, result = worker.ask(pickle.dumps(job, 5))
        finally:
            self._idle.put(worker)
        if good:
            return result
        raise result

    def close(self) -> None:
        """End the processes. May be called twice; a call that runs is waited for."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().stop()


@functools.cache
def _shared() -> Aside:
    return Aside(max(1, min(4, len(os.sched_getaffinity(0)))))


class _Worker:
    """One process; one call at a time."""

    def __init__(self, cpu_s: float, memory: int) -> None:
        self._limits = (cpu_s, memory)
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: bytes) -> tuple[bool, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, job)
            reply = _read(process.stdout)
            if reply is not None:
                return pickle.loads(reply)
            code = process.wait()
        except BaseException as error:  # the answer must not meet another question
            self.stop()
            if not isinstance(error, BrokenPipeError):
                raise
            code = process.returncode
        self.stop()
        if code == -signal.SIGPROF:
            return False, TooHard(f"it takes more than {self._limits[0]:g} processor seconds")
        return False, AsideFault(f"a process that works for the driver ended with code {code}")

    def _start(self) -> subprocess.Popen[bytes]:
        cpu_s, memory = self._limits
        return subprocess.Popen(
            [sys.executable, "-X", "utf8", "-c", f"from envs.aside import serve; serve({cpu_s!r}, {memory!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_FOLDER,  # where `envs` is found
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def serve(cpu_s: float, memory: int) -> None:
    """The process's side: calls in, (did it return, what) out, until the input ends."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not stand between the answers
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (job := _read(asked)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            work, arguments, named = pickle.loads(job)
            reply = pickle.dumps((True, work(*arguments, **named)), 5)
        except MemoryError:
            reply = pickle.dumps((False, TooHard(f"it takes more than {memory >> 20} MiB of memory")))
        except Exception as error:
            reply = _failed(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, reply)
        del job, reply


def _failed(error: Exception) -> bytes:
    """An exception as it was raised, where it survives the way."""
    try:
        reply = pickle.dumps((False, error))
        pickle.loads(reply)
    except Exception:  # one whose class takes other arguments than its text
        return pickle.dumps((False, AsideFault(f"{type(error).__name__}: {error}")))
    return reply


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_HEAD.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    """None at the input's end, also in the middle of a message."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    (size,) = _HEAD.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None
