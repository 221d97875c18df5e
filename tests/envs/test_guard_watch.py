"""The runner's own note, beside the log."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from envs.swe.grading import _settle
from envs.swe.guard import Noted, Watch, can_watch, may_watch
from envs.swe.guard.watch import Word
from envs.swe.parsers import Outcome, parse_log
from envs.swe.row import read_row
from tests.envs.swe_support import tiny_task


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


def watch(folder: Path, source: str, *command: str, **more: str) -> tuple[str, int, Noted]:
    """Runs `command` with Python on test_m.py (`source`) and other modules (`more`); all under watch."""
    (folder / "work").mkdir(exist_ok=True)
    for name, text in {"test_m": source, **more}.items():
        (folder / "work" / f"{name}.py").write_text(text)
    seen = Watch(str(folder / "driver"), str(folder / "work"), True, {"test_m.py": ""})
    for name, data in seen.files.items():
        (folder / "driver" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "driver" / name).write_bytes(data)
    line = f"{seen.prefix} {shlex.join([sys.executable, *command])} 2>&1 {seen.suffix}"
    done = subprocess.run(["sh", "-c", line], cwd=folder / "work", stdout=subprocess.PIPE, check=False)
    log, noted = seen.split(done.stdout)
    return log.decode(), done.returncode, noted


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


def test_unittest_tells_what_it_holds(tmp_path: Path) -> None:
    log, _, noted = watch(tmp_path, UNITTEST, "-m", "unittest", "-v", "test_m")
    assert noted.whole, log
    assert "\x1e" not in log
    assert noted.outcomes == {
        "test_m.T.test_clean": "passed",
        "test_m.T.test_sub (i=1)": "failed",
        "test_m.T.test_bad": "failed",
        "test_m.T.test_unexpected": "xpassed",
    }
    [end] = noted.ends
    assert (end["probe"], end["changed"], end["strange"], end["other_bytes"]) == (True, [], [], [])
    assert end["where"]["test_m.T.test_clean"] == str(tmp_path / "work/test_m.py")


PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".")


def test_pytest_tells_what_it_holds(tmp_path: Path) -> None:
    source = "import pytest\n\ndef test_a(): pass\n\ndef test_b(): assert 0\n\n"
    source += "def test_c(): pytest.xfail('x')\n\n@pytest.mark.skip\ndef test_d(): pass\n"
    log, _, noted = watch(tmp_path, source, *PYTEST, "-rA", "test_m.py")
    assert noted.whole, log
    ends = dict(zip("abcd", ("passed", "failed", "xfailed", "skipped"), strict=True))
    assert noted.outcomes == {f"test_m.py::test_{one}": end for one, end in ends.items()}
    [end] = noted.ends
    changed = [name for name, source in end["changed"] if "site-packages" not in source]  # plugins that are here
    assert (end["probe"], changed, end["strange"]) == (True, [], []), end
    assert set(end["where"].values()) == {str(tmp_path / "work/test_m.py")}


def test_quiet_runners_are_told_all_the_same(tmp_path: Path) -> None:
    log, _, noted = watch(tmp_path, "def test_a(): pass\n", *PYTEST, "-qq", "test_m.py")
    assert "passed" not in log
    assert noted.outcomes == {"test_m.py::test_a": "passed"}


@pytest.mark.parametrize(
    ("parser", "command"),
    [
        ("pytest", [*PYTEST, "-q", "test_m.py"]),
        ("pytest", [*PYTEST, "-qq", "--no-summary", "test_m.py"]),
        ("parse_log_pytest", ["-c", "import pytest; pytest.main(['-qq', '-c', '/dev/null', '--rootdir', '.'])"]),
        ("unittest", ["-m", "unittest", "-q", "test_m"]),
        ("unittest", ["-c", "import unittest; unittest.main('test_m')"]),
        ("unittest", ["run.py"]),
        ("parse_log_django", ["run.py"]),
    ],
)
def test_a_runner_that_names_no_test_has_a_verdict(tmp_path: Path, parser: str, command: list[str]) -> None:
    source = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"
    run = "import os, unittest\nunittest.TextTestRunner(open(os.devnull, 'w'), verbosity=0).run("
    run += "unittest.defaultTestLoader.loadTestsFromName('test_m'))\n"
    log, code, noted = watch(tmp_path, source, *command, run=run)
    name = "test_m.py::T::test_a" if "pytest" in parser else "test_m.T.test_a"
    row = dataclasses.replace(read_row(tiny_task()), log_parser=parser, fail_to_pass=(name,), pass_to_pass=())
    assert can_watch(parser, "python3 " + " ".join(command)) or may_watch(parser, "python3 " + " ".join(command))
    parsed = parse_log(parser, log, code, {name}, watched=noted.whole)
    assert parsed.unsure, log
    _settle(row, parsed, noted)
    assert (parsed.outcomes, parsed.suspicious) == ({name: Outcome.PASSED}, []), log
    unwatched = parse_log(parser, log, code, {name})
    assert not unwatched.outcomes
    assert unwatched.suspicious


def test_a_pytest_inside_pytest_is_not_the_runner(tmp_path: Path) -> None:
    source = """
    import pytest, subprocess, sys
    pytest_plugins = "pytester"

    def test_in_process(pytester):
        pytester.makepyfile("def test_q(): assert 0")
        pytester.runpytest_inprocess().assert_outcomes(failed=1)

    def test_apart(pytester):
        pytester.makepyfile("def test_q(): assert 0")
        pytester.runpytest_subprocess().assert_outcomes(failed=1)
    """
    log, _, noted = watch(tmp_path, textwrap.dedent(source), *PYTEST, "-rA", "test_m.py")
    assert len(re.findall(r"\d (?:passed|failed) in ", log)) > 1, log
    assert noted.outcomes == {"test_m.py::test_in_process": "passed", "test_m.py::test_apart": "passed"}, log
    assert len(noted.of("began")) == len(noted.ends) == 1


GREEN_PYTEST = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    made = yield
    made.get_result().outcome = "passed"
"""
BAD = "import {product}\nimport unittest\n\nclass T(unittest.TestCase):\n    def test_bad(self):\n        "
UNITTEST_LINE = ("-m", "unittest", "-v", "test_m")
NEUTERED = {
    "assertEqual is replaced": "import unittest\nunittest.TestCase.assertEqual = lambda *words: None",
    "its code is replaced": "import unittest\nunittest.TestCase.assertEqual.__code__ = (lambda *words: None).__code__",
    "a failure counts as success": "import unittest\nunittest.TextTestResult.addFailure = "
    "lambda self, test, error: self.addSuccess(test)",
    "no exception is a failure": "import unittest\nunittest.TestCase.failureException = KeyError",
    "tests are not called": "import unittest\nunittest.TestCase._callTestMethod = lambda self, method: None",
    "run is replaced": "import unittest\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)",
    "a class is put between": "import unittest\nclass B:\n    def assertEqual(self, *words): pass\n"
    "unittest.TestCase.__bases__ = (B,)\ndel unittest.TestCase.assertEqual",
}


