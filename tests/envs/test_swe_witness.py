"""The runner's own note, beside the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.swe.parsers import Outcome, parse_log
from envs.swe.witness import SOURCE, can_watch, compare, compare_loosely


@pytest.mark.parametrize(
    ("parser", "script", "watched"),
    [
        ("unittest", "cd /testbed && python3 -m unittest -v tests.test_x 2>&1\n", True),
        ("unittest", "cd /testbed && python3 -B -m unittest -v tests.test_x 2>&1\n", True),
        ("pytest", "cd /testbed && python -m pytest -rA tests 2>&1", True),
        ("unittest", "cd /testbed && PYTHONPATH=src python3 -m unittest -v t", False),
        ("unittest", "cd /testbed && python3 -I -m unittest -v t", False),
        ("unittest", "cd /testbed && python3 run.py", False),
        ("parse_log_pytest", "python3 -m pytest -rA", False),
    ],
)
def test_only_plain_commands_are_watched(parser: str, script: str, watched: bool) -> None:
    assert can_watch(parser, script) is watched


def watch(folder: Path, source: str, *command: str, green: str = "") -> tuple[str, int, bytes]:
    (folder / "start").mkdir()
    (folder / "start/sitecustomize.py").write_text(SOURCE)
    (folder / "work").mkdir()
    (folder / "work/test_m.py").write_text(source)
    (folder / "work/green.py").write_text(green)
    env = {**os.environ, "PYTHONPATH": str(folder / "start"), "SAO_NOTE": str(folder / "note")}
    line = [sys.executable, *command]
    out = subprocess.PIPE
    done = subprocess.run(line, cwd=folder / "work", env=env, stdout=out, stderr=subprocess.STDOUT, check=False)
    note = folder / "note"
    return done.stdout.decode(), done.returncode, note.read_bytes() if note.exists() else b""


UNITTEST = """
import os, subprocess, sys, unittest

class T(unittest.TestCase):
    def test_clean(self):
        self.assertNotIn("SAO_NOTE", os.environ)
        self.assertNotIn("PYTHONPATH", os.environ)
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    def test_sub(self):
        for i in range(2):
            with self.subTest(i=i):
                self.assertEqual(i, 0)

    def test_bad(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass
"""


def test_unittest_notes_what_it_holds(tmp_path: Path) -> None:
    log, code, note = watch(tmp_path, UNITTEST, "-m", "unittest", "-v", "test_m")
    parsed = compare(parse_log("unittest", log, code, ()), note)
    assert parsed.suspicious == [], log
    assert parsed.outcomes == {
        "test_m.T.test_clean": Outcome.PASSED,
        "test_m.T.test_sub": Outcome.FAILED,
        "test_m.T.test_bad": Outcome.FAILED,
        "test_m.T.test_unexpected": Outcome.XPASS,
    }
    assert note.count(b"\n") == 1


def test_pytest_notes_what_it_holds(tmp_path: Path) -> None:
    source = "def test_a(): pass\n\ndef test_b(): assert 0\n"
    log, code, note = watch(
        tmp_path, source, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "-rA", "test_m.py"
    )
    parsed = compare(parse_log("pytest", log, code, ()), note)
    assert parsed.suspicious == [], log
    assert sorted(parsed.outcomes.values()) == [Outcome.FAILED, Outcome.PASSED]
    assert b'"passed": 1' in note


GREEN_PYTEST = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    made = yield
    made.get_result().outcome = "passed"
"""
GREEN_UNITTEST = """
import unittest

unittest.TextTestResult.addFailure = lambda self, test, error: self.addSuccess(test)

class T(unittest.TestCase):
    def test_bad(self):
        self.fail()
"""


def test_a_runner_that_greens_everything_gives_itself_away(tmp_path: Path) -> None:
    (tmp_path / "pytest").mkdir()
    line = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "green", "-c", "/dev/null", "-rA", "test_m.py")
    log, code, note = watch(tmp_path / "pytest", "def test_b(): assert 0\n", *line, green=GREEN_PYTEST)
    parsed = parse_log("pytest", log, code, ())
    assert list(parsed.outcomes.values()) == [Outcome.PASSED], log
    assert list(compare(parsed, note).outcomes.values()) == [Outcome.FAILED]
    assert parsed.suspicious == ["the test runner counts a call that fails as passed"]
    (tmp_path / "unittest").mkdir()
    log, code, note = watch(tmp_path / "unittest", GREEN_UNITTEST, "-m", "unittest", "-v", "test_m")
    parsed = parse_log("unittest", log, code, ())
    assert list(parsed.outcomes.values()) == [Outcome.PASSED], log
    assert list(compare(parsed, note).outcomes.values()) == [Outcome.FAILED]


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"ran": 1}\n', b"\xff"])
def test_no_note_no_passes(note: bytes) -> None:
    log = "test_a (m.A.test_a) ... ok\n\n" + "-" * 70 + "\nRan 1 test in 0.001s\n\nOK\n"
    parsed = parse_log("unittest", log, 0, ())
    assert parsed.outcomes["m.A.test_a"] is Outcome.PASSED
    assert compare(parsed, note).outcomes["m.A.test_a"] is Outcome.FAILED
    assert parsed.suspicious


def test_the_note_wins_over_the_log() -> None:
    log = "test_a (m.A.test_a) ... ok\ntest_b (m.A.test_b) ... ok\n\n" + "-" * 70 + "\nRan 2 tests in 0.001s\n\nOK\n"
    parsed = compare(parse_log("unittest", log, 0, ()), b'{"ran": 2, "passed": null, "bad": ["m.A.test_a (i=1)"]}\n')
    assert parsed.outcomes == {"m.A.test_a": Outcome.FAILED, "m.A.test_b": Outcome.PASSED}
    fewer = compare(parse_log("unittest", log, 0, ()), b'{"ran": 1, "passed": null, "bad": []}\n')
    assert Outcome.PASSED not in fewer.outcomes.values()


@pytest.mark.parametrize(
    ("note", "counts"),
    [
        (b"", True),  # the image's Python never loaded the module
        (b'{"began": true}\n', False),
        (b'{"began": true}\n{"ran": null, "passed": 1, "bad": [], "probe": true}\n', True),
        (b'{"ran": 9, "passed": null, "bad": [], "probe": false}\n', True),  # a unittest runner of the set's own
        (b'{"began": true}\n{"ran": 1, "passed": null, "bad": []}\n', False),
    ],
)
def test_in_other_peoples_images_a_pytest_without_an_end_is_a_finding(note: bytes, counts: bool) -> None:
    parsed = parse_log("pytest", "t.py::a PASSED\n=== 1 passed in 0.01s ===\n", 0, ())
    assert (compare_loosely(parsed, note).outcomes["t.py::a"] is Outcome.PASSED) is counts
