"""A SWE task row, read once and checked: SWE-bench's columns plus where the repository comes from.

Promises: test lists are tuples whatever their form (JSON text or list); FAIL_TO_PASS is never empty; a row that cannot
be run raises `TaskError` naming row, column and the way out, before any sandbox starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.reading import InputError, is_file, parse_json
from data.swe_rows import check_paths
from data.task import Task, TaskError
from envs.sandbox.contract import SandboxSpec

BASE_IMAGE = SandboxSpec().image
_INSTANCE = re.compile(r"[\w.-]+__[\w.-]+-\d+")
IMAGE_HEAD = "HEAD"
"""As base_commit: what is checked out in the image (with bug_patch on top)."""
_OUTCOMES = ("PASSED", "FAILED", "ERROR")
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
    bug_patch: bytes = b""
    """Makes the bug in the image's commit, before anything else happens (envs.swe.settle)."""
    hidden: tuple[str, ...] = ()
    """Tests that stand in the image: the agent never sees them, they are put back before the tests run. Below repo_dir;
    one outside of it (absolute) goes to repo_dir under its own name."""
    removed: tuple[str, ...] = ()
    """Taken out of the image for good where they are there (absolute, or below repo_dir)."""
    allowed: tuple[str, ...] = ()
    """Files and folders in which the reference fix may stand (absolute, or below repo_dir): see envs.swe.leaks."""
    expected: Mapping[str, str] | None = None
    """Test id -> PASSED, FAILED or ERROR: resolved means these outcomes exactly."""
    stash: str = ""
    """Where the hidden tests wait in a grader's sandbox; set by envs.swe.settle."""
    version: str = ""
    """Of the project: some of SWE-bench's parsers read logs of versions differently."""
    eval_type: str = ""
    """SWE-bench's rule for tests that a log does not name: pass_and_fail (failed) or fail_only (passed, if any ran)."""
    installed: tuple[str, ...] = ()
    """Virtual environments that stand inside the repository: no change there is the agent's; set by envs.swe.settle."""

    @property
    def settled(self) -> bool:
        """base_commit is known, the image's repository needs no settling first."""
        return not (self.base_commit == IMAGE_HEAD or self.bug_patch or self.hidden or self.removed)

    @property
    def hidden_targets(self) -> tuple[str, ...]:
        """Where the hidden tests go, below repo_dir."""
        return tuple(path.rsplit("/", 1)[-1] if path.startswith("/") else path for path in self.hidden)


def published_image(task_id: str) -> str:
    """The image that SWE-bench publishes for an instance (`__` cannot stand in a repository name, so its rule replaces
    it); the base image where the id is none of SWE-bench's form."""
    if not _INSTANCE.fullmatch(task_id):
        return BASE_IMAGE
    return f"swebench/sweb.eval.x86_64.{task_id.replace('__', '_1776_').lower()}:latest"


def image_of(task: Task) -> str:
    """The image that a SWE task runs in. A row of SWE-bench's old format has one too, though nothing here can run its
    tests. Raises TaskError."""
    given = task.row.get("image")
    old = not any(task.row.get(column) for column in ("eval_script", "files", "bundle"))
    if old and _INSTANCE.fullmatch(task.task_id) and (given is None or isinstance(given, str)):
        return given or published_image(task.task_id)
    return read_row(task, need_tests=False).image


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
            value = _from_json(value, column, fail) if value.strip() else []
        value = [] if value is None else value
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
            raise fail(column, "must be a list of test ids (or its JSON text)")
        return tuple(value)

    if task.kind != "swe":
        raise TaskError(f"task {task.task_id}: kind is {task.kind!r}; this environment runs kind 'swe'")
    fail_to_pass = tests("FAIL_TO_PASS")
    if need_tests and not fail_to_pass:
        raise fail("FAIL_TO_PASS", "is empty: any patch would count as solved. Name the tests that the fix turns green")
    files, bundle = _files(row.get("files"), fail), _bundle(task, fail)
    if files is not None and bundle is not None:
        raise fail("bundle", "the row has files too: keep one of them")
    in_image = files is None and bundle is None
    base = text("base_commit")
    if not _COMMIT.fullmatch(base) and not (in_image and base == IMAGE_HEAD):
        raise fail("base_commit", f"{base!r} is no full commit id (or HEAD, for a repository that stands in the image)")
    repo_dir = text("repo_dir", "/testbed")
    if not repo_dir.startswith("/") or repo_dir == "/" or ".." in repo_dir.split("/"):
        raise fail("repo_dir", f"{repo_dir!r} must be an absolute path below /")
    image = text("image", published_image(task.task_id) if in_image else BASE_IMAGE)
    timeout = row.get("eval_timeout_s")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < 1e7):
        raise fail("eval_timeout_s", f"{timeout!r} must be seconds above 0, at most ten million")
    hidden, removed, allowed = (_paths(row.get(name), name, fail) for name in ("hidden", "removed", "allowed"))
    bug_patch = text("bug_patch", "").encode("utf-8", "surrogateescape")
    if not in_image and (hidden or removed or bug_patch):
        raise fail("hidden", "hidden, removed and bug_patch are for repositories that stand in the image")
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
        bug_patch=bug_patch,
        hidden=hidden,
        removed=removed,
        allowed=allowed,
        expected=_expected(row.get("expected"), fail),
        version=str(row.get("version") or ""),
        eval_type=text("eval_type", "pass_and_fail"),
    )


def _paths(value: Any, column: str, fail: Any) -> tuple[str, ...]:
    value = [] if value is None else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) for path in value):
        raise fail(column, "must be a list of paths")
    for path in value:
        parts = path.removeprefix("/").split("/")
        if "\n" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise fail(column, f"{path!r} is no plain path below the repository, or absolute")
    return tuple(value)


def _from_json(value: Any, column: str, fail: Any) -> Any:
    """Columns of mappings come as JSON text or as the value."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, column)
    except InputError as error:
        raise fail(column, f"is no JSON ({error})") from error


def _expected(value: Any, fail: Any) -> Mapping[str, str] | None:
    if value is None or value == "":
        return None
    value = _from_json(value, "expected", fail)
    if not isinstance(value, Mapping) or not all(outcome in _OUTCOMES for outcome in value.values()):
        raise fail("expected", f"must map test ids to {', '.join(_OUTCOMES)}")
    if "PASSED" not in value.values():
        raise fail("expected", "names no test that passes: nothing could be told from a run that fails")
    return dict(value)


def _files(value: Any, fail: Any) -> Mapping[str, str] | None:
    if value is None or value == "":
        return None
    value = _from_json(value, "files", fail)
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise fail("files", "must map paths to texts")
    try:
        check_paths(value, "files")
    except InputError as error:
        raise fail("files", str(error)) from error
    return dict(value)


def _bundle(task: Task, fail: Any) -> Path | None:
    value = task.row.get("bundle")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise fail("bundle", f"must be a path, not {type(value).__name__}")
    path = (Path(task.base_dir) / value).absolute()
    if not is_file(path):
        raise fail("bundle", f"no file {path}. Keep the bundle beside the rows file that names it")
    return path