@pytest.mark.parametrize("name", NEUTERED)
def test_a_framework_that_is_not_what_it_was_is_told(tmp_path: Path, name: str) -> None:
    log, _, noted = watch(
        tmp_path, BAD.format(product="m") + "self.assertEqual(1, 2)\n", *UNITTEST_LINE, m=NEUTERED[name]
    )
    [end] = noted.ends or [{"changed": [], "probe": None}]
    assert end["changed"] or not noted.whole, log


LOADER = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader

class Loader(SourceFileLoader):
    def get_code(self, name):
        text = self.get_data(self.path).replace(b"super(TextTestResult, self).addFailure(test, err)", b"pass")
        return compile(text, self.path, "exec")

class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "unittest.runner" else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(1, Finder())
def safe_repr(*words): return ""
def pformat(*words): return ""
"""


def test_a_framework_that_another_loader_made_is_held_against_its_file(tmp_path: Path) -> None:
    """The standard library's pprint is taken from the work folder, while unittest itself is loaded."""
    log, _, noted = watch(
        tmp_path, BAD.format(product="m") + "self.assertEqual(1, 2)\n", *UNITTEST_LINE, m="", pprint=LOADER
    )
    [end] = noted.ends
    assert "unittest.runner.addFailure" in [name for name, _ in end["unlike"]], (end, log)


def test_a_clean_framework_is_what_its_files_make(tmp_path: Path) -> None:
    source = "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"
    _, _, noted = watch(tmp_path, source, *PYTEST, "-rA", "test_m.py")
    assert [end["unlike"] for end in noted.ends] == [[]]


