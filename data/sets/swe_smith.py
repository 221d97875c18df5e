"""SWE-smith (SWE-bench/SWE-smith): bugs made in working projects, a Docker image for each project.

The image holds the working project at /testbed; `patch` makes the bug. Its own harness checks out a branch of the
project's mirror (the bug, and without the files of FAIL_TO_PASS), and judges with these files back. No network is
needed for the same: the bug is put into the image's commit, these files are hidden (envs.swe.settle). Judged, as there,
are the tests of these files only; unlike there a test that is missing from the log failed, as a run that breaks at its
first import must not count as solved. The reference fix is `patch` turned round.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from data.patches import reverse_patch
from data.sets import CannotRun, Row, TaskSet
from data.sets.columns import text
from data.sets.swe import eval_script, test_ids
from data.task import TaskError

SOURCE = "swe-smith"
_PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose"
_BY_NAME = "python__mypy"
"""Its cases lie in data files and are chosen by name."""
# Projects that are run otherwise: command (test files are added where ids name some), parser, and the tests to hide
# where the ids do not name their files.
_COMMANDS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "HIPS__autograd": (f"{_PYTEST} -n 0", "pytest", ()),
    "paramiko__paramiko": ("pytest -rA --color=no --disable-warnings", "pytest", ()),
    "pydantic__pydantic": (f"UV_OFFLINE=1 UV_NO_SYNC=1 /root/.local/bin/uv run {_PYTEST}", "pytest", ()),
    _BY_NAME: ("pytest --color=no -rA", "pytest", ("test-data", "mypy/test")),
    "tornadoweb__tornado": ("python -m tornado.test --verbose", "unittest_shown", ("tornado/test",)),
    "un33k__python-slugify": ("python test.py --verbose", "unittest_shown", ("test.py",)),
}
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/-]*(?::[A-Za-z0-9_.-]+)?")
_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|testing|specs?)/|(?:^|/)(?:tests?|test_[^/]*|[^/]*_test|[^/]*_tests)\.py$", re.I
)
_CHANGED = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", re.MULTILINE)


def swe_smith(row: Row, number: int) -> dict[str, Any]:
    instance = text(row, number, SOURCE, "instance_id")
    where = f"{SOURCE}, row {number + 1} ({instance})"
    if not str(row.get("problem_statement") or "").strip():
        raise CannotRun(where, "it has no problem statement")
    bug = text(row, number, SOURCE, "patch")
    fails, passes = (test_ids(row, number, SOURCE, column) for column in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    project = text(row, number, SOURCE, "repo").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    command, parser, files, hidden = _how(where, project, fails)
    if files:
        passes = [one for one in passes if one.split("::")[0] in files]
    elif project == _BY_NAME:
        passes = [one for one in passes if _chosen(one, fails)]
    broken = set(_CHANGED.findall(bug))
    try:
        fix = reverse_patch(bug, where)
    except TaskError as error:
        raise CannotRun(where, f"its patch cannot be turned round into the fix ({error})") from error
    return {
        "instance_id": instance,
        "repo": text(row, number, SOURCE, "repo"),
        "base_commit": "HEAD",
        "problem_statement": text(row, number, SOURCE, "problem_statement"),
        "patch": fix,
        "bug_patch": bug,
        "test_patch": "",
        "hidden": [*hidden, *(path for path in files if _TEST_FILE.search(path) and path not in broken)],
        "image": image_of(text(row, number, SOURCE, "image_name")),
        "FAIL_TO_PASS": fails,
        "PASS_TO_PASS": passes,
        "eval_script": eval_script(command, files),
        "log_parser": parser,
    }


def _how(where: str, project: str, fails: list[str]) -> tuple[str, str, list[str], Sequence[str]]:
    """Command, parser, test files, other tests to hide. Raises CannotRun."""
    command, parser, hidden = _COMMANDS.get(project, (_PYTEST, "pytest", ()))
    if project == _BY_NAME:
        names = " or ".join(map(_name, fails))
        return f"{command} -k {shlex.quote(names)}", parser, [], hidden
    if hidden:
        return command, parser, [], hidden
    files = sorted({one.split("::")[0] for one in fails})
    if not all("::" in one for one in fails) or not all(path.endswith(".py") for path in files):
        raise CannotRun(where, "its tests are not run by pytest, and no other command is known for its project")
    if any(path.startswith(("/", "../")) for path in files):
        raise CannotRun(where, "its test ids name files outside of the repository")
    return command, parser, files, hidden


def _name(test_id: str) -> str:
    return test_id.rsplit("::", 1)[-1]


def _chosen(test_id: str, fails: list[str]) -> bool:
    """Whether the names of `fails` choose this test too: parts of a name do, whatever the case."""
    return any(_name(one).lower() in _name(test_id).lower() for one in fails)


def image_of(name: str) -> str:
    """Older rows have the image's local name; on Docker Hub `__` is spelt `_1776_`, below the makers' account."""
    if "/" not in name:
        name = "jyangballin/" + name.replace("__", "_1776_")
    return name.lower() if not _IMAGE.fullmatch(name) else name


SETS = tuple(
    TaskSet(name, hub, "swe", ("train",), swe_smith, "MIT", rows)
    for name, hub, rows in (
        ("swe-smith", "SWE-bench/SWE-smith", "about 59 thousand"),
        ("swe-smith-py", "SWE-bench/SWE-smith-py", "see the card"),
    )
)
