"""Task sets known by name: where the hub has them, which splits, what their columns mean, under which licence.

`data.loaders.load_tasks` reads them by name, from the hub or from local files of the same columns. What a set's rows
lack is said in `note`; nothing is made up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from data.task import TaskError

Row = Mapping[str, Any]
Convert = Callable[[Row, int], dict[str, Any]]
"""A row of the set and its number -> a row of ours (`swe_task`, `maths_task`). Raises TaskError; CannotRun for one that
is left out, counted, while the others run."""


class CannotRun(TaskError):
    """A row of a training set that no environment of ours can run; `reason` is the same for all rows of its kind."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class TaskSet:
    name: str
    hub: str
    """Dataset id on the Hugging Face hub."""
    kind: Literal["swe", "maths"]
    splits: tuple[str, ...]
    convert: Convert
    licence: str
    rows: str
    """How many, as its card says."""
    subset: str | None = None
    """The hub's configuration."""
    evaluation: bool = False
    """A benchmark: no training takes it."""
    note: str = ""


def known_sets() -> Mapping[str, TaskSet]:
    """Name -> set."""
    from data.sets import benchmarks, maths, r2e_gym, swe, swe_smith

    return {one.name: one for one in (*swe.SETS, *swe_smith.SETS, *r2e_gym.SETS, *maths.SETS, *benchmarks.SETS)}
