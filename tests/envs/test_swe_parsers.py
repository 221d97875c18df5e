"""Log parsers on real runs of unittest and on logs that lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data.task import TaskError
from envs.swe.parsers import Outcome, ParsedLog, parse_log

MODULE = '''
import sys
import unittest


class A(unittest.TestCase):
    def test_ok(self):
        pass

    def test_doc(self):
        """First line.

        More lines."""

    def test_doc_looks_like_a_report(self):
        """other (m.A.other) ... ok"""
        sys.stderr.write("printed, then a line\\n")

    def test_prints_without_newline(self):
        sys.stderr.write("no newline")

    def test_fail(self):
        sys.stderr.write("ok\\n")
        self.fail()

    def test_error(self):
        raise RuntimeError

    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

    def test_sub_ok(self):
        for i in range(3):
            with self.subTest("message", i=i):
                pass

    def test_sub_skip(self):
        for i in range(2):
            with self.subTest(i=i):
                self.skipTest("why")

    @unittest.skip("reason (a) ... ok")
    def test_skip(self):
        pass

    @unittest.expectedFailure
    def test_xfail(self):
        self.fail()

    @unittest.expectedFailure
    def test_xpass(self):
        pass

    def test_zz_last_before_a_broken_fixture(self):
        pass


class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError

    def test_never_runs(self):
        pass


@unittest.skip("all")
class C(unittest.TestCase):
    def test_c(self):
        pass
'''


def run_unittest(folder: Path, source: str, *names: str) -> ParsedLog:
    (folder / "m.py").write_text(source)
    command = [sys.executable, "-m", "unittest", "-v", *(names or ("m",))]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return parse_log("unittest", done.stdout.decode(), done.returncode, ())


def test_a_real_run_with_everything(tmp_path: Path) -> None:
    parsed = run_unittest(tmp_path, MODULE, "m", "m_missing")
    assert parsed.outcomes == {
        "m.A.test_ok": Outcome.PASSED,
        "m.A.test_doc": Outcome.PASSED,
        "m.A.test_doc_looks_like_a_report": Outcome.PASSED,
        "m.A.test_prints_without_newline": Outcome.PASSED,
        "m.A.test_fail": Outcome.FAILED,
        "m.A.test_error": Outcome.ERROR,
        "m.A.test_sub": Outcome.FAILED,
        "m.A.test_sub_ok": Outcome.PASSED,
        "m.A.test_sub_skip": Outcome.SKIPPED,
        "m.A.test_skip": Outcome.SKIPPED,
        "m.A.test_xfail": Outcome.XFAIL,
        "m.A.test_xpass": Outcome.XPASS,
        "m.A.test_zz_last_before_a_broken_fixture": Outcome.PASSED,
        "m.C.test_c": Outcome.SKIPPED,
        "unittest.loader._FailedTest.m_missing": Outcome.ERROR,
    }
    assert parsed.suspicious == []


def test_ids_before_python_3_11() -> None:
    log = "test_a (m.A) ... ok\ntest_b (m.A)\nA docstring. ... ok\n\n" + "-" * 70 + "\nRan 2 tests in 0.001s\n\nOK\n"
    parsed = parse_log("unittest", log, 0, ())
    assert parsed.outcomes == {"m.A.test_a": Outcome.PASSED, "m.A.test_b": Outcome.PASSED}


BODY = """
import os
import sys
import unittest

class A(unittest.TestCase):
    def test_a(self):
        {lie}
        self.fail()

    def test_b(self):
        pass
