"""Does a task tell right from wrong? Runs its reference fix and no fix at all, in real sandboxes.

`measure` computes FAIL_TO_PASS and PASS_TO_PASS for a draft row; `validate` checks a finished row.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from dataclasses import dataclass

from data.task import Task, TaskError
from envs.environment import Grade
from envs.sandbox.contract import SandboxBackend
from envs.swe.environment import SweLimits, grade_patch, run_fresh
from envs.swe.guard.changes import FileChange, parts_of
from envs.swe.guard.judged import Judged, is_test
from envs.swe.parsers import Outcome
from envs.swe.row import SweRow, read_row

_NAMED = re.compile(r"(?:^|/)(?:test_[^/]*\.py|[^/]*_tests?\.py|[^/]*_test\.go|[^/]*\.(?:test|spec)\.[jt]sx?)$")
"""A product has files called test.py and folders called test (Django, NumPy): these names alone say nothing."""
_GOOD = (Outcome.PASSED, Outcome.XFAIL)


@dataclass(frozen=True)
class Validation:
    """`usable`: the reference fix is graded 1 every time and doing nothing 0 every time."""

    task_id: str
    gold: tuple[Grade, ...]
    empty: tuple[Grade, ...]
    tests_in_fix: tuple[str, ...] = ()
    source: Grade | None = None
    """Of the reference fix without `tests_in_fix`; None where it holds no tests."""

    @property
    def usable(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        found = []
        if any(grade.reward != 1.0 for grade in self.gold):
            bad = next(grade for grade in self.gold if grade.reward != 1.0)
            found.append(f"the reference fix is not graded as solved: {bad.detail['reason']}")
        if any(grade.reward != 0.0 for grade in self.empty):
            found.append("doing nothing is graded as solved")
        if not found and self.source is not None and self.source.reward != 1.0:
            found.append(
                f"the reference fix holds tests ({', '.join(self.tests_in_fix)}) and is not graded as solved without "
                f"them ({self.source.detail['reason'] or 'tests fail'}): nobody can solve the task who does not write "
                "the same tests. Tests belong into test_patch (sao tasks pack: --tests)"
            )
        for name, grades in (("the reference fix", self.gold), ("doing nothing", self.empty)):
            verdicts = {
                (tuple(g.detail["fail_to_pass"]["passed"]), tuple(g.detail["pass_to_pass"]["passed"])) for g in grades
            }
            if len(verdicts) > 1:
                found.append(f"repeated runs of {name} disagree: the tests are flaky")
        return tuple(found)


async def validate(
    task: Task, backend: SandboxBackend, *, repeats: int = 1, limits: SweLimits | None = None
) -> Validation:
    """Raises TaskError for a row without a reference fix, SandboxError and EnvironmentFault for faults on our side."""
    row = read_row(task)
    if not row.patch.strip():
        raise TaskError(f"task {task.task_id}, column patch: is empty; validation needs the reference fix")
    gold = [await grade_patch(row, backend, row.patch, limits) for _ in range(repeats)]
    empty = [await grade_patch(row, backend, b"", limits) for _ in range(repeats)]
    source, tests = source_part(row)
    alone = None
    if tests:
        alone = await grade_patch(row, backend, source, limits) if source.strip() else empty[0]
    return Validation(task.task_id, tuple(gold), tuple(empty), tests, alone)


def source_part(row: SweRow) -> tuple[bytes, tuple[str, ...]]:
    """The reference fix without what belongs to tests, and which files that is: modules named as tests are, judged
    modules, and in the folders of judged tests what is new or no module (their data)."""
    parts = parts_of(row.patch)
    judged = Judged(row, base={path for change, _ in parts for path in change.paths})
    modules = {path for path in judged.files if is_test(path)}
    folders = tuple(f"{folder}/" for folder in {posixpath.dirname(path) for path in modules} if folder)

    def held(change: FileChange) -> bool:
        path = change.new or change.old or ""
        data = path.startswith(folders) and (change.old is None or not path.endswith(".py"))
        return data or path in modules or _NAMED.search(path) is not None

    tests = [change.new or change.old or "" for change, _ in parts if held(change)]
    return b"".join(part for change, part in parts if not held(change)), tuple(tests)


@dataclass(frozen=True)
class TestLists:
    __test__ = False  # not a test class for pytest

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    left_out: tuple[str, ...]
    """Tests that fail with the fix too, or break by it: in neither list."""


async def measure(task: Task, backend: SandboxBackend, *, limits: SweLimits | None = None) -> TestLists:
    """Run a draft's tests without and with its fix. Raises TaskError when the fix turns no test green."""
    row = read_row(task, need_tests=False)
    limits = limits or SweLimits()
    before = await run_fresh(row, backend, b"", limits)
    after = await run_fresh(row, backend, row.patch, limits)
    if after.reason or after.parsed.suspicious:
        why = after.reason or "; ".join(after.parsed.suspicious)
        raise TaskError(f"task {task.task_id}: with the fix, {why}. End of the log:\n{after.log[-2000:]}")
    passes = [name for name, outcome in after.parsed.outcomes.items() if outcome in _GOOD]
    fail_to_pass = [name for name in passes if before.parsed.outcomes.get(name) not in (*_GOOD, Outcome.SKIPPED)]
    if not fail_to_pass:
        raise TaskError(
            f"task {task.task_id}: no test fails before the fix and passes after it "
            f"({len(after.parsed.outcomes)} tests seen). Does test_command run the new tests? "
            f"End of the log with the fix:\n{after.log[-2000:]}"
        )
    pass_to_pass = [name for name in passes if before.parsed.outcomes.get(name) in _GOOD]
    left_out = [name for name in after.parsed.outcomes if name not in {*fail_to_pass, *pass_to_pass}]
    return TestLists(tuple(sorted(fail_to_pass)), tuple(sorted(pass_to_pass)), tuple(sorted(left_out)))


def with_lists(task: Task, lists: TestLists) -> Task:
    row = {**task.row, "FAIL_TO_PASS": list(lists.fail_to_pass), "PASS_TO_PASS": list(lists.pass_to_pass)}
    return dataclasses.replace(task, row=row)
