"""SWE-smith and R2E-Gym: rows in their own columns become rows that the environment takes, or are left out and counted.

How such rows run is tested in tests/envs/test_swe_sets.py."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from data.loaders import load_tasks
from data.sets.swe_smith import image_of
from data.task import Task, TaskError
from envs.swe.parsers import find_parser
from envs.swe.row import IMAGE_HEAD, read_row
from tests.data.test_sets import jsonl

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BUG = "diff --git a/shop/cart.py b/shop/cart.py\n--- a/shop/cart.py\n+++ b/shop/cart.py\n@@ -1 +1 @@\n-a + b\n+a - b\n"
SMITH = {
    "instance_id": "shop__cart.0123abcd.func_basic__1",
    "patch": BUG,
    "FAIL_TO_PASS": ["tests/test_cart.py::test_total", "tests/unit/test_sum.py::T::test"],
    "PASS_TO_PASS": ["tests/test_cart.py::test_empty", "tests/test_old.py::test_x"],
    "image_name": "jyangballin/swesmith.x86_64.shop_1776_cart.0123abcd",
    "repo": "swesmith/shop__cart.0123abcd",
    "problem_statement": "total() subtracts",
}
R2E = {
    "repo_name": "pillow",
    "docker_image": "someone/pillow_final:abc",
    "commit_hash": COMMIT,
    "parsed_commit_content": json.dumps({"file_diffs": [], "old_commit_hash": f"{COMMIT}^"}),
    "execution_result_content": "{}",
    "modified_files": ["a.py"],
    "prompt": "",
    "problem_statement": "An image turns blue.",
    "expected_output_json": json.dumps({"TestImage.test_blue": "PASSED", "TestImage.test_red": "FAILED"}),
}


def load(folder: Path, name: str, *rows: dict[str, Any], limit: int | None = None) -> list[Task]:
    return load_tasks(name, "train", jsonl(folder / "rows.jsonl", *rows), limit)


def test_a_smith_row(tmp_path: Path) -> None:
    [task] = load(tmp_path, "swe-smith", SMITH)
    row = read_row(task)
    assert (row.base_commit, row.bug_patch.decode(), row.image) == (IMAGE_HEAD, BUG, SMITH["image_name"])
    assert row.patch.decode() == BUG.replace("-a + b\n+a - b", "+a + b\n-a - b")
    assert row.hidden == ("tests/test_cart.py", "tests/unit/test_sum.py")
    assert row.pass_to_pass == ("tests/test_cart.py::test_empty",), "judged are the files that are run"
    assert row.eval_script.splitlines() == [
        "#!/bin/bash",
        "source /opt/miniconda3/bin/activate testbed",
        "cd /testbed",
        "pytest --disable-warnings --color=no --tb=no --verbose tests/test_cart.py tests/unit/test_sum.py",
    ]


def test_a_doctest_in_the_broken_file_does_not_hide_it(tmp_path: Path) -> None:
    [task] = load(tmp_path, "swe-smith", {**SMITH, "FAIL_TO_PASS": ["shop/cart.py::shop.cart.total"]})
    assert read_row(task).hidden == ()
    touched = BUG.replace("shop/cart.py", "tests/test_cart.py")
    [task] = load(tmp_path, "swe-smith", {**SMITH, "patch": touched})
    assert read_row(task).hidden == ("tests/unit/test_sum.py",)


@pytest.mark.parametrize(
    ("project", "fails", "command", "hidden", "parser"),
    [
        ("tornadoweb__tornado.d5ac65c1", "test_x (tornado.test.web_test.T)", "python -m tornado.test --verbose",
         "tornado/test", "unittest_shown"),
        ("un33k__python-slugify.872b3750", "test_x (__main__.T)", "python test.py --verbose", "test.py",
         "unittest_shown"),
        ("python__mypy.e93f06ce", "mypy/test/testcheck.py::TypeCheckSuite::check-x.test::testAdd",
         "pytest --color=no -rA -k testAdd", "test-data", "pytest"),
        ("pdfminer__pdfminer.six.1a8bd2f7", "tests/test_x.py::t",
         "pytest --disable-warnings --color=no --tb=no --verbose tests/test_x.py", "tests/test_x.py", "pytest"),
        ("paramiko__paramiko.23f92003", "tests/test_x.py::t",
         "pytest -rA --color=no --disable-warnings tests/test_x.py", "tests/test_x.py", "pytest"),
    ],
)  # fmt: skip
def test_projects_that_are_run_otherwise(
    tmp_path: Path, project: str, fails: str, command: str, hidden: str, parser: str
) -> None:
    given = {**SMITH, "repo": f"swesmith/{project}", "FAIL_TO_PASS": [fails]}
    row = read_row(load(tmp_path, "swe-smith", given)[0])
    find_parser(row.log_parser)
    assert (row.eval_script.splitlines()[-1], row.hidden[0], row.log_parser) == (command, hidden, parser)


def test_where_names_choose_the_tests_only_chosen_ones_are_judged(tmp_path: Path) -> None:
    """Another would be missing from the log, which counts as failed: no such row could ever be solved."""
    suite = "mypy/test/testcheck.py::TypeCheckSuite::check-x.test::"
    given = {
        **SMITH,
        "repo": "swesmith/python__mypy.e93f06ce",
        "FAIL_TO_PASS": [f"{suite}testAdd"],
        "PASS_TO_PASS": [f"{suite}testAddMore", f"{suite}testOther", f"{suite}alsoTESTADD"],
    }
    row = read_row(load(tmp_path, "swe-smith", given)[0])
    assert row.pass_to_pass == (f"{suite}testAddMore", f"{suite}alsoTESTADD")


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("swesmith.x86_64.Owner__Name.01234567", "jyangballin/swesmith.x86_64.owner_1776_name.01234567"),
        ("swebench/swesmith.x86_64.a_1776_b.01234567", "swebench/swesmith.x86_64.a_1776_b.01234567"),
    ],
)
def test_image_names(name: str, image: str) -> None:
    assert image_of(name) == image


def test_rows_that_cannot_run_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def other(number: int, **columns: Any) -> dict[str, Any]:
        return {**SMITH, "instance_id": f"shop__cart.0123abcd.x__{number}", **columns}

    rows = [
        other(1, problem_statement=""),
        other(2, problem_statement=None),
        other(3, FAIL_TO_PASS=["TestServe"], repo="swesmith/gin-gonic__gin.3c12d2a8"),
        other(4, FAIL_TO_PASS=["../dev/tests/test_x.py::t"]),
        other(5, patch="diff --git a/x b/x\nGIT binary patch\n"),
        other(6),
        other(7),
        other(8, problem_statement=""),
    ]
    with caplog.at_level(logging.WARNING):
        assert [task.task_id[-1] for task in load(tmp_path, "swe-smith", *rows)] == ["6", "7"]
    assert "6 of 8 rows cannot run here, left out (3: it has no problem statement; 1: its tests are not" in caplog.text
    caplog.clear()
    assert [task.task_id[-1] for task in load(tmp_path, "swe-smith", *rows, limit=1)] == ["6"]
    assert "5 of 6 rows" in caplog.text
    with pytest.raises(TaskError, match=r"none of its 2 rows can run here \(2: it has no problem statement\)"):
        load(tmp_path, "swe-smith", *rows[:2])


def test_an_r2e_row(tmp_path: Path) -> None:
    [task] = load(tmp_path, "r2e-gym", R2E)
    row = read_row(task)
    assert (row.task_id, row.base_commit, row.image) == (f"pillow__{COMMIT}", IMAGE_HEAD, "someone/pillow_final:abc")
    assert row.fail_to_pass == ("TestImage.test_blue",)
    assert row.expected == {"TestImage.test_blue": "PASSED", "TestImage.test_red": "FAILED"}
    assert row.hidden_targets == ("run_tests.sh", "r2e_tests")
    assert row.patch == b""
    assert row.problem_statement == "An image turns blue."
    find_parser(row.log_parser)


def test_r2e_outcomes_that_are_unknown_are_left_out(tmp_path: Path) -> None:
    for expected, words in (({}, "no test is expected to pass"), ({"a": "XPASS"}, "outcomes that are unknown")):
        with pytest.raises(TaskError, match=f"none of its 1 rows can run here .*{words}"):
            load(tmp_path, "r2e-gym", {**R2E, "expected_output_json": json.dumps(expected)})


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("swe-smith", {**SMITH, "image_name": ""}, "no text in column image_name"),
        ("r2e-gym", {**R2E, "expected_output_json": "[]"}, "column expected_output_json is no object"),
        (
            "r2e-gym",
            {**R2E, "parsed_commit_content": '{"file_diffs": [{}]}'},
            "column parsed_commit_content has another",
        ),
    ],
)
def test_other_columns_than_expected_refuse_the_set(tmp_path: Path, name: str, row: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        load(tmp_path, name, row)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"hidden": ["../x"]}, "column hidden: '../x' is no plain path"),
        ({"hidden": [".git/config"]}, "no plain path"),
        ({"hidden": "x"}, "must be a list of paths"),
        ({"expected": '{"a": "XFAIL"}'}, "column expected: must map test ids"),
        ({"expected": '{"a": "FAILED"}'}, "names no test that passes"),
        ({"base_commit": "main"}, "is no full commit id"),
        ({"files": {"a": "b"}, "base_commit": COMMIT}, "are for repositories that stand in the image"),
        ({"files": {"a": "b"}}, "'HEAD' is no full commit id"),
    ],
)
def test_columns_of_our_own_are_checked(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    [task] = load(tmp_path, "swe-smith", SMITH)
    with pytest.raises(TaskError, match=words):
        read_row(Task(task.task_id, task.kind, task.split, {**task.row, **columns}))