"""

LIES = {
    "its own line on stderr": "sys.stderr.write('ok\\n')",
    "the whole line": "sys.stderr.write('\\ntest_a (m.A.test_a) ... ok\\n')",
    "on stdout": "print('test_a (m.A.test_a) ... ok', flush=True)",
    "on stdout at exit": "print('test_a (m.A.test_a) ... ok')",
    "a summary too": "print('ok\\n\\n' + '-' * 70 + '\\nRan 2 tests in 0.001s\\n\\nOK', flush=True)",
    "leaves early": "sys.stderr.write('ok\\n'); sys.stderr.flush(); os._exit(0)",
    "leaves early with a short summary": "print('ok\\n\\n' + '-' * 70 + '\\nRan 2 tests in 0.1s\\n\\nOK', flush=True); "
    "os._exit(0)",
    "leaves with a bad exit code": "print('ok\\ntest_b (m.A.test_b) ... ok\\n\\n' + '-' * 70 + "
    "'\\nRan 2 tests in 0.1s\\n\\nOK', flush=True); os._exit(3)",
}


@pytest.mark.parametrize("name", LIES)
def test_a_failing_test_cannot_print_itself_green(tmp_path: Path, name: str) -> None:
    parsed = run_unittest(tmp_path, BODY.format(lie=LIES[name]))
    assert parsed.outcomes.get("m.A.test_a") not in (Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED)


def test_conflicts_are_named(tmp_path: Path) -> None:
    parsed = run_unittest(tmp_path, BODY.format(lie=LIES["the whole line"]))
    assert any("m.A.test_a" in why or "summary" in why for why in parsed.suspicious)


def pytest_log(*short: str, verbose: str = "", final: str) -> str:
    head = "===== test session starts =====\ncollected 3 items\n\n" + verbose + "\n"
    middle = "===== short test summary info =====\n" + "\n".join(short) + "\n" if short else ""
    return f"{head}{middle}===== {final} in 0.12s =====\n"


def test_pytest_report_all() -> None:
    log = pytest_log(
        "PASSED tests/test_a.py::test_one",
        "PASSED tests/test_a.py::test_p[a - b]",
        "SKIPPED [1] tests/test_a.py:3: no reason",
        "XFAIL tests/test_a.py::test_x - known",
        "XPASS tests/test_a.py::test_y - odd",
        "FAILED tests/test_a.py::test_f[x - y] - assert 1 == 2",
        "ERROR tests/test_a.py::test_e - RuntimeError",
        final="1 failed, 2 passed, 1 skipped, 1 xfailed, 1 xpassed, 1 error",
    )
    parsed = parse_log("pytest", log, 1, {"tests/test_a.py::test_f[x - y]"})
    assert parsed.suspicious == []
    assert parsed.outcomes == {
        "tests/test_a.py::test_one": Outcome.PASSED,
        "tests/test_a.py::test_p[a - b]": Outcome.PASSED,
        "tests/test_a.py::test_x": Outcome.XFAIL,
        "tests/test_a.py::test_y": Outcome.XPASS,
        "tests/test_a.py::test_f[x - y]": Outcome.FAILED,
        "tests/test_a.py::test_e": Outcome.ERROR,
    }


def test_pytest_verbose() -> None:
    log = pytest_log(
        verbose="t.py::test_a PASSED   [ 50%]\nt.py::test_b[x y] SKIPPED (why) [ 75%]\nt.py::T::test_c PASSED [100%]\n",
        final="2 passed, 1 skipped",
    )
    parsed = parse_log("pytest", log, 0, ())
    assert parsed.outcomes == {
        "t.py::test_a": Outcome.PASSED,
        "t.py::test_b[x y]": Outcome.SKIPPED,
        "t.py::T::test_c": Outcome.PASSED,
    }


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (pytest_log("PASSED t.py::a", "PASSED t.py::b", final="1 passed"), 0),
        (pytest_log("PASSED t.py::a", final="1 passed") * 2, 0),
        ("PASSED t.py::a\n", 0),
        (pytest_log("PASSED t.py::a", final="1 passed"), 1),
        (pytest_log("PASSED t.py::a", "FAILED t.py::a - x", final="1 failed, 1 passed"), 1),
    ],
)
def test_pytest_lies(log: str, code: int) -> None:
    parsed = parse_log("pytest", log, code, ())
    assert parsed.outcomes.get("t.py::a") is not Outcome.PASSED


def test_a_real_pytest_run(tmp_path: Path) -> None:
    source = (
        "import pytest\n\ndef test_a():\n    print('PASSED test_m.py::test_b')\n\ndef test_b():\n"
        "    print('PASSED test_m.py::test_b')\n    assert 0\n\n@pytest.mark.parametrize('x', ['a b', 'c - d'])\n"
        "def test_p(x):\n    pass\n"
    )
    (tmp_path / "test_m.py").write_text(source)
    for flags in (["-rA"], ["-v"], ["-rA", "-v"], ["-rA", "-q"]):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", *flags, "test_m.py"]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        parsed = parse_log("pytest", done.stdout.decode(), done.returncode, ())
        outcomes = {name.rsplit("::", 1)[-1]: outcome for name, outcome in parsed.outcomes.items()}
        assert outcomes == {
            "test_a": Outcome.PASSED,
            "test_b": Outcome.FAILED,
            "test_p[a b]": Outcome.PASSED,
            "test_p[c - d]": Outcome.PASSED,
        }, done.stdout.decode()
        assert parsed.suspicious == []


def test_xdist_lines() -> None:
    verbose = "[gw0] [ 50%] PASSED t.py::test_a[x y] \n[gw12] FAILED t.py::T::test_b \n"
    log = pytest_log("FAILED t.py::T::test_b - AssertionError", verbose=verbose, final="1 failed, 1 passed")
    parsed = parse_log("pytest", log, 1, ())
    assert parsed.outcomes == {"t.py::test_a[x y]": Outcome.PASSED, "t.py::T::test_b": Outcome.FAILED}


def test_unittest_by_what_is_shown() -> None:
    log = """test_a (m.T) ... ok
