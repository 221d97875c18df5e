"""Whether two answers mean the same, by math-verify (extra `eval`) in processes that can be killed.

Promises: importing this costs nothing; one answer takes at most `cpu_s` processor seconds and a gigabyte, whatever it
holds, and neither crashes nor holds up the caller's loop; what was not decided within that is never called equal; a
worker that gives no sign of life for `ANSWER_S` is a `GraderFault`, never a verdict. The limit counts processor time,
so that verdicts do not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import importlib.util
import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import with_parent
from data.installed import get_extra
from envs.environment import EnvironmentFault
from envs.maths.answer import MAX_ANSWER_CHARS, TOO_LONG, integer_of

CPU_S = 1.0
ANSWER_S = 60.0
START_S = 300.0
_CACHED = 50_000
TOO_HARD = "too_hard"
"""Not decided within the limits of time and memory."""


class GraderFault(EnvironmentFault):
    """math-verify's process could not answer. Never a verdict."""


class VerifierMissing(EnvironmentFault):
    """math-verify is not installed."""


@dataclass(frozen=True)
class Comparison:
    equal: bool
    why: str
    """equal, different, unreadable, gold_unreadable, too_long, too_hard, or `failed: ` and an exception's name."""


def require_verifier() -> None:
    """Raises VerifierMissing, without importing it."""
    if importlib.util.find_spec("math_verify") is None:
        raise VerifierMissing(
            "answers that are no plain integers are compared by math-verify, which is not installed: "
            f"{get_extra('eval')} installs the pinned one"
        )


class Comparer:
    """`workers` processes, started when first needed. Safe to use from several threads and event loops."""

    def __init__(self, workers: int = 2, *, cpu_s: float = CPU_S) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="maths")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(cpu_s))
        self._workers = workers
        self._known: collections.OrderedDict[tuple[str, str], Comparison] = collections.OrderedDict()
        self._lock = threading.Lock()

    async def start(self) -> None:
        """Have every worker ready. Raises VerifierMissing, GraderFault."""
        require_verifier()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._warm) for _ in range(self._workers)))

    async def compare(self, gold: str, answer: str) -> Comparison:
        """Does `answer` mean `gold`? Raises VerifierMissing, GraderFault."""
        if len(answer) > MAX_ANSWER_CHARS:
            return Comparison(False, TOO_LONG)
        wanted, given = integer_of(gold), integer_of(answer)
        if wanted is not None and given is not None:
            return Comparison(wanted == given, "equal" if wanted == given else "different")
        if _bare(gold) == _bare(answer):
            return Comparison(True, "equal")
        return await self.verify(gold, answer)

    async def verify(self, gold: str, answer: str) -> Comparison:
        """The same by math-verify alone, without the short ways for integers and equal texts."""
        with self._lock:
            known = self._known.get((gold, answer))
        if known is not None:
            return known
        require_verifier()
        made = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, gold, answer)
        with self._lock:
            self._known[gold, answer] = made
            while len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return made

    def _ask(self, gold: str, answer: str) -> Comparison:
        worker = self._idle.get()
        try:
            return worker.ask(gold, answer)
        finally:
            self._idle.put(worker)

    def _warm(self) -> None:
        worker = self._idle.get()
        try:
            worker.start()
            time.sleep(0.02)  # hold this one until the others have taken theirs
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers. May be called twice; a comparison that runs ends with GraderFault or its verdict."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().stop()


@functools.cache
def shared_comparer() -> Comparer:
    """The process's own: it ends with the process (its workers end when their input does)."""
    return Comparer(workers=max(1, min(4, len(os.sched_getaffinity(0)))))


def _bare(text: str) -> str:
    return "".join(text.split()).strip("$").removesuffix(".").strip("$")


class _Worker:
    """One process; one request at a time."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        process = self._process = subprocess.Popen(
            with_parent.command(
                str(Path(__file__).with_name("verify_worker.py")), str(self._cpu_s), options=("-X", "utf8")
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            start_new_session=True,  # killed as a group; a terminal's Ctrl-C is not for it
        )
        ready = self._read(process, START_S)
        if not ready.get("ready"):
            self.stop()
            raise GraderFault(f"math-verify cannot be used: {ready.get('error', 'its process ended at once')}")
        return process

    def ask(self, gold: str, answer: str) -> Comparison:
        process = self.start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
            process.stdin.flush()
            reply = self._read(process, ANSWER_S)
        except BaseException:  # between question and answer: the answer must not meet another question
            self.stop()
            raise
        if "died" in reply:
            # SIGPROF: its time was up. Anything else is what an answer did to it: memory, or a crash in a library.
            return Comparison(False, TOO_HARD if reply["died"] == signal.SIGPROF else "failed: crash")
        if reply.get("why") == "failed: MemoryError":
            return Comparison(False, TOO_HARD)
        return Comparison(bool(reply["equal"]), str(reply["why"]))

    def _read(self, process: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        line, end = b"", time.monotonic() + limit_s
        try:
            while not line.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
                data = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
                if not data:
                    raise GraderFault(
                        "math-verify's process ended" if ready else f"math-verify gave no answer within {limit_s:g} s"
                    )
                line += data
            return json.loads(line)
        except (OSError, ValueError) as error:
            raise GraderFault(f"math-verify's process broke: {error}") from error
        finally:
            if not line.endswith(b"\n"):
                self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
