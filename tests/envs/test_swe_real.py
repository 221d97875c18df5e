"""A real project as a task (needs the package index once), and the offline SWE-bench row of the test data."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from pathlib import Path

import pytest

from data.loaders import load_tasks
from data.real_task import DownloadFailed, real_tasks
from data.task import Task
from envs.environment import Grade
from envs.sandbox import SandboxBackend, make_backend
from envs.swe import SWEEnvironment, grade_patch, read_row, validate
from envs.swe.real import make_real_task
from tests.conftest import REAL_CACHE
from tests.envs.swe_support import call, run
from tests.shared_data import need_shared


async def fix_by_tools(task: Task, backend: SandboxBackend, new: str) -> Grade:
    environment = SWEEnvironment(task, backend)
    try:
        assert (await environment.reset()).startswith("`last()` fails on an object")
        seen = await environment.step(call("bash", command="grep -n __reversed__ more_itertools/more.py"))
        assert "hasattr(iterable, '__reversed__')" in seen.text
        edit = call(
            "str_replace", path="more_itertools/more.py", old_str="hasattr(iterable, '__reversed__')", new_str=new
        )
        assert (await environment.step(edit)).text == "Edited more_itertools/more.py."
        ran = await environment.step(call("bash", command="python3 -m unittest tests.test_more.LastTests"))
        assert "OK" in ran.text
        return await environment.grade()
    finally:
        await environment.close()


async def check(task: Task, backend: SandboxBackend) -> None:
    checked = await validate(task, backend)
    assert checked.problems == ()
    assert [grade.reward for grade in (*checked.gold, *checked.empty)] == [1.0, 0.0]
    right, wrong = await asyncio.gather(
        fix_by_tools(task, backend, "getattr(iterable, '__reversed__', None)"),
        fix_by_tools(task, backend, "hasattr(iterable,  '__reversed__')"),
    )
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.patch.count(b"diff --git") == 1  # what the test run left behind is no part of it


def test_a_real_project_embedded(real: Task) -> None:
    run(lambda backend: check(real, backend))


@pytest.mark.docker
def test_a_real_project_docker(real: Task) -> None:
    run(lambda backend: check(real, backend), make_backend("docker", "swe-tests"))


@pytest.mark.docker
def test_a_real_project_run_by_pytest_in_an_image_of_its_own(tmp_path: Path) -> None:
    """Its ids hold spaces and brackets; our own log parser names them whole."""

    async def work(backend: SandboxBackend) -> None:
        real = real_tasks()["sqlparse-hints"]
        task, lists = await make_real_task(real, tmp_path / "rows.jsonl", REAL_CACHE, backend)
        assert lists.fail_to_pass == ("tests/test_format.py::TestFormat::test_strip_comments_preserves_hint",)
        assert "tests/test_grouping.py::test_grouping_assignment[foo := 1;]" in lists.pass_to_pass
        checked = await validate(load_tasks("real", "test", tmp_path / "rows.jsonl")[0], backend)
        assert (checked.problems, task.row["image"]) == ((), "sao-real/sqlparse-hints:latest")

    try:
        run(work, make_backend("docker", "swe-tests"))
    except DownloadFailed as error:
        pytest.skip(f"REAL TASK NOT RUN: {error}")


def test_the_offline_swebench_row() -> None:
    """Its image is not here; its repository, patches, eval script and log format are SWE-bench's own."""
    rows = need_shared("swe", "toy", "toy_calc_v5.jsonl")
    if importlib.util.find_spec("pytest") is None:
        pytest.skip("TOY ROW NOT RUN: its eval script needs pytest in the sandbox")
    task = load_tasks("toy", "test", rows)[0]
    task = dataclasses.replace(task, row={**task.row, "bundle": "testbed.bundle", "portable": True})

    async def work(backend: SandboxBackend) -> None:
        checked = await validate(task, backend)
        if "No module named pytest" in checked.gold[0].detail["log_tail"]:
            pytest.skip("TOY ROW NOT RUN: the sandbox's python has no pytest")
        assert checked.problems == (), checked.gold[0].detail
        wrong = await grade_patch(read_row(task), backend, task.row["patch"].replace("a + b", "a * b").encode())
        assert wrong.reward == 0.0
        assert wrong.detail["fail_to_pass"]["failed"] == ["test_calc.py::test_add"]
        assert wrong.detail["pass_to_pass"]["passed"] == ["test_calc.py::test_sub"]

    run(work)