test_b (m.T.test_b)
It adds. ... ok
test_c (m.T)
It adds. ... FAIL
test_d (m.T) ... skipped 'no'

======================================================================
FAIL: test_c (m.T)
It adds.
----------------------------------------------------------------------
AssertionError

----------------------------------------------------------------------
Ran 4 tests in 0.01s

FAILED (failures=1, skipped=1)
"""
    parsed = parse_log("unittest_shown", log, 1, ())
    assert parsed.outcomes == {
        "test_a (m.T)": Outcome.PASSED,
        "test_b (m.T.test_b)": Outcome.PASSED,
        "test_c (m.T)": Outcome.FAILED,
        "It adds.": Outcome.FAILED,  # two tests say so: both must pass
        "test_d (m.T)": Outcome.SKIPPED,
    }
    lost = parse_log("unittest_shown", log.replace("Ran 4 tests", "Ran 9 tests"), 1, ())
    assert Outcome.PASSED not in lost.outcomes.values()


def test_r2e_names_and_outcomes() -> None:
    log = pytest_log(
        "PASSED r2e_tests/test_1.py::TestA::test_x[a::b]",
        "PASSED r2e_tests/test_1.py::test_y[a - b]",
        "SKIPPED [1] r2e_tests/test_1.py:3: PASSED",
        "XFAIL r2e_tests/test_1.py::test_z - FAILED",
        "ERROR r2e_tests/test_2.py - ImportError: no",
        "FAILED r2e_tests/test_1.py::test_w - AssertionError: PASSED",
        "FAILED r2e_tests/test_3.py::test_y[a - AssertionError",
        final="2 failed, 2 passed, 1 skipped, 1 xfailed, 1 error",
    )
    assert parse_log("r2e_gym", log, 1, ()).outcomes == {
        "TestA.test_x[a.b]": Outcome.PASSED,
        "test_y[a": Outcome.FAILED,  # another file's test of the same name failed
        "test_z": Outcome.XFAIL,
        "": Outcome.ERROR,
        "test_w": Outcome.FAILED,  # a message that says PASSED is no pass
    }


def test_r2e_unittest_runners() -> None:
    """They print like pytest, with `module::Class::method` for ids."""
    log = """============================= test session starts =============================
...
collected 2 items

=================================== FAILURES ===================================
__________ T.test_b __________
AssertionError

==================== short test summary info ====================
PASSED test_1::T::test_a
FAILED test_1::T::test_b
=================== 1 failed, 1 passed in 0.02s ===================
"""
    assert parse_log("r2e_gym", log, 1, ()).outcomes == {"T.test_a": Outcome.PASSED, "T.test_b": Outcome.FAILED}
    assert parse_log("r2e_gym", log + log, 1, ()).outcomes["T.test_a"] is Outcome.FAILED


def test_unknown_parser() -> None:
    with pytest.raises(TaskError, match="Known: unittest, pytest"):
        parse_log("tap", "", 0, ())


def test_the_packages_names_of_pytest_parsers_are_known() -> None:
    log = pytest_log("PASSED t.py::a", final="1 passed")
    for name in ("sphinx", "astropy", "requests", "scikit"):
        assert parse_log(f"parse_log_{name}", log, 0, ()).outcomes == {"t.py::a": Outcome.PASSED}
