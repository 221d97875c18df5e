"""The SWE environment: a repository with a problem, tools to work on it, hidden tests at the end.

Order: `reset` starts a sandbox, puts the repository and proves its hygiene; `step` runs one tool call; `grade` reads
the agent's changes out, closes nothing the agent could still need, and judges the resulting patch in a second, fresh
sandbox. The driver takes the diff, never the model. Infrastructure faults raise (SandboxError, EnvironmentFault).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from data.task import Task, TaskError
from envs.environment import Environment, EnvironmentFault, Grade, Observation, ToolCall
from envs.sandbox.contract import (
    BY_COMMANDS,
    PathRefused,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxLimits,
    SandboxSpec,
)
from envs.swe.diff import Bench, Diff, PatchTooLarge, make_diff
from envs.swe.git import AGENT_ENV
from envs.swe.grading import TestRun, diff_and_test, judge, judge_aside, run_tests
from envs.swe.package_parsers import check_parser
from envs.swe.parsers import ParsedLog
from envs.swe.provided import Provided, start_provided
from envs.swe.repository import record
from envs.swe.row import BASE_IMAGE, SweRow, read_row
from envs.swe.settle import installed_env
from envs.swe.submodules import refusal, summary
from envs.swe.worktree import Changes, Snapshot, Unreadable, collect
from envs.tools.toolset import ToolSet


@dataclass(frozen=True)
class SweLimits:
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    episode_s: float = 3600.0
    """Deadline of the agent's sandbox."""
    eval_timeout_s: float = 300.0
    """For the hidden tests, unless the row has its own eval_timeout_s."""
    patch_bytes: int = 32 << 20
    """Changed files together; more is graded 0."""
    log_bytes: int = 32 << 20
    """Test output kept for the parser; beyond it the log counts as damaged."""


Verifier = Callable[[bytes], Awaitable[Grade]]
"""Judges a finished patch; raises EnvironmentFault or SandboxError when it cannot."""


class SWEEnvironment(Environment):
    """One episode on one task. The task is checked here: a row that cannot run raises TaskError before any sandbox.

    `verifier` judges the agent's patch instead of this room's own parsers (benchmarks have their official ones)."""

    def __init__(
        self,
        task: Task,
        backend: SandboxBackend,
        toolset: ToolSet | None = None,
        limits: SweLimits | None = None,
        *,
        verifier: Verifier | None = None,
    ) -> None:
        self.row = read_row(task)
        if verifier is None:
            check_parser(self.row.log_parser)
        self._verifier = verifier
        check_backend(self.row, backend)
        self.backend = backend
        self.toolset = toolset or ToolSet()
        self.limits = limits or SweLimits()
        self.tools = self.toolset.schemas
        self.sandbox: Sandbox | None = None
        self._snapshot: Snapshot | None = None
        self._commit = ""
        """The agent's base commit, which some rows leave to their image."""
        self._env: Mapping[str, str] | None = None
        self._told = False
        """The agent was told once that its changes in submodules would be lost."""

    async def reset(self) -> str:
        if self.sandbox is not None:
            raise EnvironmentFault(f"task {self.row.task_id}: reset was called twice; make a new environment")
        with _our_faults(self.row):
            spec = agent_spec(self.row, self.limits)
            self.sandbox, clean, settled = await start_provided(self.backend, spec, self.row, for_agent=True)
            self._snapshot = await record(self.sandbox, settled, clean)
            self._commit = settled.base_commit
            self._env = await installed_env(self.sandbox, settled)
        return self.row.problem_statement

    async def step(self, call: ToolCall) -> Observation:
        sandbox, before = self._ready("step")
        observation = await self.toolset.run(call, sandbox, self.row.repo_dir, self._env)
        if observation.done and not self._told and any(entry.mode == "160000" for entry in before.base.values()):
            with contextlib.suppress(Unreadable, *BY_COMMANDS):  # `grade` meets it again, and judges it
                changes = await collect(sandbox, self.row.repo_dir, before, max_bytes=self.limits.patch_bytes)
                if changes.lost:
                    self._told = True
                    return Observation(refusal(changes.lost), error="in_submodule")
        return observation

    async def grade(self) -> Grade:
        sandbox, before = self._ready("grade")
        started = time.monotonic()
        spec = grader_spec(self.row, self.limits)
        fresh_start = asyncio.create_task(start_provided(self.backend, spec, self.row))
        try:
            changes: Changes | Unreadable
            try:
                changes = await collect(sandbox, self.row.repo_dir, before, max_bytes=self.limits.patch_bytes)
            except Unreadable as error:
                changes = error
            except BY_COMMANDS as error:  # what the agent left running, if not an earlier command
                changes = Unreadable(f"the agent's files cannot be read: {error}")
        except BaseException:
            await _discard(fresh_start)
            raise
        if isinstance(changes, Unreadable):
            await _discard(fresh_start)
            return await self._unread(str(changes))
        try:
            if self._verifier is not None:
                return _named(await self._verifier(await self._patch(fresh_start, before, changes)), changes)
            diff, run = await self._test(fresh_start, before, changes)
        except PatchTooLarge as error:
            return await self._unread(str(error))
        grade = await judge_aside(self.row, run, diff.patch)
        detail: dict[str, Any] = {
            **grade.detail,
            "ignored": [path.decode("utf-8", "backslashreplace") for path in diff.ignored[:50]],
            "seconds": round(time.monotonic() - started, 4),
        }
        return _named(dataclasses.replace(grade, detail=detail), changes)

    async def _unread(self, reason: str) -> Grade:
        if self._verifier is None:
            return _failed(self.row, reason)
        grade = await self._verifier(b"")
        return dataclasses.replace(grade, detail={**grade.detail, "reason": reason})

    async def _test(
        self, fresh_start: asyncio.Task[Provided], before: Snapshot, changes: Changes
    ) -> tuple[Diff, TestRun]:
        with _our_faults(self.row):
            fresh, row = await self._same(fresh_start)
            async with fresh:
                return await diff_and_test(
                    fresh,
                    row,
                    before,
                    changes,
                    timeout_s=_eval_timeout(self.row, self.limits),
                    max_bytes=self.limits.patch_bytes,
                )

    async def _patch(self, fresh_start: asyncio.Task[Provided], before: Snapshot, changes: Changes) -> bytes:
        with _our_faults(self.row):
            fresh, row = await self._same(fresh_start)
            async with fresh:
                bench = Bench(f"/tmp/.driver-{secrets.token_hex(8)}")
                return (await make_diff(fresh, row, before, changes, bench, max_bytes=self.limits.patch_bytes)).patch

    async def _same(self, fresh_start: asyncio.Task[Provided]) -> tuple[Sandbox, SweRow]:
        """The grader's sandbox and row; its image must be the one that the agent's sandbox had."""
        fresh, _, row = await fresh_start
        if row.base_commit != self._commit:
            await fresh.close()
            raise EnvironmentFault(
                f"task {row.task_id}: the image {row.image} holds commit {row.base_commit} now, the agent began at "
                f"{self._commit}: the image was replaced during the episode"
            )
        return fresh, row

    async def close(self) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()

    def _ready(self, verb: str) -> tuple[Sandbox, Snapshot]:
        if self.sandbox is None or self._snapshot is None:
            raise EnvironmentFault(f"task {self.row.task_id}: {verb} needs reset first")
        return self.sandbox, self._snapshot


