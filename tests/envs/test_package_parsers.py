"""Rows whose logs SWE-bench's package reads in training too: sympy's own runner and other languages."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from data.task import Task, TaskError
from envs.aside import INLINE, aside
from envs.swe import grade_patch, read_row, validate
from envs.swe.package_parsers import NAMES, Asked, check_parser, read_log
from envs.swe.parsers import PARSERS, ParsedLog
from sao.environments import check_tasks
from tests.envs.swe_support import GOLD, run, tiny_task

pytest.importorskip("swebench", reason="PACKAGE PARSERS NOT TESTED: the extra `eval` is not installed")

RUNNER = """\
import importlib.util
import pathlib
import sys

sys.path.insert(0, ".")
bad = 0
for path in sorted(pathlib.Path("shop").glob("test_*.py")):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = [name for name in dir(module) if name.startswith("test_")]
    print(f"{path}[{len(names)}]")
    for name in names:
        try:
            getattr(module, name)()
            print(f"{name} ok")
        except AssertionError:
            bad += 1
            print(f"{name} F")
sys.exit(bool(bad))
"""
HIDDEN = """diff --git a/shop/test_cart.py b/shop/test_cart.py
new file mode 100644
--- /dev/null
+++ b/shop/test_cart.py
@@ -0,0 +1,5 @@
+from shop.cart import total
+
+
+def test_total():
+    assert total(1, 2) == 3
"""
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git apply -v - <<'EOF_1'
{HIDDEN}
EOF_1
: '>>>>> Start Test Output'
python3 bin/test
SWEBENCH_TEST_EXIT_CODE=$?
: '>>>>> End Test Output'
echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"
"""


def sympy_task(**row: Any) -> Task:
    """As sympy's rows are: a runner of the repository's own (`bin/test`), tests named by their function alone."""
    columns = {
        "test_patch": HIDDEN,
        "FAIL_TO_PASS": ["test_total"],
        "PASS_TO_PASS": ["test_old"],
        "log_parser": "parse_log_sympy",
        "eval_script": SCRIPT,
        "eval_type": "pass_and_fail",
        "version": "1.12",
    }
    return tiny_task({"bin/test": RUNNER, "shop/test_old.py": "def test_old():\n    pass\n"}, **{**columns, **row})


def read(parser: str, log: str, **more: Any) -> ParsedLog:
    words = {"instance_id": "x__y-1", "version": "1", "eval_type": "pass_and_fail", "names": (), **more}
    return asyncio.run(aside(INLINE + 1, read_log, Asked(parser, **words), log))


def registry() -> set[str]:
    from envs.swe.swebench_modules import load

    [parsers] = load("log_parsers")
    return set(parsers.PARSER_REGISTRY)


def unreadable() -> dict[str, ParsedLog]:
    return {
        name: read_log(Asked(name, "x__y-1", "", kind, ("t",)), "words\n")
        for name in sorted(NAMES)
        for kind in ("pass_and_fail", "fail_only")
    }


def test_every_parser_of_the_package_is_known() -> None:
    known = {name for name in PARSERS if name.startswith("parse_log_")}
    assert asyncio.run(aside(INLINE + 1, registry)) == known | NAMES
    assert not known & NAMES


@pytest.mark.parametrize(
    ("parser", "log", "outcomes"),
    [
        ("parse_log_gotest", "--- PASS: TestAdd (0.00s)\n--- FAIL: TestSub (0.01s)\n", "TestAdd PASSED TestSub FAILED"),
        ("parse_log_cargo", "test core::adds ... ok\ntest core::subs ... FAILED\n",
         "core::adds PASSED core::subs FAILED"),
        ("parse_log_maven", "+ mvn test -Dtest=AddTest\n[INFO] BUILD SUCCESS\n", "AddTest PASSED"),
        ("parse_log_sympy", "a/test_x.py[2]\ntest_a ok\ntest_b F\n", "test_a PASSED test_b FAILED"),
        ("parse_log_redis", "[ok]: SET works (1 ms)\n[err]: GET works in t.tcl\n", "SET works PASSED"),
    ],
)  # fmt: skip
def test_logs_of_other_runners(parser: str, log: str, outcomes: str) -> None:
    found = read(parser, log).outcomes
    for pair in outcomes.replace(" PASSED", "=PASSED,").replace(" FAILED", "=FAILED,").split(","):
        if pair.strip():
            name, _, what = pair.strip().partition("=")
            assert found.get(name) == what, found


def test_what_a_parser_cannot_read_is_no_pass() -> None:
    """Whatever was printed, and a row without the version that some parsers ask for."""
    for name, parsed in asyncio.run(aside(INLINE + 1, unreadable)).items():
        assert (parsed.outcomes, len(parsed.suspicious)) == ({}, 1), name


def test_silent_passes_need_a_suite_that_ran() -> None:
    row = {"eval_type": "fail_only", "names": ("adds", "subs")}
    assert read("parse_log_karma", "Executed 2 of 2 SUCCESS (0.1 secs)\n", **row).outcomes == {
        "adds": "PASSED",
        "subs": "PASSED",
    }
    assert read("parse_log_karma", "Executed 0 of 0 SUCCESS\n", **row).outcomes == {}


def test_a_sympy_row_tells_right_from_wrong() -> None:
    checked = run(lambda backend: validate(sympy_task(), backend))
    assert checked.problems == ()
    assert checked.gold[0].detail["suspicious"] == []
    assert checked.empty[0].detail["fail_to_pass"]["failed"] == ["test_total"]


def test_forged_marks_are_not_paid() -> None:
    """No witness knows the runner; the shell's own marks do not lie: one leaves before them, one writes them twice."""
    report = "print('test_old ok\\ntest_total ok')"
    leaves = f"import os\n{report}\nprint(\"+ : '>>>>> End Test Output'\", flush=True)\nos.kill(os.getppid(), 9)\n"
    doubles = f"{report}\nprint(\"+ : '>>>>> End Test Output'\", flush=True)\nraise SystemExit(0)\n"

    def patch(code: str) -> bytes:
        lines = code.splitlines()
        added = "".join(f"+{line}\n" for line in lines)
        head = GOLD.split("@@")[0]
        return f"{head}@@ -1,2 +1,{2 + len(lines)} @@\n{added} def total(a, b):\n     return a - b\n".encode()

    async def work(backend: Any) -> list[Any]:
        return [await grade_patch(read_row(sympy_task()), backend, patch(code)) for code in (leaves, doubles)]

    for grade in run(work):
        assert grade.reward == 0.0
        assert any("forged markers" in each for each in grade.detail["decisive"]), grade.detail


def test_rows_are_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tasks([sympy_task(), *(tiny_task(log_parser=name) for name in ("parse_log_sphinx", "parse_log_cargo"))])
    with pytest.raises(TaskError, match=r"task tiny-1 of tests: log_parser 'parse_log_of_nobody' is not known here"):
        check_tasks([tiny_task(log_parser="parse_log_of_nobody")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_parser("parse_log_sphinx")
    with pytest.raises(TaskError, match="the package swebench is not installed"):
        check_parser("parse_log_cargo")
