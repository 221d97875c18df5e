"""Episodes and verdicts on the embedded sandbox (and, where an engine answers, on Docker)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from data.task import Task, TaskError
from envs.environment import EnvironmentFault, Grade
from envs.sandbox import SandboxBackend, make_backend
from envs.swe import SWEEnvironment, SweLimits, grade_patch, read_row, validate
from envs.swe.guard import Judged, patch_findings
from envs.tools import DEMO_TOOLS, ToolSet
from tests.envs.swe_support import (
    EVAL,
    F2P,
    GOLD,
    OLD,
    P2P,
    TEST_PATCH,
    call,
    embedded,
    episode,
    run,
    shell,
    tiny_task,
)

FIX = "sed -i 's/a - b/a + b/' shop/cart.py"


def graded(patch: str, task: Task | None = None, limits: SweLimits | None = None) -> Grade:
    async def work(backend: SandboxBackend) -> Grade:
        return await grade_patch(read_row(task or tiny_task()), backend, patch.encode(), limits)

    return run(work)


async def demo_episode(backend: SandboxBackend, operator: str) -> Grade:
    environment = SWEEnvironment(tiny_task(), backend, ToolSet(DEMO_TOOLS))
    try:
        assert await environment.reset() == "total() subtracts."
        seen = await environment.step(call("view", path="shop/cart.py"))
        assert seen.text == "def total(a, b):\n    return a - b"
        edit = call("str_replace", path="shop/cart.py", old_str="a - b", new_str=f"a {operator} b")
        assert (await environment.step(edit)).text == "Edited shop/cart.py."
        assert (await environment.step(call("bash", command="ls"))).error == "unknown_tool"
        assert (await environment.step(call("submit"))).done
        return await environment.grade()
    finally:
        await environment.close()
        await environment.close()


@pytest.mark.parametrize(("operator", "reward"), [("+", 1.0), ("*", 0.0)])
def test_an_episode(operator: str, reward: float) -> None:
    grade = run(lambda backend: demo_episode(backend, operator))
    assert grade.reward == reward
    assert f"+    return a {operator} b".encode() in grade.patch
    assert json.loads(json.dumps(grade.detail)) == grade.detail
    assert set(grade.detail["fail_to_pass"]["passed" if reward else "failed"]) == {F2P}
    assert set(grade.detail["pass_to_pass"]["passed"]) == {P2P, OLD}
    assert "Ran 3 tests" in grade.detail["log_tail"]


def test_episodes_at_once_do_not_mix() -> None:
    async def work(backend: SandboxBackend) -> list[Grade]:
        return await asyncio.gather(*(demo_episode(backend, "+" if i % 2 else "*") for i in range(6)))

    assert [grade.reward for grade in run(work)] == [0.0, 1.0] * 3


def test_gold_passes_and_nothing_fails() -> None:
    checked = run(lambda backend: validate(tiny_task(), backend, repeats=2))
    assert checked.problems == ()
    assert checked.usable


def test_bad_tasks_are_found_by_validation() -> None:
    free = tiny_task(FAIL_TO_PASS=[P2P], PASS_TO_PASS=[])
    assert run(lambda backend: validate(free, backend)).problems == ("doing nothing is graded as solved",)
    wrong = tiny_task(patch=GOLD.replace("a + b", "a * b"))
    assert "not graded as solved" in run(lambda backend: validate(wrong, backend)).problems[0]


def test_the_test_patch_wins_over_the_agents_files() -> None:
    fake = "import unittest\\n\\nclass TestCart(unittest.TestCase):\\n    def test_total(self): pass\\n"
    fake += "    def test_zero(self): pass\\n"
    for script in (
        f"printf '{fake}' > tests/test_cart.py",
        "mkdir tests/test_cart.py && echo x > tests/test_cart.py/y",
        f"printf '{fake}' > /tmp/fake.py && ln -s /tmp/fake.py tests/test_cart.py",
    ):
        grade = episode(shell(script))
        assert grade.reward == 0.0
        assert grade.detail["fail_to_pass"]["failed"] == [F2P]
        assert grade.detail["pass_to_pass"]["failed"] == []


def test_missing_tests_failed() -> None:
    grade = graded(GOLD, tiny_task(PASS_TO_PASS=[P2P, "tests.test_cart.TestCart.test_gone"]))
    assert grade.reward == 0.0
    assert grade.detail["pass_to_pass"]["failed"] == ["tests.test_cart.TestCart.test_gone"]


@pytest.mark.parametrize(
    "patch",
    [
        "diff --git a/shop/none.py b/shop/none.py\n--- a/shop/none.py\n+++ b/shop/none.py\n@@ -1 +1 @@\n-a\n+b\n",
        "this is no patch\n",
        GOLD.replace("a - b", "a / b"),
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+a\n",
        "diff --git a/.git/x b/.git/x\nnew file mode 100644\n--- /dev/null\n+++ b/.git/x\n@@ -0,0 +1 @@\n+a\n",
    ],
)
def test_a_patch_that_does_not_apply_is_a_zero_with_its_reason(patch: str) -> None:
    grade = graded(patch)
    assert grade.reward == 0.0
    assert "does not apply" in grade.detail["reason"]


def test_a_patch_without_final_newline_applies() -> None:
    assert graded(GOLD.rstrip("\n")).reward == 1.0


def test_tests_that_never_end_are_a_zero() -> None:
    loop = GOLD.replace("+    return a + b", "+    while True: pass")
    grade = graded(loop, tiny_task(eval_timeout_s=1.5))
    assert grade.reward == 0.0
    assert grade.detail["reason"] == "the tests did not end within 1.5 s"


PERFECT = (
    f"test_total ({F2P}) ... ok\\ntest_zero ({P2P}) ... ok\\ntest_x ({OLD}) ... ok\\n\\n"
    + "-" * 70
    + "\\nRan 3 tests in 0.001s\\n\\nOK"
)
FORGERIES = {
    "a perfect log, then leaves": f"import os; print('{PERFECT}', flush=True); os._exit(0)",
    "a perfect log in an import": f"pass\n+import sys; print('{PERFECT}', flush=True); sys.exit(0)",
    "a perfect log, then is replaced": f"import os; print('{PERFECT}', flush=True); os.execv('/bin/true', ['true'])",
    "prints the line": "import sys; sys.stderr.write('ok\\n'); return a - b",
    "exits early": f"import os; print('test_total ({F2P}) ... ok'); os._exit(0)",
    "a summary": "print('\\n' + '-' * 70 + '\\nRan 3 tests in 0.001s\\n\\nOK', flush=True); return a - b",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_output_is_no_pass(name: str) -> None:
    body = FORGERIES[name]
    lines = 2 + body.count("\n+")
    patch = GOLD.replace("+    return a + b", f"+    {body}").replace("+1,2 @@", f"+1,{lines} @@")
    grade = graded(patch)
    assert grade.reward == 0.0, grade.detail
    assert F2P in grade.detail["fail_to_pass"]["failed"]


def test_a_patch_that_replaces_the_runner_is_a_zero() -> None:
    fake = "print('test_total (tests.test_cart.TestCart.test_total) ... ok')"
    grade = episode(shell(f'mkdir unittest; touch unittest/__init__.py; echo "{fake}" > unittest/__main__.py'))
    assert grade.reward == 0.0
    grade = episode(shell(f"{FIX}; echo 'import os' > sitecustomize.py"))
    assert grade.reward == 0.0
    assert (
        grade.detail["reason"] == "how tests report: it adds sitecustomize.py, which the test run reads before any test"
    )


def test_a_patch_that_is_flagged_decisively_is_not_paid() -> None:
    fixture = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    fixture += "@@ -0,0 +1,3 @@\n"
    hook = fixture + "+def pytest_runtest_call(item):\n+    pass\n+\n"
    grade = graded(GOLD + hook)
    assert grade.reward == 0.0
    assert grade.detail["decisive"]
    assert grade.detail["reason"] == grade.detail["decisive"][0]
    shown = graded(GOLD + fixture + "+import pytest\n+\n+# none yet\n")
    assert (shown.reward, shown.detail["decisive"]) == (1.0, [])
    assert shown.detail["suspicious"]
    assert patch_findings(Judged(read_row(tiny_task())), GOLD.encode()) == []


def test_an_eval_script_that_applies_its_own_test_patch() -> None:
    script = f"cd /testbed\ngit apply - <<'END'\n{TEST_PATCH}END\n{EVAL}"
    task = tiny_task(eval_script=script)
    assert graded(GOLD, task).reward == 1.0
    grade = episode(shell(f"{FIX}; echo 'broken' > tests/test_cart.py"), task)
    assert grade.reward == 1.0, grade.detail


def test_marks_around_the_test_output() -> None:
    script = f"#!/bin/bash\nset -x\n: '>>>>> Start Test Output'\n{EVAL}: '>>>>> End Test Output'\nfalse\n"
    task = tiny_task(eval_script=script)
    assert graded(GOLD, task).reward == 1.0
    lie = GOLD.replace("+    return", "+    print(\"+ : '>>>>> Start Test Output'\", flush=True)\n+    return")
    grade = graded(lie.replace("+1,2 @@", "+1,3 @@"), task)
    assert grade.reward == 0.0
    assert any("start and" in why for why in grade.detail["suspicious"])


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": "[oops"}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS"),
        ({"base_commit": "main"}, "base_commit"),
        ({"problem_statement": ""}, "problem_statement"),
        ({"eval_script": None}, "eval_script"),
        ({"files": "{"}, "files"),
        ({"files": None, "bundle": "none.bundle"}, "bundle"),
        ({"repo_dir": "/"}, "repo_dir"),
        ({"eval_timeout_s": -1}, "eval_timeout_s"),
        ({"log_parser": "tap"}, "log_parser"),
    ],
)
def test_rows_that_cannot_run_are_refused_before_any_sandbox(row: dict[str, Any], column: str) -> None:
    with pytest.raises(TaskError, match=column):
        SWEEnvironment(tiny_task(**row), embedded())


REPORTS = """\
from shop.cart import total
good = total(1, 2) == 3
print("=== short test summary info ===")
print("PASSED tests/test_x.py::test_names[a b]")
print("PASSED" if good else "FAILED", "tests/test_x.py::test_total[log(photon / s)]")
print("=== 2 passed in 0.01s ===" if good else "=== 1 failed, 1 passed in 0.01s ===")
raise SystemExit(not good)
"""


@pytest.mark.parametrize("parser", ["parse_log_pytest", "parse_log_pytest_options", "parse_log_astropy"])
def test_ids_that_are_cut_at_a_space_are_paid(parser: str) -> None:
    """As the official parsers cut them, and as SWE-bench's rows therefore name them: gold earns 1, nothing 0."""
    task = tiny_task(
        {"report.py": REPORTS},
        FAIL_TO_PASS=["tests/test_x.py::test_total[log(photon"],
        PASS_TO_PASS=["tests/test_x.py::test_names[a"],
        log_parser=parser,
        eval_script="cd /testbed && python3 report.py 2>&1\n",
    )
    checked = run(lambda backend: validate(task, backend))
    assert checked.problems == ()
    assert [grade.reward for grade in (*checked.gold, *checked.empty)] == [1.0, 0.0]