async def grade_patch(row: SweRow, backend: SandboxBackend, patch: bytes, limits: SweLimits | None = None) -> Grade:
    """Judge a patch from anywhere (reference fix, prediction file): no agent's sandbox is involved."""
    limits = limits or SweLimits()
    started = time.monotonic()
    run = await run_fresh(row, backend, patch, limits)
    grade = await judge_aside(row, run, patch)
    return dataclasses.replace(grade, detail={**grade.detail, "seconds": round(time.monotonic() - started, 4)})


async def run_fresh(row: SweRow, backend: SandboxBackend, patch: bytes, limits: SweLimits) -> TestRun:
    """The row's tests on `patch`, in a fresh sandbox."""
    check_backend(row, backend)
    with _our_faults(row):
        fresh, before, settled = await start_provided(backend, grader_spec(row, limits), row)
        async with fresh:
            timeout_s = _eval_timeout(row, limits)
            return await run_tests(fresh, settled, patch, timeout_s=timeout_s, base=before.base)


@contextlib.contextmanager
def _our_faults(row: SweRow) -> Iterator[None]:
    """Where only the driver acts, a path that cannot be written or read is an infrastructure fault."""
    try:
        yield
    except (OSError, PathRefused, Unreadable) as error:
        raise EnvironmentFault(
            f"task {row.task_id}: {type(error).__name__} in the driver's own work: {error}"
        ) from error


def _eval_timeout(row: SweRow, limits: SweLimits) -> float:
    return row.eval_timeout_s or limits.eval_timeout_s


def check_backend(row: SweRow, backend: SandboxBackend) -> None:
    """Raises TaskError where `backend` cannot run `row`."""
    if backend.name == "embedded" and not row.portable:
        raise TaskError(
            f"task {row.task_id} needs its image {row.image}, which only the Docker sandbox can run. Use --sandbox "
            "docker; or, if its repository is in the row (files or bundle) and python3 and git are all its tests "
            'need, set "portable": true in the row'
        )


def agent_spec(row: SweRow, limits: SweLimits) -> SandboxSpec:
    return _spec(row, limits.sandbox, limits.episode_s)


def grader_spec(row: SweRow, limits: SweLimits) -> SandboxSpec:
    """Test logs are larger than what an agent should read; time is bounded by the tests' own limit."""
    wide = dataclasses.replace(limits.sandbox, output_bytes=max(limits.log_bytes, limits.sandbox.output_bytes))
    return _spec(row, wide, _eval_timeout(row, limits) + 1800.0)


def _spec(row: SweRow, limits: SandboxLimits, deadline_s: float) -> SandboxSpec:
    env: Mapping[str, str] = dict(AGENT_ENV)
    return SandboxSpec(
        image=row.image or BASE_IMAGE,
        workdir=row.repo_dir,
        limits=limits,
        deadline_s=deadline_s,
        env=env,
        labels={"task": row.task_id},
    )


def _named(grade: Grade, changes: Changes) -> Grade:
    """`grade` with what the agent changed in submodules, which the patch does not hold."""
    if not changes.lost:
        return grade
    note = f"{len(changes.lost)} changes in submodules are not in the patch: {summary(changes.lost)}"
    reason = str(grade.detail.get("reason") or "")
    more = {"reason": f"{reason}; {note}" if reason else note} if grade.reward < 1.0 else {}
    lost = [path.decode("utf-8", "backslashreplace") for path in changes.lost[:50]]
    return dataclasses.replace(grade, detail={**grade.detail, **more, "lost": lost, "lost_count": len(changes.lost)})


def _failed(row: SweRow, reason: str) -> Grade:
    """What the agent left cannot even be read: graded 0, with no patch."""
    return judge(row, TestRun(ParsedLog(), "", -1, 0.0, reason), b"")


async def _discard(starting: asyncio.Task[Provided]) -> None:
    """A sandbox that is not needed any more, started or not."""
    try:
        sandbox, _, _ = await starting
    except (SandboxError, EnvironmentFault, OSError):  # it left nothing, and the caller has its own verdict or error
        return
    await sandbox.close()
