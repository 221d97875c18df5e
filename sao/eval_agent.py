"""Between an agent's episodes and their grading: the official verdict as reward, patches as predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from data.log import TrajectoryLog
from data.task import Task
from data.trajectory import Status
from envs.environment import EnvironmentFault, Grade
from envs.swe import Verifier
from eval.swebench.grade import Grader
from eval.swebench.outcome import Verdict
from eval.swebench.predictions import Prediction, write_predictions
from eval.swebench.rows import HarnessRow

PREDICTIONS = "predictions.jsonl"


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
