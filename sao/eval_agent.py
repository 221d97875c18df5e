"""Between an agent's episodes and their grading: the official verdict as reward, patches as predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from data.log import TrajectoryLog
from data.task import Task
from data.trajectory import Status
from envs.environment import EnvironmentFault, Grade
from envs.swe import Verifier
from eval.page import Section, shortened
from eval.swebench.grade import Grader
from eval.swebench.outcome import Verdict
from eval.swebench.predictions import Prediction, write_predictions
from eval.swebench.rows import HarnessRow
from sao.replay import span_head

PREDICTIONS = "predictions.jsonl"
_SHOWN_OF_A_TRAJECTORY = 80_000


def prediction_of(row: HarnessRow, model: str, patch: bytes) -> Prediction:
    return Prediction(row.instance_id, model, patch.decode("utf-8", "surrogateescape"))


def verifiers(grader: Grader, rows: Sequence[HarnessRow], model: str) -> Callable[[Task], Verifier]:
    """For each task the official verdict on its patch. A fault of ours raises: the episode is tried again."""
    by_id = {row.instance_id: row for row in rows}

    def of(task: Task) -> Verifier:
        async def verify(patch: bytes) -> Grade:
            graded = await grader.grade(by_id[task.task_id], prediction_of(by_id[task.task_id], model, patch))
            if not graded.about_model:
                raise EnvironmentFault(
                    f"{graded.instance_id}: {graded.error or 'environment'}: {graded.reason[-1000:]}"
                )
            detail = {
                "verdict": str(graded.verdict),
                "reason": graded.reason,
                "suspicious": [str(each) for each in graded.suspicious],
                "report": dict(graded.report),
                "seconds": graded.seconds,
            }
            return Grade(float(graded.verdict is Verdict.RESOLVED), detail, patch)

        return verify

    return of


def turns_of(run: Path, decode: Callable[[list[int]], str]) -> dict[str, list[Section]]:
    """For the page: each task's last graded episode, span by span; long ones keep head and tail of every span."""
    turns: dict[str, list[Section]] = {}
    for trajectory in TrajectoryLog(run / "log").read():
        if trajectory.outcome.status is not Status.GRADED:
            continue
        room = max(_SHOWN_OF_A_TRAJECTORY // max(len(trajectory.spans), 1), 400)
        turns[trajectory.identity.task_id] = [
            Section(
                span_head(trajectory, span),
                shortened(decode(trajectory.tokens[span.start : span.end].tolist()), room),
                str(span.kind),
                open=True,
            )
            for span in trajectory.spans
        ]
    return turns


def predictions_of(run: Path, rows: Sequence[HarnessRow], model: str) -> dict[str, Prediction]:
    """The patch of each row's last graded episode, also written to predictions.jsonl in the run folder."""
    by_id = {row.instance_id: row for row in rows}
    made: dict[str, Prediction] = {}
    for trajectory in TrajectoryLog(run / "log").read():
        row = by_id.get(trajectory.identity.task_id)
        if row is not None and trajectory.outcome.status is Status.GRADED:
            made[row.instance_id] = prediction_of(row, model, trajectory.patch)
    if made:
        write_predictions(run / PREDICTIONS, [made[row.instance_id] for row in rows if row.instance_id in made])
    return made
