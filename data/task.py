"""A task: one row of a task set, whatever it came from. The row keeps the dataset's own column names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data.reading import InputError


class TaskError(InputError):
    """A task row or task set cannot be used; the text says which row, which column and how to mend it."""


@dataclass(frozen=True)
class Task:
    """`kind` picks the environment ("swe" or "maths"). `row` is the dataset's row: SWE-bench's columns for SWE tasks,
    `problem`, `answer` and `grading` for maths (data/maths_rows.py).

    Besides SWE-bench's columns (instance_id, repo, base_commit, problem_statement, patch, test_patch, FAIL_TO_PASS,
    PASS_TO_PASS, image, eval_script, log_parser, eval_type) a SWE row may say where the repository comes from:
      files    JSON object path -> text: a tiny repository carried by the row itself (micro-SWE);
      bundle   path of a git bundle, relative to the row's file (`base_dir`);
      neither  the repository stands in the image at `repo_dir`.
    `repo_dir` (default /testbed) is its path in the sandbox. Of a repository in the image (envs/swe/settle.py):
      base_commit  may be HEAD: what is checked out there;
      bug_patch    makes the bug in it; hidden, removed: paths that the agent never sees (hidden ones judge);
      expected     JSON object test -> PASSED, FAILED or ERROR: resolved by exactly these outcomes.
    """

    task_id: str
    kind: str
    split: str
    row: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Name of the task set, e.g. micro-swe."""
    base_dir: str = ""
    """Folder that relative paths in the row are read from; empty for generated tasks."""
