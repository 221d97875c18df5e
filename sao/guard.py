"""The contamination guard of the training commands (`data.contamination`): what they are to train on, before they do.

Promises: a run's log is trained on only when the run's own tasks can be read again and none belongs to an evaluation
set; a log without its run folder is judged by the task ids of its trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from data.contamination import SUITES, EvaluationTask, evaluation_tasks, refuse_evaluation_tasks
from data.task import Task, TaskError
from sao.paths import UserError
from sao.rundir import read_config


def warn_of_benchmark(tasks: Sequence[Task], console: Console) -> None:
    """Rolling out a benchmark's tasks is allowed and said aloud: nothing of it can be trained on."""
    if found := list(evaluation_tasks(tasks)):
        task, name, _ = found[0]
        console.print(
            f"[bold red]{len(found)} of {len(tasks)} tasks belong to an evaluation set[/bold red] (the first is "
            f"{task.task_id}, {name}): these trajectories are for looking and scoring, training refuses them.",
            highlight=False,
        )


def refuse_evaluation_run(folder: Path) -> None:
    """Raises EvaluationTask; UserError when it cannot be told what the run's tasks were."""
    from sao.assemble import tasks_of

    config = read_config(folder)
    if config.tasks.name in SUITES:
        raise EvaluationTask(f"{folder} is a run of {config.tasks.name}, an evaluation set: it is never trained on")
    if config.tasks.name == "micro-swe" and not config.tasks.path:
        return  # generated here
    try:
        tasks = tasks_of(config)
    except TaskError as error:
        raise UserError(
            f"{folder} was made on tasks that cannot be read again ({error}), so it cannot be told whether they belong "
            "to an evaluation set. Put the file back (tasks.path in its config.toml)"
        ) from error
    refuse_evaluation_tasks(tasks)
