"""Checks maths rows: a problem, its final answer, how it is graded. Every complaint names row and column.

A row has `problem` and `answer` (text or a number), and may have `id`, `grading` (a `Grading`, else integer), `image`
(of the Python tool's sandbox) and whatever else its set holds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from data.reading import InputError, check_name
from data.task import Task, TaskError


class Grading(enum.StrEnum):
    INTEGER = "integer"
    SYMBOLIC = "symbolic"
    LAST_INTEGER = "last_integer"
    """No box: the last number of the text. For training tasks; no benchmark is graded so."""


def maths_task(row: Mapping[str, Any], number: int, *, split: str, source: str, base_dir: str) -> Task:
    """Row `number` (from 0; messages count from 1) as a task. Raises TaskError."""
    name = row.get("id")
    name = f"{source}-{number:06d}" if name is None or name == "" else str(name)
    try:
        check_name(name, f"{source}, row {number + 1}: its id", limit=1000)  # generated ones name their options
    except InputError as error:
        raise TaskError(str(error)) from error
    where = f"{source}, row {number + 1} ({name})"
    values = dict(row)
    problem, answer = values.get("problem"), values.get("answer")
    if not isinstance(problem, str) or not problem.strip():
        raise TaskError(f"{where}: column problem is {problem!r:.60}, expected the problem's text")
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise TaskError(f"{where}: column answer is {answer!r:.60}, expected the final answer")
    values["answer"] = str(answer)
    values["grading"] = values.get("grading") or str(Grading.INTEGER)
    if values["grading"] not in list(Grading):
        raise TaskError(f"{where}: column grading is {values['grading']!r:.60}, expected {' or '.join(Grading)}")
    return Task(name, "maths", split, values, source, base_dir)
