"""What a demonstration is about: one line of one file, and the lines that could stand in its place."""

from __future__ import annotations

import json
from dataclasses import dataclass

from data.micro_swe import bug_site
from data.task import Task


@dataclass(frozen=True)
class Edit:
    """`text` is the viewed file as it is in the repository. Lines are stripped; `old_line` stands once in `text`."""

    problem: str
    path: str
    text: str
    old_line: str
    candidates: tuple[str, ...]
    """Plausible replacements. Which of them is right is not known here."""


def edit_of(task: Task) -> Edit:
    """The edit of a micro-SWE task, with all its candidates and without the answer. Raises TaskError for other tasks."""
    site = bug_site(task)
    files = json.loads(task.row["files"])
    return Edit(task.row["problem_statement"], site.path, files[site.path], site.old_line, site.candidates)
