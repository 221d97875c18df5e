"""Checks and normalises SWE-bench rows, legacy (12 columns) and current; every complaint names row and column.

After `swe_task` the test lists are lists of strings, dates are ISO text, and `files` has no null entries (columnar
readers fill them in); nothing else in a row is changed.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from typing import Any

from data.reading import InputError, check_name, is_file, parse_json, shown
from data.task import Task, TaskError

TEXT_COLUMNS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
TEST_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
REQUIRED = (*TEXT_COLUMNS, *TEST_LISTS)
_MAY_BE_EMPTY = ("patch", "test_patch")
PATCHES = ("patch", "test_patch", "bug_patch")
_MAY_HOLD_NUL = (*PATCHES, "files")


def swe_task(row: Mapping[str, Any], number: int, *, split: str, source: str, base_dir: str) -> Task:
    """Row `number` (from 0; messages count from 1) as a task. Raises TaskError."""
    where = f"{source}, row {number + 1}"
    if isinstance(row.get("instance_id"), str):
        _check_id(row["instance_id"], f"{where}: column instance_id")
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
    for column, value in values.items():
        if isinstance(value, str) and "\0" in value and column not in _MAY_HOLD_NUL:
            raise TaskError(f"{where}: column {column} holds a NUL character, which no command and no path can")
    for column in TEST_LISTS:
        values[column] = _tests(values[column], f"{where}: column {column}")
    if not values["FAIL_TO_PASS"]:
        raise TaskError(f"{where}: FAIL_TO_PASS is empty, so any patch would pass; name the tests that must turn green")
    if values.get("files"):
        values["files"] = _files(values["files"], f"{where}: column files")
    bundle = values.get("bundle")
    if bundle and not (isinstance(bundle, str) and is_file(os.path.join(base_dir, bundle))):
        raise TaskError(
            f"{where}: column bundle names {shown(str(bundle))!r}, but there is no such file under {base_dir or '.'}"
        )
    return Task(values["instance_id"], "swe", split, values, source, base_dir)


def _tests(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = parse_json(value, where)
        except InputError as error:
            raise TaskError(f"{where} is text but no JSON list ({error}); write it as a list of test ids") from error
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise TaskError(f"{where} is no list of test ids")
    if any("\0" in test for test in value):
        raise TaskError(f"{where} holds a test id with a NUL character")
    return value


def _files(value: Any, where: str) -> Any:
    decoded = value
    if isinstance(value, str):
        try:
            decoded = parse_json(value, where)
        except InputError as error:
            raise TaskError(f"{where} is text but no JSON object ({error})") from error
    if not isinstance(decoded, Mapping):
        raise TaskError(f"{where} is no JSON object from path to text")
    decoded = {path: text for path, text in decoded.items() if text is not None}
    if not all(isinstance(text, str) for text in decoded.values()):
        raise TaskError(f"{where} is no JSON object from path to text")
    try:
        check_paths(decoded, where)
    except InputError as error:
        raise TaskError(str(error)) from error
    return value if isinstance(value, str) else decoded


def check_paths(paths: Iterable[str], where: str) -> None:
    """Paths of files below a repository's root. Raises InputError for one that leads elsewhere or cannot be made."""
    names = set(paths)
    for path in names:
        parts = path.split("/")
        why = ""
        if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
            why = "is no plain path below the repository's root"
        elif any(part.lower() == ".git" for part in parts):
            why = "lies in git's own folder"
        elif "\0" in path or "\n" in path:
            why = "holds a NUL or a line break"
        elif len(path.encode("utf-8", "replace")) > 3000 or any(
            len(part.encode("utf-8", "replace")) > 255 for part in parts
        ):
            why = "is longer than a file's name can be"
        elif parent := next((each for each in _parents(parts) if each in names), None):
            why = f"lies in {shown(parent)!r}, which is a file"
        if why:
            raise InputError(f"{where}: path {shown(path)!r} {why}")


def _parents(parts: list[str]) -> list[str]:
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _check_id(name: str, where: str) -> None:
    try:
        check_name(name, where) if name.strip() else None
    except InputError as error:
        raise TaskError(str(error)) from error
    if any(part in (".", "..") for part in name.split("/")) or name.startswith("/"):
        raise TaskError(f"{where}: {name!r} reads as a path to somewhere else")