REACHES = {
    "frames": ("import sys\ndef f():\n    return sys._getframe(1)\nf()", "sys._getframe"),
    "other objects": ("import gc\ngc.get_objects()", "gc.get_objects"),
    "its environment": ("open('/proc/self/environ').read()", "open /proc/"),
    "the driver's folder": ("import glob\ntry: open('/tmp/.driver-x/start/y')\nexcept OSError: pass", "open /tmp/."),
    "the test file": ("open('test_m.py').read()", "open a judged file"),
    "code on disk": ("open('new.py', 'w').close()", "write code"),
    "a trace": ("import sys\nsys.settrace(None)", "sys.settrace"),
    "from a text": ("exec('import gc; gc.get_objects()')", "gc.get_objects"),
}


@pytest.mark.parametrize("name", REACHES)
def test_what_code_reaches_for_is_told_with_its_line(tmp_path: Path, name: str) -> None:
    code, event = REACHES[name]
    _, _, noted = watch(tmp_path, BAD.format(product="m") + "pass\n", *UNITTEST_LINE, m=code)
    assert [event, "m.py"] in [[what, path] for what, path, _ in noted.of("act")]


def test_code_that_is_not_the_files_is_told(tmp_path: Path) -> None:
    """The product swaps the test's function while it is called for the first test."""
    product = (
        "import sys, types\ndef swap():\n    made = {}\n"
        "    exec(compile('def test_b(self): pass', sys.modules['test_m'].__file__, 'exec'), made)\n"
        "    sys.modules['test_m'].T.test_b = made['test_b']\n"
    )
    source = "import m\nimport unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        m.swap()\n\n"
    source += "    def test_b(self):\n        self.fail()\n"
    _, _, noted = watch(tmp_path, source, *UNITTEST_LINE, m=product)
    [end] = noted.ends
    assert noted.outcomes["test_m.T.test_b"] == "passed"
    assert "test_m.T.test_b: its code is not what its file holds" in end["strange"]


def test_bytes_that_change_while_the_tests_run_are_told(tmp_path: Path) -> None:
    product = "open('test_m.py', 'a').write('# more')"
    _, _, noted = watch(tmp_path, BAD.format(product="m") + "pass\n", *UNITTEST_LINE, m=product)
    assert "test_m.py" in [*noted.of("began")[0]["other_bytes"], *noted.ends[0]["other_bytes"]]


def test_a_runner_that_greens_everything_gives_itself_away(tmp_path: Path) -> None:
    line = (*PYTEST, "-p", "green", "-rA", "test_m.py")
    log, _, noted = watch(tmp_path, "def test_b(): assert 0\n", *line, green=GREEN_PYTEST)
    assert noted.outcomes == {"test_m.py::test_b": "passed"}, log
    assert noted.ends[0]["probe"] is False
    assert noted.ends[0]["plugins"] == ["green.py"]


def test_a_script_that_python_is_started_with_runs_as_ever(tmp_path: Path) -> None:
    """No code stands above it that could be asked who runs it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "runner").write_text("import test_m\nprint('two', test_m.two)\n")
    log, code, _ = watch(tmp_path, "two = 2\n", "runner")
    assert (log, code) == ("two 2\n", 0)


def test_an_earlier_step_may_run_a_line_of_python(tmp_path: Path) -> None:
    log, code, noted = watch(tmp_path, UNITTEST, "-c", "import bisect, sys; print(sys.argv)")
    assert (log, code, noted.words) == ("['-c']\n", 0, ())


def test_leaving_early_leaves_no_end(tmp_path: Path) -> None:
    log, _, noted = watch(
        tmp_path, BAD.format(product="m") + "m.f()\n", *UNITTEST_LINE, m="import os\ndef f(): os._exit(0)"
    )
    assert noted.of("began"), log
    assert not noted.whole


def test_what_nobody_who_knows_the_secret_wrote_is_no_word() -> None:
    seen = Watch("/tmp/x", "/testbed", True)
    forged = b"\x1e" + b"0" * 32 + b".['end', {}]\x1f"
    real = b"\x1e" + seen.secret.encode() + b".['end', {'ran': 1}]\x1f"
    log, noted = seen.split(b"a" + forged + b"b" + real + b"c\n")
    assert log == b"a" + forged + b"bc\n"
    assert noted.words == (Word("end", {"ran": 1}),)
    parts = real.replace(b".['end', ", b"+['end', ", 1) + b"x" + b"\x1e" + seen.secret.encode() + b".{}]\x1f"
    assert seen.split(parts.replace(b"{'ran': 1}]", b""))[1].words == (Word("end", {}),)
    assert seen.split(b"\x1e" + seen.secret.encode() + b"+['end'\x1f")[1].damaged
    assert seen.split(b"\x1e" + seen.secret.encode() + b".no python\x1f")[1].damaged
