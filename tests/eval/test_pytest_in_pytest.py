"""Repositories whose tests run pytest inside pytest (pytest itself, a plugin of it): the right fix is paid and
counts as resolved, a wrong one does not, nobody is flagged, whatever final lines the inner runs leave in the log."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from data.task import Task
from envs.images.local import make_task_image
from envs.sandbox import make_backend
from envs.sandbox.docker_engine import connect
from envs.swe import grade_patch, read_row, validate
from eval.swebench.grade import Grader, GradeSettings
from eval.swebench.official import Harness
from eval.swebench.outcome import Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import harness_row
from eval.swebench.store import EvalFolder
from tests.data.test_pack import git

pytestmark = pytest.mark.docker
pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")

OLD = {
    "testing/conftest.py": 'pytest_plugins = ["pytester"]\n',
    "testing/test_old.py": "def test_passes(pytester):\n    pytester.makepyfile('def test_z(): pass')\n"
    "    pytester.runpytest('-rA').assert_outcomes(passed=1)\n",
}
INNER = """import pytest


def test_in_process(pytester):
    pytester.makepyfile("import warnings\\ndef test_q():\\n    warnings.warn('one')\\ndef test_r():\\n    assert 0")
    inner = pytester.runpytest_inprocess("-rA", "-p", "no:cacheprovider")
    inner.stdout.fnmatch_lines([{expected!r}])


def test_apart(pytester):
    pytester.makepyfile("def test_q(): assert 0")
    pytester.runpytest_subprocess("-v", "-p", "no:randomly").assert_outcomes(failed=1)


def test_not_captured(pytester, capsys):
    pytester.makepyfile("def test_x(): raise KeyError")
    with capsys.disabled():
        assert pytest.main(["-rA", "-p", "no:cacheprovider", str(pytester.path)]) == 1
"""
PLUGIN = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter):
    yield
    terminalreporter.write_line("SHOUT %d" % len(terminalreporter.stats.get("passed", [])))
"""
PLUGIN_INFO = {
    "pytest_shout-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pytest-shout\nVersion: 1\n",
    "pytest_shout-1.dist-info/entry_points.txt": b"[pytest11]\nshout = pytest_shout\n",
}
BELOW = ("pluggy", "iniconfig", "packaging", "pygments")


@dataclass(frozen=True)
class Kind:
    files: Mapping[str, str]
    library: Mapping[str, bytes]
    product: str
    right: str
    """Line of the product."""
    bug: str
    wrong: str
    expected: str
    """What an inner run must print."""


def _pytest_itself() -> Kind:
    own = dict(_installed("pytest"))
    return Kind(
        {f"src/{name}": data.decode() for name, data in own.items() if not name.startswith("pytest-")},
        {**dict(_installed(*BELOW)), **{name: data for name, data in own.items() if name.startswith("pytest-")}},
        "src/_pytest/terminal.py",
        'noun + "s" if count != 1 else noun',
        'noun + "s"',
        'noun + "s" if count != 2 else noun',
        "*1 failed, 1 passed, 1 warning in*",
    )


def _plugin() -> Kind:
    return Kind(
        {"src/pytest_shout.py": PLUGIN},
        {**dict(_installed("pytest", *BELOW)), **PLUGIN_INFO},
        "src/pytest_shout.py",
        'get("passed", [])',
        'get("error", [])',
        'get("skipped", [])',
        "SHOUT 1",
    )


def _installed(*packages: str) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        for file in importlib.metadata.files(package) or ():
            if file.suffix != ".pyc" and not str(file).startswith(".."):
                yield str(file), Path(str(file.locate())).read_bytes()


def _row(kind: Kind, name: str, folder: Path) -> tuple[Task, str]:
    """The row, with its image made, and a wrong fix."""
    git(folder, "init", "-q", "-b", "main")
    good = kind.files[kind.product]
    assert good.count(kind.right) == 1
    _commit(folder, {**kind.files, **OLD, kind.product: good.replace(kind.right, kind.bug)})
    base = git(folder, "rev-parse", "HEAD")
    image = f"sao-tests/{name}:latest"
    library = [*kind.library.items(), ("testbed.pth", b"/testbed/src\n")]  # an editable installation
    with connect() as engine:
        make_task_image(engine.api(), image, folder, base, packages=library)
    test = "testing/test_new.py"
    _commit(folder, {kind.product: good, test: INNER.format(expected=kind.expected)})
    gold, hidden = (git(folder, "diff", base, "HEAD", "--", path) + "\n" for path in (kind.product, test))
    wrong = gold.replace(kind.right, kind.wrong)
    assert wrong != gold
    names = re.findall(r"^def (test_\w+)", INNER, re.MULTILINE)
    row = {
        "instance_id": f"pytest-dev__{name}-1",
        "repo": f"pytest-dev/{name}",
        "version": "1",
        "base_commit": base,
        "problem_statement": "its summary counts wrongly",
        "patch": gold,
        "test_patch": hidden,
        "FAIL_TO_PASS": [f"{test}::{names[0]}"],
        "PASS_TO_PASS": [*(f"{test}::{each}" for each in names[1:]), "testing/test_old.py::test_passes"],
        "image": image,
        "eval_script": f"#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit apply -v - <<'EOF_1'\n{hidden}\nEOF_1\n"
        ": '>>>>> Start Test Output'\npython3 -m pytest -rA -p no:cacheprovider testing\n: '>>>>> End Test Output'\n",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    return Task(row["instance_id"], "swe", "train", row, "tests"), wrong  # type: ignore[arg-type]


def _commit(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "step")


@pytest.mark.parametrize("name", ["pytest-itself", "pytest-shout"])
def test_both_graders(tmp_path: Path, name: str) -> None:
    (tmp_path / "r").mkdir()
    task, wrong = _row(_pytest_itself() if name == "pytest-itself" else _plugin(), name, tmp_path / "r")
    row = harness_row(task)
    fixes = {"right": str(task.row["patch"]), "wrong": wrong}

    async def work() -> None:
        backend = make_backend("docker", "pytest-in-pytest")
        try:
            checked = await validate(task, backend)
            assert checked.problems == (), checked.gold[0].detail["log_tail"]
            assert checked.gold[0].detail["suspicious"] == []
            log = checked.gold[0].detail["log_tail"]
            assert len(re.findall(r"\d (?:passed|failed)\b.* in ", log)) > 3, log  # else nothing was tried here
            assert (await grade_patch(read_row(task), backend, wrong.encode())).reward == 0.0
            async with Harness() as harness:
                with EvalFolder(tmp_path / "eval") as store:
                    grader = Grader(backend, harness, store, GradeSettings(workers=2))
                    pairs = [(row, Prediction(row.instance_id, model, fix)) for model, fix in fixes.items()]
                    right, bad = await grader.run(pairs)
            assert (right.verdict, right.suspicious, right.agrees) == (Verdict.RESOLVED, (), True), right.reason
            assert (bad.verdict, bad.suspicious, bad.agrees) == (Verdict.UNRESOLVED, (), True), bad.reason
        finally:
            await backend.close()

    try:
        asyncio.run(work())
    finally:
        subprocess.run(["docker", "rmi", "-f", str(task.row["image"])], check=False, capture_output=True)
