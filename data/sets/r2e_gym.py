"""R2E-Gym (R2E-Gym/R2E-Gym-Subset, -Lite, -Full): commits of eleven Python projects, a Docker image for each.

The image holds the project at /testbed, before the commit, with its environment in /testbed/.venv, run_tests.sh, and
the tests in /r2e_tests. Its own harness moves both out of the agent's sight and back for the verdict; here the agent's
sandbox does not have them at all. Resolved is, as there, a run whose outcomes are exactly `expected_output_json`. The
reference fix is what the commit changes outside of tests, from `parsed_commit_content`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.sets import CannotRun, Row, TaskSet
from data.sets.columns import decoded, text
from data.task import TaskError

SOURCE = "r2e-gym"
_OUTCOMES = ("PASSED", "FAILED", "ERROR")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_TEST_FOLDERS = {"test", "tests", "Test", "Tests"}
# What older images have beside the tests: the commit itself among it.
_TELLTALE = (
    "syn_issue",
    "expected_test_output",
    "execution_result",
    "parsed_commit",
    "modified_files",
    "modified_entities",
)
_REMOVED = [f"{folder}{name}.json" for name in _TELLTALE for folder in ("", "/", "/root/")]


def r2e_gym(row: Row, number: int) -> dict[str, Any]:
    commit, repo = text(row, number, SOURCE, "commit_hash"), text(row, number, SOURCE, "repo_name")
    where = f"{SOURCE}, row {number + 1} ({repo}__{commit})"
    expected = expected_outcomes(where, decoded(row, number, SOURCE, "expected_output_json"))
    passing = [name for name, outcome in expected.items() if outcome == "PASSED"]
    if not passing:
        raise CannotRun(where, "no test is expected to pass")
    statement = text(row, number, SOURCE, "problem_statement")
    issue = _ISSUE.search(statement)
    return {
        "instance_id": f"{repo}__{commit}",
        "repo": repo,
        "base_commit": "HEAD",
        "problem_statement": issue[1].strip() if issue and issue[1].strip() else statement,
        "patch": commit_patch(where, decoded(row, number, SOURCE, "parsed_commit_content")),
        "test_patch": "",
        "hidden": ["run_tests.sh", "/r2e_tests"],
        "removed": _REMOVED,
        "expected": json.dumps(expected),
        # The set does not say which of them failed before.
        "FAIL_TO_PASS": passing,
        "PASS_TO_PASS": [],
        "image": text(row, number, SOURCE, "docker_image"),
        "eval_script": "#!/bin/bash\ncd /testbed\nbash run_tests.sh\n",
        "log_parser": "r2e_gym",
    }


def expected_outcomes(where: str, given: Any) -> dict[str, str]:
    """By the names that the set's own comparison uses: without colours, cut at ` - `."""
    if not isinstance(given, Mapping):
        raise TaskError(f"{where}: column expected_output_json is no object of outcomes")
    plain = {_COLOUR.sub("", str(name)): str(outcome) for name, outcome in given.items()}
    if unknown := sorted(set(plain.values()) - set(_OUTCOMES)):
        raise CannotRun(where, f"it expects outcomes that are unknown here: {', '.join(unknown)}")
    return {name.split(" - ")[0]: plain[name] for name in sorted(plain)}


def commit_patch(where: str, commit: Any) -> str:
    """The commit's changes to files that are no tests, as a patch; empty where the row holds none."""
    diffs = commit.get("file_diffs") if isinstance(commit, Mapping) else None
    try:
        return "".join("".join(_file(diff)) for diff in diffs or () if not _is_test(diff["header"]["file"]["path"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: column parsed_commit_content has another form than expected: {error!r}") from error


def _is_test(path: str) -> bool:
    *folders, name = path.split("/")
    return name.startswith("test_") or name.endswith("_test.py") or bool(_TEST_FOLDERS & set(folders))


def _file(diff: Mapping[str, Any]) -> Iterator[str]:
    path = diff["header"]["file"]["path"]
    if diff.get("is_binary_file"):
        return
    yield f"diff --git a/{path} b/{path}\n"
    if diff["header"].get("misc_line"):
        yield f"{diff['header']['misc_line']}\n"
    if diff.get("minus_file") and diff.get("plus_file"):
        yield f"--- {diff['minus_file']['path']}\n+++ {diff['plus_file']['path']}\n"
    for hunk in diff.get("hunks") or ():
        lines: Sequence[Mapping[str, str]] = hunk["line_group"]["all_lines"]
        old, new = (hunk["descriptor"][side] for side in ("old_range", "new_range"))
        counts = [_count(lines, side, given) for side, given in (("deleted", old), ("added", new))]
        yield f"@@ -{old['start']},{counts[0]} +{new['start']},{counts[1]} @@\n"
        left = list(counts)
        for line in lines:
            sign = {"context": " ", "deleted": "-", "added": "+", "note": "\\ "}[line["type"]]
            takes = (sign in " -", sign in " +")
            if sign != "\\ " and any(take and not rest for take, rest in zip(takes, left, strict=True)):
                continue  # the parser of the set takes the text's last, empty line for one of the hunk
            left = [rest - (take and sign != "\\ ") for take, rest in zip(takes, left, strict=True)]
            yield f"{sign}{line['content']}\n"


def _count(lines: Sequence[Mapping[str, str]], side: str, given: Mapping[str, Any]) -> int:
    """Lines of a hunk on one side: as its header says (without a number: one), never more than there are."""
    length = given.get("length")
    return min(1 if length is None else int(length), sum(line["type"] in ("context", side) for line in lines))


_ROWS = (
    ("r2e-gym", "Subset", "4,578"),
    ("r2e-gym-lite", "Lite", "see the card"),
    ("r2e-gym-full", "Full", "about 8,100"),
)
SETS = tuple(
    TaskSet(name, f"R2E-Gym/R2E-Gym-{size}", "swe", ("train",), r2e_gym, "MIT (code); see the card", rows)
    for name, size, rows in _ROWS
)
