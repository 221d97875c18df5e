"""A SWE task row, read once and checked: SWE-bench's columns plus where the repository comes from.

Promises: test lists are tuples whatever their form (JSON text or list); FAIL_TO_PASS is never empty; a row that cannot
be run raises `TaskError` naming row, column and the way out, before any sandbox starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.task import Task, TaskError
from envs.sandbox.contract import SandboxSpec

BASE_IMAGE = SandboxSpec().image
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class SweRow:
    task_id: str
    base_commit: str
    problem_statement: str
    patch: bytes
    """The reference fix ("gold"); empty when the row has none."""
    test_patch: bytes
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str
    eval_script: str
    log_parser: str
    repo_dir: str
    files: Mapping[str, str] | None
    """Path -> text: the repository is carried by the row."""
    bundle: Path | None
    """A git bundle on this machine. Neither files nor bundle: the repository stands in the image."""
    portable: bool
    """Runs wherever python3 and git are: any image, or the embedded sandbox."""
    eval_timeout_s: float | None
    """The row's own limit for its tests; None: the environment's."""


def read_row(task: Task, *, need_tests: bool = True) -> SweRow:
    """Raises TaskError. `need_tests=False` accepts a draft whose test lists are still to be measured."""
    row = task.row

    def fail(column: str, why: str) -> TaskError:
        where = f" of {task.source}" if task.source else ""
        return TaskError(f"task {task.task_id}{where}, column {column}: {why}")

    def text(column: str, default: str | None = None) -> str:
        value = row.get(column)
        if value is None or value == "":
            if default is None:
                raise fail(column, "is missing or empty")
            return default
        if not isinstance(value, str):
            raise fail(column, f"must be text, not {type(value).__name__}")
        return value

    def tests(column: str) -> tuple[str, ...]:
        value: Any = row.get(column)
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else []
            except json.JSONDecodeError as error:
                raise fail(column, f"is no JSON list: {error}") from error
        value = [] if value is None else value
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
            raise fail(column, "must be a list of test ids (or its JSON text)")
        return tuple(value)

    if task.kind != "swe":
        raise TaskError(f"task {task.task_id}: kind is {task.kind!r}; this environment runs kind 'swe'")
    fail_to_pass = tests("FAIL_TO_PASS")
    if need_tests and not fail_to_pass:
        raise fail("FAIL_TO_PASS", "is empty: any patch would count as solved. Name the tests that the fix turns green")
    base = text("base_commit")
    if not _COMMIT.fullmatch(base):
        raise fail("base_commit", f"{base!r} is no full commit id")
    repo_dir = text("repo_dir", "/testbed")
    if not repo_dir.startswith("/") or repo_dir == "/" or ".." in repo_dir.split("/"):
        raise fail("repo_dir", f"{repo_dir!r} must be an absolute path below /")
    image = text("image", BASE_IMAGE)
    timeout = row.get("eval_timeout_s")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise fail("eval_timeout_s", f"{timeout!r} must be seconds above 0")
    files, bundle = _files(row.get("files"), fail), _bundle(task, fail)
    if files is not None and bundle is not None:
        raise fail("bundle", "the row has files too: keep one of them")
    return SweRow(
        task_id=task.task_id,
        base_commit=base,
        problem_statement=text("problem_statement"),
        patch=text("patch", "").encode("utf-8", "surrogateescape"),
        test_patch=text("test_patch", "").encode("utf-8", "surrogateescape"),
        fail_to_pass=fail_to_pass,
        pass_to_pass=tests("PASS_TO_PASS"),
        image=image,
        eval_script=text("eval_script"),
        log_parser=text("log_parser"),
        repo_dir=repo_dir.rstrip("/"),
        files=files,
        bundle=bundle,
        portable=(files is not None or bundle is not None) and (image == BASE_IMAGE or bool(row.get("portable"))),
        eval_timeout_s=None if timeout is None else float(timeout),
    )


def _files(value: Any, fail: Any) -> Mapping[str, str] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise fail("files", f"is no JSON: {error}") from error
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise fail("files", "must map paths to texts")
    return dict(value)


def _bundle(task: Task, fail: Any) -> Path | None:
    value = task.row.get("bundle")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise fail("bundle", f"must be a path, not {type(value).__name__}")
    path = (Path(task.base_dir) / value).absolute()
    if not path.is_file():
        raise fail("bundle", f"no file {path}. Keep the bundle beside the rows file that names it")
    return path