def test_an_image_row_is_refused_by_the_embedded_sandbox() -> None:
    with pytest.raises(TaskError, match=r"needs its image python:3\.12.*--sandbox docker"):
        SWEEnvironment(tiny_task(image="python:3.12"), embedded())
    SWEEnvironment(tiny_task(image="python:3.12", portable=True), embedded())


def test_lists_may_be_json_text() -> None:
    row = read_row(tiny_task(FAIL_TO_PASS=json.dumps([F2P]), PASS_TO_PASS="[]", files=json.dumps({"a": "b"})))
    assert row.fail_to_pass == (F2P,)
    assert row.pass_to_pass == ()
    assert row.files == {"a": "b"}


def test_a_wrong_base_commit_is_a_fault() -> None:
    async def work(backend: SandboxBackend) -> None:
        environment = SWEEnvironment(tiny_task(base_commit="1" * 40), backend)
        try:
            await environment.reset()
        finally:
            await environment.close()

    with pytest.raises(EnvironmentFault, match="its base_commit says"):
        run(work)


def test_a_broken_test_patch_is_a_fault_not_a_zero() -> None:
    with pytest.raises(EnvironmentFault, match="test_patch does not apply"):
        graded(GOLD, tiny_task(test_patch=GOLD.replace("a - b", "nothing like it")))


