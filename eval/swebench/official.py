"""The official package (`swebench`, extra `eval`) in a process of its own.

Promises: importing it costs this process nothing; it reads logs as UTF-8 whatever the locale; a log that makes its
parsers run wild or crash is a `HarnessFault` after a time limit, and the next request gets a fresh process; the version
is checked before anything starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import with_parent
from data.installed import get_extra
from eval.errors import EvalError
from eval.swebench.rows import HarnessRow

AT_LEAST, BELOW = (5, 0, 2), (6,)
ANSWER_S = 120.0
_LINE = 1 << 28


class HarnessFault(RuntimeError):
    """The official package could not judge a log. Never a verdict."""


@dataclass(frozen=True)
class Judged:
    report: Mapping[str, Any]
    """The instance's part of report.json, in the package's own words."""
    statuses: Mapping[str, str]
    """Test id -> outcome, as the package's parser reads the log."""


def harness_version() -> str:
    """Of the installed package. Raises EvalError when it is absent or another than the pinned one."""
    way = f"{get_extra('eval')} installs the pinned one"
    try:
        version = importlib.metadata.version("swebench")
    except importlib.metadata.PackageNotFoundError:
        raise EvalError(f"the official package swebench is not installed: {way}") from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not AT_LEAST <= numbers < BELOW:
        raise EvalError(f"swebench {version} is installed, but verdicts are pinned to >= 5.0.2, < 6: {way}")
    return version


class Harness:
    """Async context manager. Requests are answered one after the other."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self.version = harness_version()
        self.restarts = 0
        self._answer_s = answer_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Harness:
        await self._start()  # its imports go on while the first sandboxes start
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def script(self, row: HarnessRow) -> str:
        """The eval script that the package would run for this row."""
        return str((await self._ask({"op": "script", "row": dict(row.row)}, row.instance_id))["script"])

    async def judge(self, row: HarnessRow, prediction: Mapping[str, Any], log: Path) -> Judged:
        """The package's verdict on a saved log (absolute path, UTF-8). Raises HarnessFault."""
        request = {"op": "report", "row": dict(row.row), "prediction": dict(prediction), "log": str(log)}
        reply = await self._ask(request, row.instance_id)
        return Judged(reply["report"][row.instance_id], reply["statuses"])

    async def classify(self, instance_id: str, log: Path) -> tuple[str, str]:
        """(reason, tier) that the package sees in a saved log for a failure; empty where it sees none."""
        reply = await self._ask({"op": "classify", "log": str(log)}, instance_id)
        return reply["reason"], reply["tier"]

    async def _ask(self, request: Mapping[str, Any], instance_id: str) -> dict[str, Any]:
        async with self._lock:
            process = self._process or await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
                await process.stdin.drain()
                line = await asyncio.wait_for(process.stdout.readline(), self._answer_s)
                reply = json.loads(line) if line else None
            except TimeoutError:
                await self._stop()
                raise HarnessFault(
                    f"{instance_id}: swebench {self.version} gave no answer within {self._answer_s:g} s; it was ended"
                ) from None
            except (OSError, ValueError) as error:
                await self._stop()
                raise HarnessFault(f"{instance_id}: swebench's process broke: {error}") from error
            except BaseException:  # cancelled between question and answer: the answer must not meet another question
                await self._stop()
                raise
            if reply is None:
                await self._stop()
                raise HarnessFault(f"{instance_id}: swebench's process ended without an answer")
        if "error" in reply:
            raise HarnessFault(f"{instance_id}: swebench {self.version} says {reply['error']}")
        return reply

    async def _start(self) -> asyncio.subprocess.Process:
        worker = Path(__file__).with_name("official_worker.py")
        self._process = await asyncio.create_subprocess_exec(
            *with_parent.command(str(worker), options=("-X", "utf8")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # killed as a group
            limit=_LINE,
        )
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        self.restarts += 1
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        if self._process is not None:
            await self._stop()
            self.restarts -= 1
