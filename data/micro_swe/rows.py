"""Rows with SWE-bench's columns out of generated repositories, and back from a task to its bug."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.gitobjects import commit_id, object_id
from data.micro_swe.generate import Repository, build
from data.task import Task, TaskError

NAME = "micro-swe"
SPLIT_SIZES: Mapping[str, int] = {"train": 4096, "heldout": 512, "unseen": 512}
"""What `load` without a limit gives; any index below `MAX_INDEX` can be asked for."""
MAX_INDEX = 1_000_000
REPO_DIR = "/testbed"
_ID = re.compile(rf"{NAME}/(?P<split>[a-z]+)/(?P<index>\d{{6}})")
_CONTEXT = 3


@dataclass(frozen=True)
class BugSite:
    """The one buggy line of a task. Lines are stripped; `old_line` stands once in its file.

    `candidates`: all plausible replacements, the right one included, the buggy line left out, in an order that says
    nothing; `fills` are the parts in which they differ. `hint`: the words of the docstring that say which part is
    right, as they stand there. `form` and `choice` name buggy line and right answer with all names abstracted away (for
    rates)."""

    path: str
    old_line: str
    fixed_line: str
    hint: str
    candidates: tuple[str, ...]
    fills: tuple[str, ...]
    kind: str
    template: str
    family: str
    layout: str
    place: str
    form: str
    choice: str


def check(split: str, index: int) -> None:
    """Raise TaskError unless (split, index) names a task."""
    if split not in SPLIT_SIZES:
        raise TaskError(f"{NAME} has no split {split!r}; use one of {', '.join(SPLIT_SIZES)}")
    if not 0 <= index < MAX_INDEX:
        raise TaskError(f"{NAME}/{split} has no index {index}; use 0 to {MAX_INDEX - 1}")


def task(split: str, index: int) -> Task:
    """Task `index` of `split`, made on the spot. Raises TaskError."""
    check(split, index)
    task_id = f"{NAME}/{split}/{index:06d}"
    return Task(task_id=task_id, kind="swe", split=split, row=_row(task_id, build(split, index)), source=NAME)


def task_by_id(task_id: str) -> Task:
    """The task named e.g. ``micro-swe/train/000123``. Raises TaskError."""
    return task(*parse_id(task_id))


def parse_id(task_id: str) -> tuple[str, int]:
    match = _ID.fullmatch(task_id)
    if match is None:
        raise TaskError(f"{task_id!r} is no {NAME} task id; they look like {NAME}/train/000123")
    check(match["split"], int(match["index"]))
    return match["split"], int(match["index"])


def load(split: str, *, limit: int | None = None, offset: int = 0) -> list[Task]:
    """`limit` tasks from `offset` on; without a limit the rest of the split's standard size. Raises TaskError."""
    check(split, 0)
    count = max(SPLIT_SIZES[split] - offset, 0) if limit is None else limit
    if count < 0 or offset < 0:
        raise TaskError(f"{NAME}: limit {limit} and offset {offset} must not be negative")
    return [task(split, index) for index in range(offset, offset + count)]


def bug_site(task: Task) -> BugSite:
    """Where the bug of a micro-SWE task is and what could replace it. Raises TaskError for other tasks."""
    made = build(*parse_id(task.task_id))
    return BugSite(
        path=made.path,
        old_line=made.old_line,
        fixed_line=made.fixed_line,
        hint=made.hint,
        candidates=made.candidates,
        fills=made.fills,
        kind=made.template.kind.name,
        template=made.template.name,
        family=made.template.family,
        layout=made.layout,
        place=made.place,
        form=made.form,
        choice=made.choice,
    )


def _row(task_id: str, made: Repository) -> dict[str, Any]:
    commit = commit_id(made.before)
    tests = " ".join(made.test_modules)
    return {
        "instance_id": task_id,
        "repo": f"micro/{made.package}",
        "base_commit": commit,
        "problem_statement": made.issue,
        "hints_text": "",
        "created_at": "2025-01-01T00:00:00Z",
        "version": "1",
        "patch": _line_patch(made),
        "test_patch": _new_file_patch(made.test_path, made.test_text),
        "FAIL_TO_PASS": list(made.fail_to_pass),
        "PASS_TO_PASS": list(made.pass_to_pass),
        "environment_setup_commit": commit,
        "log_parser": "unittest",
        "eval_script": f"cd {REPO_DIR} && python3 -B -m unittest -v {tests} 2>&1\n",
        "eval_type": "pass_and_fail",
        "image": "sao-base:latest",
        "repo_dir": REPO_DIR,
        "files": json.dumps(made.before),
    }


def _line_patch(made: Repository) -> str:
    old_text, new_text = made.before[made.path], made.after[made.path]
    old, new = old_text.splitlines(), new_text.splitlines()
    first, last = max(made.line_at - _CONTEXT, 0), min(made.line_at + _CONTEXT + 1, len(old))
    body = [
        *(" " + line for line in old[first : made.line_at]),
        "-" + old[made.line_at],
        "+" + new[made.line_at],
        *(" " + line for line in old[made.line_at + 1 : last]),
    ]
    span = f"{first + 1},{last - first}"
    return (
        f"diff --git a/{made.path} b/{made.path}\n"
        f"index {object_id('blob', old_text.encode())}..{object_id('blob', new_text.encode())} 100644\n"
        f"--- a/{made.path}\n+++ b/{made.path}\n@@ -{span} +{span} @@\n" + "\n".join(body) + "\n"
    )


def _new_file_patch(path: str, text: str) -> str:
    lines = text.splitlines()
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
        f"index {'0' * 40}..{object_id('blob', text.encode())}\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    )
