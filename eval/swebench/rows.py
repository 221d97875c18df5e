"""A SWE-bench row as the official package wants it, whichever format it came in.

Promises: test lists are lists of text; `image`, `eval_script`, `log_parser` and `eval_type` are there. A legacy row (12
columns) gets its image by SWE-bench's naming rule and the rest from a stored row of the same instance in the current
format; where none is stored the error says where to get one. Nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.task import Task, TaskError
from envs.swe.row import SweRow, published_image, read_row
from eval.errors import EvalError

HUB_SETS: Mapping[str, str] = {
    "verified": "SWE-bench/SWE-bench_Verified",
    "lite": "SWE-bench/SWE-bench_Lite",
    "full": "SWE-bench/SWE-bench",
    "multilingual": "SWE-bench/SWE-bench_Multilingual",
}
HARNESS_COLUMNS = ("image", "eval_script", "log_parser", "eval_type")
_JUDGED_BY = (
    *("instance_id", "repo", "version", "base_commit", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"),
    *HARNESS_COLUMNS,
    *("repo_dir", "files", "portable", "image_assets"),
)
"""Columns that the verdict depends on."""


@dataclass(frozen=True)
class HarnessRow:
    """`row` is what the official package reads (current format); `swe` the same row as our environment reads it."""

    task: Task
    swe: SweRow
    row: Mapping[str, Any]

    @property
    def instance_id(self) -> str:
        return self.task.task_id

    def digest(self) -> str:
        """Hash of everything in the row that can change a verdict."""
        judged: dict[str, Any] = {name: self.row.get(name) for name in _JUDGED_BY}
        if self.swe.bundle is not None:
            judged["bundle"] = hashlib.sha256(self.swe.bundle.read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(judged, sort_keys=True, default=str).encode()).hexdigest()


def harness_row(task: Task, stored: Mapping[str, Mapping[str, Any]] | None = None) -> HarnessRow:
    """`stored`: rows in the current format by instance id, for legacy rows. Raises TaskError."""
    row = {name: value for name, value in task.row.items() if value is not None}
    known = (stored or {}).get(task.task_id, {})
    filled: dict[str, Any] = {name: row.get(name) or known.get(name) for name in HARNESS_COLUMNS}
    filled["image"] = filled["image"] or published_image(task.task_id)
    if known and known.get("base_commit") != row.get("base_commit"):
        raise TaskError(
            f"task {task.task_id}: the stored row is for base_commit {known.get('base_commit')}, this one for "
            f"{row.get('base_commit')}; give the rows of the same data set"
        )
    missing = [name for name in HARNESS_COLUMNS if not filled[name]]
    if missing:
        raise TaskError(
            f"task {task.task_id} of {task.source or 'its set'} is in the old format: no {', '.join(missing)}. Give a "
            "file with current rows of the same instances (--stored-rows rows.jsonl), or use the data set's newest "
            "revision, which has these columns"
        )
    if filled["eval_type"] not in ("pass_and_fail", "fail_only"):
        raise TaskError(
            f"task {task.task_id}: eval_type {filled['eval_type']!r} is neither pass_and_fail nor fail_only"
        )
    row |= filled
    row.setdefault("version", "")
    full = dataclasses.replace(task, row=row)
    return HarnessRow(full, read_row(full), row)


def stored_rows(path: str | Path) -> dict[str, Mapping[str, Any]]:
    """Rows in the current format by instance id, from any file that `load_tasks` reads."""
    from data.loaders import load_tasks

    return {task.task_id: task.row for task in load_tasks("stored rows", "test", path)}


def harness_rows(tasks: Iterable[Task], stored: Mapping[str, Mapping[str, Any]] | None = None) -> list[HarnessRow]:
    return [harness_row(task, stored) for task in tasks]


def choose(rows: list[HarnessRow], wanted: Iterable[str]) -> list[HarnessRow]:
    """The rows of these instance ids, in the set's order; none wanted: all. Raises EvalError for an unknown id."""
    names = set(wanted)
    if unknown := sorted(names - {row.instance_id for row in rows}):
        raise EvalError(f"the task set has no instance {', '.join(unknown[:5])}; check --instance")
    return [row for row in rows if not names or row.instance_id in names]
