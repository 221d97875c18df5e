"""The maths environment: rows are checked, the tool runs programs in a real sandbox, the last text is graded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from data.maths_rows import maths_task
from data.task import Task, TaskError
from envs.environment import EnvironmentFault, ToolCall
from envs.maths.answer import last_number
from envs.maths.environment import MathsEnvironment, read_maths_row, reference_problem
from envs.maths.tool import PythonTool
from envs.maths.verify import Comparer
from envs.sandbox.contract import StartFailed
from envs.sandbox.none import NoSandbox
from envs.tools.toolset import ToolLimits
from tests.envs.sandbox_support import BACKENDS, make


def task(**row: object) -> Task:
    return Task("m/1", "maths", "train", {"problem": "What is 6 times 7?", "answer": "42", **row})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": ""}, "column problem"),
        ({"answer": None}, "column answer"),
        ({"answer": "one"}, "set grading to symbolic"),
        ({"grading": "exact"}, "none of integer, symbolic"),
    ],
)
def test_rows_that_cannot_be_graded_are_refused_before_anything_starts(row: dict, words: str) -> None:
    with pytest.raises(TaskError, match="m/1") as caught:
        MathsEnvironment(task(**row))
    assert words in str(caught.value)


def test_only_maths_tasks() -> None:
    with pytest.raises(TaskError, match="kind 'maths'"):
        read_maths_row(Task("s", "swe", "train", {}))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "1"}, "column problem"),
        ({"problem": "?", "answer": True}, "column answer"),
        ({"problem": "?", "answer": " "}, "column answer"),
        ({"problem": "?", "answer": 1, "grading": "judge"}, "column grading"),
    ],
)
def test_a_row_of_a_file_is_checked_and_named(row: dict, words: str) -> None:
    with pytest.raises(TaskError, match=r"mine, row 4") as caught:
        maths_task(row, 3, split="train", source="mine", base_dir="")
    assert words in str(caught.value)


def test_numbers_become_text_and_ids_are_made() -> None:
    made = maths_task({"problem": "?", "answer": 42.0}, 3, split="train", source="mine", base_dir="")
    assert (made.task_id, made.row["answer"], made.row["grading"]) == ("mine-000003", "42", "integer")


@pytest.mark.parametrize(
    ("text", "reward", "why"),
    [
        (r"So \boxed{42}.", 1.0, "equal"),
        (r"\boxed{41}", 0.0, "different"),
        ("42", 0.0, "no_box"),
        (None, 0.0, "no_text"),
    ],
)
def test_an_episode_without_a_tool_needs_no_sandbox(text: str | None, reward: float, why: str) -> None:
    async def go() -> None:
        env = MathsEnvironment(task())
        assert env.tools == ()
        assert env.takes_text
        with pytest.raises(EnvironmentFault, match="needs reset"):
            await env.grade()
        assert await env.reset() == "What is 6 times 7?"
        with pytest.raises(EnvironmentFault, match="twice"):
            await env.reset()
        if text is not None:
            env.answer(text)
        made = await env.grade()
        assert (made.reward, made.detail["why"], made.detail["gold"]) == (reward, why, "42")
        await env.close()
        await env.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("text", "reward", "why"),
    [
        ("6 times 7 is 42.", 1.0, "equal"),
        ("42 = 6 * 7", 0.0, "different"),
        ("1,042", 0.0, "different"),
        ("42.0", 0.0, "not_an_integer"),
        ("50-8 = +42", 1.0, "equal"),
        ("it is -42", 0.0, "different"),
        ("no idea", 0.0, "no_number"),
        ("  ", 0.0, "no_text"),
    ],
)
def test_the_last_number_counts_where_the_task_says_so(text: str, reward: float, why: str) -> None:
    async def go() -> None:
        env = MathsEnvironment(task(grading="last_integer"))
        await env.reset()
        env.answer(text)
        made = await env.grade()
        assert (made.reward, made.detail["why"]) == (reward, why)

    asyncio.run(go())


def test_a_minus_behind_a_digit_subtracts() -> None:
    assert [last_number(text).text for text in ("50-8", "50 - 8", "50 -8", "(3)-4", "=-8", "1,234,567")] == [
        "8", "8", "-8", "4", "-8", "1,234,567",
    ]  # fmt: skip


def test_references_that_cannot_be_graded_are_found() -> None:
    pytest.importorskip("math_verify", reason="MATHS NOT CHECKED: math-verify is not installed (EXTRAS=dev,eval)")
    comparer = Comparer(workers=1)

    async def problem(**row: object) -> str:
        return await reference_problem(task(**row), comparer)

    async def go() -> None:
        assert await problem() == ""
        assert await problem(answer=r"\frac{1}{2}", grading="symbolic") == ""
        assert "set grading to symbolic" in await problem(answer="one")
        assert "does not verify" in await problem(answer=r"\begin{cases}", grading="symbolic")

    try:
        asyncio.run(go())
    finally:
        comparer.close()


def test_a_lone_surrogate_in_an_answer_can_be_logged() -> None:
    async def go() -> str:
        env = MathsEnvironment(task())
        await env.reset()
        env.answer("\\boxed{4\ud8002}")
        return (await env.grade()).detail["answer"]

    asyncio.run(go()).encode()


def test_a_tool_without_a_backend_and_a_backend_that_has_no_sandboxes() -> None:
    with pytest.raises(ValueError, match="needs a sandbox backend"):
        MathsEnvironment(task(), tool=PythonTool())

    async def go() -> None:
        backend = NoSandbox("r")
        await backend.check()
        assert (await backend.survey(), await backend.reap()) == ([], [])
        with pytest.raises(StartFailed, match="has no sandboxes"):
            await MathsEnvironment(task(), backend, PythonTool()).reset()
        await backend.close()

    asyncio.run(go())


def with_tool(kind: str, work: Callable[[MathsEnvironment], Awaitable[None]]) -> None:
    async def go() -> None:
        backend = make(kind)
        try:
            tool = PythonTool(ToolLimits(observation_chars=300, command_timeout_s=20, max_command_timeout_s=20))
            env = MathsEnvironment(task(), backend, tool)
            assert [schema["function"]["name"] for schema in env.tools] == ["python"]
            await env.reset()
            try:
                await work(env)
            finally:
                await env.close()
        finally:
            await backend.close()

    asyncio.run(go())


@pytest.mark.parametrize("kind", BACKENDS)
def test_programs_run_in_the_sandbox(kind: str) -> None:
    async def work(env: MathsEnvironment) -> None:
        async def run(**arguments: object) -> str:
            return (await env.step(ToolCall("python", arguments))).text

        assert await run(code="print(6 * 7)") == "42"
        assert await run(code="x = 5\nprint('π', x)") == "π 5"
        assert "NameError" in await run(code="print(x)")  # a fresh interpreter
        assert await run(code="open('kept', 'w').write('1')") == "(no output)"
        assert await run(code="print(open('kept').read())") == "1"
        assert "exit code 3" in await run(code="raise SystemExit(3)")
        assert "left out" in await run(code="print('x' * 5000)")
        slow = await env.step(ToolCall("python", {"code": "while True: pass", "timeout": 0.5}))
        assert slow.error == "timeout"
        assert "timed out after 0.5 s" in slow.text
        assert await run(code="print(1)") == "1"
        for arguments, error in (
            ({}, "missing_argument"),
            ({"code": 5}, "wrong_type"),
            ({"code": "  "}, "bad_value"),
            ({"code": "'\ud800'"}, "bad_text"),
            ({"code": "1", "lang": "c"}, "extra_argument"),
        ):
            assert (await env.step(ToolCall("python", arguments))).error == error
        assert (await env.step(ToolCall("bash", {"command": "ls"}))).error == "unknown_tool"
        env.answer(r"\boxed{42}")
        made = await env.grade()
        assert (made.reward, made.detail["calls"]) == (1.0, 15)

    with_tool(kind, work)