def test_calls_out_of_order_are_faults() -> None:
    async def work(backend: SandboxBackend) -> None:
        environment = SWEEnvironment(tiny_task(), backend)
        with pytest.raises(EnvironmentFault, match="needs reset"):
            await environment.step(call("submit"))
        with pytest.raises(EnvironmentFault, match="needs reset"):
            await environment.grade()
        await environment.close()

    run(work)


@pytest.mark.docker
def test_an_episode_on_docker() -> None:
    def docker() -> SandboxBackend:
        return make_backend("docker", "swe-tests")

    for operator, reward in (("+", 1.0), ("*", 0.0)):
        grade = run(lambda backend, operator=operator: demo_episode(backend, operator), docker())
        assert grade.reward == reward
        assert set(grade.detail["pass_to_pass"]["passed"]) == {P2P, OLD}
    hard = episode(shell(f"{FIX}; rm -rf .git; chmod 000 shop; printf 'x' > ' odd\\n name'"), backend=docker())
    assert hard.reward == 1.0, hard.detail
    assert hard.patch.count(b"diff --git") == 2


def test_a_verifier_judges_instead_of_the_parsers() -> None:
    """Benchmarks bring their own: the row's parser need not be known here, the patch is the driver's diff."""
    seen: list[bytes] = []

    async def verifier(patch: bytes) -> Grade:
        seen.append(patch)
        return Grade(0.5, {"by": "tests"}, patch)

    async def work(backend: SandboxBackend) -> list[Grade]:
        task = tiny_task(log_parser="parse_log_of_nobody")
        with pytest.raises(TaskError, match="parse_log_of_nobody"):
            SWEEnvironment(task, backend)
        grades = []
        for script, size in ((FIX, 1 << 20), ("seq 20000 >more.txt", 1000)):
            environment = SWEEnvironment(task, backend, ToolSet(), SweLimits(patch_bytes=size), verifier=verifier)
            try:
                await environment.reset()
                assert environment.sandbox is not None
                await environment.sandbox.exec(script)  # the second leaves more than may be read out
                grades.append(await environment.grade())
            finally:
                await environment.close()
        return grades

    grades = run(work)
    assert [grade.reward for grade in grades] == [0.5, 0.5]
    assert b"+    return a + b" in seen[0]
    assert seen[1] == b""
