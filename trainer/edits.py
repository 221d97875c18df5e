"""What a demonstration is about: one line of one file, and the lines that could stand in its place."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from data.micro_swe import bug_site
from data.task import Task, TaskError

_DEF = re.compile(r"^ *def (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """`text` is the viewed file as it is in the repository. Lines are stripped; `old_line` stands once in `text`."""

    problem: str
    path: str
    text: str
    old_line: str
    hint: str
    """The words of the file that say what is right, as they stand there. What they mean is not known here."""
    candidates: tuple[str, ...]
    """Plausible replacements. Which of them is right is not known here."""
    fills: tuple[str, ...]
    """The part of each candidate that is new, in the same order; may be empty."""

    @property
    def function(self) -> str:
        """Name of the function that holds the line: the latest `def` above it. Raises TaskError without one."""
        above = self.text[: self.text.index(self.old_line)]
        names = _DEF.findall(above)
        if not names:
            raise TaskError(
                f"{self.path}: no function stands above the line {self.old_line!r}, so there is none to name"
            )
        return str(names[-1])


def edit_of(task: Task) -> Edit:
    """The edit of a micro-SWE task: all its candidates, not the answer. Raises TaskError for other tasks."""
    site = bug_site(task)
    files = json.loads(task.row["files"])
    text = files[site.path]
    return Edit(task.row["problem_statement"], site.path, text, site.old_line, site.hint, site.candidates, site.fills)
