"""Three real projects as SWE-bench rows, offline: unittest and pytest, the official package's verdict, an agent's run.

The releases and pytest's wheels are downloaded once (they stay in build/cache, or SAO_CACHE); with Docker every project
stands in an image made here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.engines.scripted import ScriptedPolicy
from agent.fleet import Fleet, FleetSettings, plan_draws
from agent.presets import load_preset
from agent.renderers.choose import renderer_for
from agent.tokenizer import load_tokenizer
from data.loaders import load_tasks
from data.real_task import DownloadFailed, RealTask, real_tasks
from data.task import Task
from data.trajectory import ExitReason, Trajectory
from envs.sandbox import SandboxBackend, make_backend
from envs.swe import SWEEnvironment, read_row
from envs.swe.real import RunnerMissing, check_runner
from envs.tools.toolset import ToolSet
from eval.swebench.grade import Grader, GradeSettings
from eval.swebench.make import make_real_row
from eval.swebench.official import Harness
from eval.swebench.outcome import Verdict
from eval.swebench.rows import HarnessRow, harness_rows
from eval.swebench.store import EvalFolder
from eval.swebench.validate import RowCheck, check_rows
from sao.eval_agent import verifiers
from sao.paths import DEMO_POLICY, model_folder
from tests.conftest import REAL_CACHE

pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")
UNITTEST, PYTEST = ("more-itertools-last",), ("parse-hyphen", "sqlparse-hints")
TURNED = {
    "more-itertools-last": ["test_reversed_is_none (tests.test_more.LastTests.test_reversed_is_none)"],
    "parse-hyphen": [
        "tests/test_parse.py::test_hyphen_inside_field_name",
        "tests/test_parse.py::test_hyphen_inside_field_name_collision_handling",
    ],
    "sqlparse-hints": ["tests/test_format.py::TestFormat::test_strip_comments_preserves_hint"],
}
BASES = {
    "more-itertools-last": "384ac5c789c4a1c6ae7ac84f88aea4bcb05740e6",
    "parse-hyphen": "dc82f9ed40e2d41a61ad91976724aaefcab7ba37",
    "sqlparse-hints": "997ef8360ab577bf376d8c92f6fef37723957332",
}


def make_rows(kind: str, names: tuple[str, ...], out: Path) -> Path:
    async def make() -> None:
        backend = make_backend(kind, "real-tests")
        try:
            async with Harness() as harness:
                for name in names:
                    await make_real_row(real_tasks()[name], out, REAL_CACHE, backend, harness)
        finally:
            await backend.close()

    try:
        asyncio.run(make())
    except DownloadFailed as error:
        pytest.skip(f"REAL TASKS NOT RUN: {error}")
    return out


@pytest.fixture(scope="module")
def docker_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_rows("docker", UNITTEST + PYTEST, tmp_path_factory.mktemp("real") / "rows.jsonl")


def validated(kind: str, rows: list[HarnessRow], folder: Path) -> list[RowCheck]:
    async def go() -> list[RowCheck]:
        backend = make_backend(kind, "real-tests")
        try:
            async with Harness() as harness:
                with EvalFolder(folder) as store:
                    return await check_rows(Grader(backend, harness, store, GradeSettings(workers=2)), rows)
        finally:
            await backend.close()

    return asyncio.run(go())


def check(kind: str, rows: Path, folder: Path) -> None:
    tasks = load_tasks("real", "test", rows)
    for task in tasks:
        assert task.row["base_commit"] == BASES[task.task_id]  # the same on every machine
        assert task.row["FAIL_TO_PASS"] == TURNED[task.task_id]
        assert len(task.row["PASS_TO_PASS"]) > 10
    for checked in validated(kind, harness_rows(tasks), folder):
        assert (checked.problems, checked.faults) == ((), ()), checked.instance_id
        assert [each.verdict for each in (*checked.gold, *checked.nothing)] == [Verdict.RESOLVED, Verdict.UNRESOLVED]
        assert all(each.agrees and not each.suspicious for each in (*checked.gold, *checked.nothing)), checked


@pytest.mark.docker
def test_the_real_fix_is_resolved_and_nothing_is_not(docker_rows: Path, tmp_path: Path) -> None:
    check("docker", docker_rows, tmp_path / "check")
    parse, sql = (task.row for task in load_tasks("real", "test", docker_rows)[1:])
    assert (len(parse["PASS_TO_PASS"]), "bundle" in parse) == (94, False)
    # As SWE-bench's own lists: the package's parser cuts a name at its first space.
    assert "tests/test_grouping.py::test_grouping_assignment[foo" in sql["PASS_TO_PASS"]


def test_embedded_where_its_python_suffices(tmp_path: Path) -> None:
    check("embedded", make_rows("embedded", UNITTEST, tmp_path / "rows.jsonl"), tmp_path / "check")


def test_a_runner_that_the_sandbox_lacks_is_refused() -> None:
    async def go(backend: SandboxBackend) -> None:
        real: RealTask = real_tasks()["parse-hyphen"]
        try:
            await check_runner(real, backend)
        finally:
            await backend.close()

    has_it = subprocess.run(["/usr/bin/python3", "-c", "import pytest"], capture_output=True, check=False)
    if has_it.returncode == 0:
        pytest.skip("REFUSAL NOT TESTED: this machine's /usr/bin/python3 has pytest")
    with pytest.raises(RunnerMissing, match="is run by pytest, and python3 of the embedded sandbox has none"):
        asyncio.run(go(make_backend("embedded", "real-tests")))


# -- an agent's run, end to end ---------------------------------------------------------------------------------------


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def fixing_turns(task: Task) -> list[str]:
    """Look, put the real fix on as a patch, run the old tests, submit."""
    patch = f"cd /testbed && git apply - <<'PATCH'\n{task.row['patch']}\nPATCH"
    return [call("bash", command="git status --short"), call("bash", command=patch), call("submit")]


@pytest.mark.docker
@pytest.mark.parametrize("fixing", [True, False])
def test_a_scripted_agent_with_the_real_fix(docker_rows: Path, tmp_path: Path, fixing: bool) -> None:
    """Its calls in a container without the fix, the driver's diff, a fresh container, the official verdict."""
    tasks = load_tasks("real", "test", docker_rows)
    rows = harness_rows(tasks)
    preset = load_preset("demo")
    preset = preset.model_copy(update={"tools": (*preset.tools, "bash")})
    renderer = renderer_for(load_tokenizer(model_folder("demo")), thinking=preset.thinking)
    limits = preset.limits.model_copy(update={"max_context": 60_000, "max_tokens": 20_000, "episode_timeout_s": 600})
    kept: list[Trajectory] = []
    scripts = {
        f"real-{number:06d}-0": fixing_turns(task) if fixing else [call("submit")] for number, task in enumerate(tasks)
    }

    async def run() -> None:
        backend = make_backend("docker", "real-tests")
        try:
            async with Harness() as harness:
                with EvalFolder(tmp_path / "grading") as store:
                    verify = verifiers(Grader(backend, harness, store), rows, "scripted")
                    fleet = Fleet(
                        ScriptedPolicy(scripts, encode=renderer.action_ids),
                        renderer,
                        preset,
                        lambda task: SWEEnvironment(task, backend, ToolSet(preset.tools), verifier=verify(task)),
                        kept.append,
                        FleetSettings("real", 0, episodes_at_once=2, max_attempts=1, sandbox="docker"),
                        limits=limits,
                    )
                    await fleet.run(plan_draws(tasks))
        finally:
            await backend.close()

    asyncio.run(run())
    assert len(kept) == 3
    for made in kept:
        assert made.outcome.exit_reason is ExitReason.SUBMITTED, made.outcome
        assert made.outcome.grade["verdict"] == ("resolved" if fixing else "empty"), made.outcome.grade
        assert made.outcome.reward == float(fixing)
    if fixing:
        by_id = {task.task_id: read_row(task).patch for task in tasks}
        assert all(made.patch.count(b"\n+") == by_id[made.identity.task_id].count(b"\n+") for made in kept)


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_a_small_model_is_graded_and_the_demo_policy_refused(docker_rows: Path, tmp_path: Path) -> None:
    """As a user starts it: the run comes to its end, every verdict is the official one."""
    model = tmp_path / "small"
    shutil.copytree(DEMO_POLICY, model)
    config = json.loads((model / "config.json").read_text())  # the first prompts have to fit
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))

    def start(*options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sao", "eval", "swebench", "--plain", "--sandbox", "docker", "--run", "demo"]
        return subprocess.run(
            [*command, "--rows", str(docker_rows), *map(str, options)],
            env={**os.environ, "SAO_RUNS": str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=800,
        )

    refused = start()
    assert refused.returncode == 2
    assert "the demo policy cannot work on" in refused.stderr
    ended = start("--model", model)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "demo" / "grading" / "report.json").read_text())
    assert (report["total_instances"], report["coverage"], report["incomplete_ids"]) == (3, 1.0, [])
    assert (report["errors_by_kind"], report["network"]) == ({}, "none")
