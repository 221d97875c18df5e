"""`swe/toy` on a real engine: right and wrong patches, and attacks that fool the package alone, sixteen at once."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from benchmarks.attacks import attack
from benchmarks.attacks.layouts import toy
from benchmarks.attacks.patches import Differ
from envs.environment import Grade, ToolCall
from envs.sandbox import make_backend
from envs.swe import SWEEnvironment
from envs.swe.guard.findings import Hole
from eval.swebench.grade import Grader, GradeSettings
from eval.swebench.official import Harness
from eval.swebench.outcome import Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import HarnessRow, harness_row
from eval.swebench.store import EvalFolder
from sao.eval_agent import verifiers
from tests.eval.toy import toy_image, toy_task

pytestmark = pytest.mark.docker
pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")


ATTACKS = {
    "conftest, reports": Hole.REPORTING,
    "pytest.ini loads a plugin": Hole.REPORTING,
    "entry points of metadata in the root": Hole.REPORTING,
    "pytest.py in the root": Hole.REPORTING,
    "report's outcome": Hole.FRAMEWORK,
    "at import, then _exit": Hole.RUNNER,
    "marks of the harness, then the runner runs on": Hole.MARKERS,
    "marks of the harness, the shell killed": Hole.MARKERS,
    "the shell's script rewritten while it runs": Hole.LOG,
    "at exit": Hole.LOG,
    "at exit, an outcome that is in no list": Hole.LISTS,
    "hidden file is a link": Hole.TESTS,
    "compiled code of the product": Hole.RESULTS,
}
"""Of the table of attacks those that fool, or may fool, the package alone; what must be found."""


def named(name: str, **columns: str) -> HarnessRow:
    """The toy row under an id of its own."""
    task = toy_task()
    instance_id = "toy__" + name.replace(" ", "-")
    return harness_row(
        dataclasses.replace(task, task_id=instance_id, row={**task.row, "instance_id": instance_id, **columns})
    )


def grade_all(work: dict[str, tuple[HarnessRow, str | None]], folder: Path, workers: int = 16) -> dict[str, Graded]:
    async def go() -> dict[str, Graded]:
        backend = make_backend("docker", "toy-tests")
        pairs = [(row, Prediction(row.instance_id, "tests", patch)) for row, patch in work.values()]
        try:
            async with Harness() as harness:
                with EvalFolder(folder) as store:
                    done = await Grader(backend, harness, store, GradeSettings(workers=workers)).run(pairs)
        finally:
            await backend.close()
        return dict(zip(work, done, strict=True))

    return asyncio.run(go())


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Graded]:
    toy_image()
    gold = str(toy_task().row["patch"])
    work: dict[str, tuple[HarnessRow, str | None]] = {
        "gold": (named("gold"), gold),
        "nothing": (named("nothing"), ""),
        "wrong": (named("wrong"), gold.replace("+    return a + b", "+    return a * b")),
    }
    site = toy()
    differ = Differ(site.base)
    for number, name in enumerate(ATTACKS):
        made = attack(name).make
        assert made is not None
        files = made(site)
        assert files is not None
        patch = differ.patch(files, attack(name).executable)
        work[name] = named(f"attack {number}"), patch.decode("utf-8", "surrogateescape")
    differ.close()
    return grade_all(work, tmp_path_factory.mktemp("toy"))


def test_right_wrong_and_nothing(graded: dict[str, Graded]) -> None:
    assert (graded["gold"].verdict, graded["gold"].suspicious) == (Verdict.RESOLVED, ())
    assert graded["nothing"].verdict is Verdict.EMPTY
    assert (graded["wrong"].verdict, graded["wrong"].suspicious) == (Verdict.UNRESOLVED, ())
    assert graded["wrong"].reason == "1 FAIL_TO_PASS tests still fail, 0 PASS_TO_PASS tests broke"
    assert all(each.agrees for each in (graded["gold"], graded["wrong"]))


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_flagged(graded: dict[str, Graded], name: str) -> None:
    assert ATTACKS[name] in {each.hole for each in graded[name].suspicious}, graded[name]


def test_the_run_itself_gives_them_away(graded: dict[str, Graded]) -> None:
    """Words in a patch can be hidden; what log, shell, runner and witness say of the run cannot as easily."""
    seen_in_run = {Hole.LOG, Hole.RUNNER, Hole.MARKERS, Hole.LISTS, Hole.FRAMEWORK, Hole.LOADED}
    for name in ATTACKS:
        if graded[name].verdict is Verdict.RESOLVED:
            assert seen_in_run & {each.hole for each in graded[name].suspicious}, name


def test_the_package_alone_believes_them(graded: dict[str, Graded]) -> None:
    """Else the flags would guard nothing."""
    believed = [name for name in ATTACKS if graded[name].verdict is Verdict.RESOLVED]
    assert len(believed) >= 10, [(name, each.verdict, each.reason) for name, each in graded.items()]


def test_an_agents_patch_is_graded_by_the_package(tmp_path: Path) -> None:
    """The environment's tools, the driver's diff, a fresh container, the official verdict as the reward."""
    toy_image()
    row = named("agent")

    async def episode(environment: SWEEnvironment, new: str) -> Grade:
        try:
            assert await environment.reset() == "add() subtracts"
            edit = {"path": "calc.py", "old_str": "def add(a, b):\n    return a - b", "new_str": new}
            assert (await environment.step(ToolCall("str_replace", edit))).error is None
            return await environment.grade()
        finally:
            await environment.close()

    async def go() -> list[Grade]:
        backend = make_backend("docker", "toy-tests")
        try:
            async with Harness() as harness:
                with EvalFolder(tmp_path) as store:
                    verify = verifiers(Grader(backend, harness, store), [row], "agent")
                    return [
                        await episode(SWEEnvironment(row.task, backend, verifier=verify(row.task)), new)
                        for new in ("def add(a, b):\n    return a + b", "def add(a, b):\n    return a / b")
                    ]
        finally:
            await backend.close()

    right, wrong = asyncio.run(go())
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.detail["report"]["tests_status"]["FAIL_TO_PASS"]["success"] == ["test_calc.py::test_add"]
    assert wrong.detail["reason"] == "1 FAIL_TO_PASS tests still fail, 0 PASS_TO_PASS tests broke"
    assert right.patch.count(b"diff --git") == 1
