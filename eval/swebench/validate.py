"""Can a row tell right from wrong here? Its reference fix must be resolved, nothing must not, repeats must agree.

Promises: verdicts are the official ones; a row that fails is named with the reason; rows whose tests look for the
network are named apart (none has one unless it is given to it by name); a fault of ours is no statement about the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.page import shortened
from eval.swebench.grade import Grader, Observer
from eval.swebench.outcome import Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import HarnessRow

GOLD, NOTHING = "gold", "nothing"


@dataclass(frozen=True)
class RowCheck:
    instance_id: str
    gold: tuple[Graded, ...]
    nothing: tuple[Graded, ...]
    digest: str = ""
    """Of the row (`HarnessRow.digest`)."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Runs that say nothing, since something of ours failed."""
        return tuple(
            f"{each.model}: {each.error or each.failure_reason}: {shortened(each.reason, 600)}"
            for each in (*self.gold, *self.nothing)
            if not each.about_model
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the row cannot be used; empty when it can (or when it could not be checked: `faults`)."""
        gold = [each for each in self.gold if each.about_model]
        nothing = [each for each in self.nothing if each.about_model]
        found = []
        if bad := [each for each in gold if each.verdict is not Verdict.RESOLVED]:
            found.append(f"the reference fix is {bad[0].error or bad[0].verdict}: {shortened(bad[0].reason, 600)}")
        if any(each.verdict is Verdict.RESOLVED for each in nothing):
            found.append("doing nothing is resolved")
        for name, runs in (("the reference fix", gold), ("doing nothing", nothing)):
            if len({_lists(each) for each in runs}) > 1:
                found.append(f"repeated runs of {name} disagree: the tests are flaky")
        return tuple(found)

    @property
    def needs_network(self) -> bool:
        """It had one, or its reference fix failed for want of one. What fails without the fix says nothing: it must."""
        return self.with_network or any(each.missed_network for each in self.gold)

    @property
    def with_network(self) -> bool:
        return any(each.network != "none" for each in (*self.gold, *self.nothing))

    @property
    def usable(self) -> bool:
        return not self.problems and not self.faults


def _lists(graded: Graded) -> str:
    return repr((str(graded.verdict), graded.report.get("tests_status")))


def check_plan(rows: Sequence[HarnessRow], repeats: int) -> list[tuple[HarnessRow, Prediction]]:
    """What is to be graded. Raises TaskError for a row without a reference fix."""
    plan = []
    for row in rows:
        patch = row.swe.patch.decode("utf-8", "surrogateescape")
        for number in range(repeats):
            plan.append((row, Prediction(row.instance_id, f"{GOLD}-{number}", patch)))
            plan.append((row, Prediction(row.instance_id, f"{NOTHING}-{number}", "", unpatched=True)))
    return plan


async def check_rows(
    grader: Grader, rows: Sequence[HarnessRow], *, repeats: int = 1, observer: Observer | None = None
) -> list[RowCheck]:
    """Resumable like any grading: verdicts that stand in the grader's folder are not made again."""
    plan = check_plan(rows, repeats)
    made = await grader.run(plan, observer)
    checks = []
    for row in rows:
        mine = [each for (one, _), each in zip(plan, made, strict=True) if one is row]
        gold = tuple(each for each in mine if each.model.startswith(GOLD))
        nothing = tuple(each for each in mine if each not in gold)
        checks.append(RowCheck(row.instance_id, gold, nothing, row.digest()))
    return checks


def skip_list(checks: Sequence[RowCheck], **facts: Any) -> Mapping[str, Any]:
    """For `--skip`: the rows that cannot be used, with their reasons."""
    return {
        "skip": {each.instance_id: list(each.problems) for each in checks if each.problems},
        "not_checked": {each.instance_id: list(each.faults) for each in checks if each.faults and not each.problems},
        "flagged": {
            each.instance_id: sorted({str(one) for graded in each.gold for one in graded.suspicious})
            for each in checks
            if any(graded.suspicious for graded in each.gold)
        },
        "need_network": sorted(each.instance_id for each in checks if each.needs_network),
        "checked_with_network": sorted(each.instance_id for each in checks if each.with_network),
        "usable": sum(each.usable for each in checks),
        "checked": len(checks),
        "good": {each.instance_id: each.digest for each in checks if each.usable},
        **facts,
    }
