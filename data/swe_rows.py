"""Checks and normalises SWE-bench rows, legacy (12 columns) and current; every complaint names row and column.

After `swe_task` the test lists are lists of strings, dates are ISO text, and `files` has no null entries (columnar
readers fill them in); nothing else in a row is changed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.task import Task, TaskError

TEXT_COLUMNS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
TEST_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
REQUIRED = (*TEXT_COLUMNS, *TEST_LISTS)
_MAY_BE_EMPTY = ("patch", "test_patch")


def swe_task(row: Mapping[str, Any], number: int, *, split: str, source: str, base_dir: str) -> Task:
    """Row `number` (from 0) as a task. Raises TaskError."""
    where = f"{source}, row {number}"
    if isinstance(row.get("instance_id"), str):
        where += f" ({row['instance_id']})"
    missing = [column for column in REQUIRED if row.get(column) is None]
    if missing:
        raise TaskError(
            f"{where}: column {', '.join(missing)} is missing; a SWE row needs {', '.join(REQUIRED)} "
            f"(this one has {', '.join([name for name in row if row[name] is not None][:20])})"
        )
    values = {name: value.isoformat() if isinstance(value, datetime.date) else value for name, value in row.items()}
    for column in TEXT_COLUMNS:
        if not isinstance(values[column], str):
            raise TaskError(f"{where}: column {column} is {type(values[column]).__name__}, expected text")
        if not values[column].strip() and column not in _MAY_BE_EMPTY:
            raise TaskError(f"{where}: column {column} is empty")
    for column in TEST_LISTS:
        values[column] = _tests(values[column], f"{where}: column {column}")
    if not values["FAIL_TO_PASS"]:
        raise TaskError(f"{where}: FAIL_TO_PASS is empty, so any patch would pass; name the tests that must turn green")
    if values.get("files"):
        values["files"] = _files(values["files"], f"{where}: column files")
    bundle = values.get("bundle")
    if bundle and not (isinstance(bundle, str) and (Path(base_dir) / bundle).is_file()):
        raise TaskError(f"{where}: column bundle names {bundle!r}, but there is no such file under {base_dir or '.'}")
    return Task(values["instance_id"], "swe", split, values, source, base_dir)


def _tests(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise TaskError(f"{where} is text but no JSON list ({error}); write it as a list of test ids") from error
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise TaskError(f"{where} is no list of test ids")
    return value


def _files(value: Any, where: str) -> Any:
    decoded = value
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except ValueError as error:
            raise TaskError(f"{where} is text but no JSON object ({error})") from error
    if not isinstance(decoded, Mapping):
        raise TaskError(f"{where} is no JSON object from path to text")
    decoded = {path: text for path, text in decoded.items() if text is not None}
    if not all(isinstance(text, str) for text in decoded.values()):
        raise TaskError(f"{where} is no JSON object from path to text")
    return value if isinstance(value, str) else decoded
