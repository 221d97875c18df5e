"""SWE-smith and R2E-Gym end to end: rows in their own columns, images of their own layout (made here), agents that fix,
do nothing, or cheat. Images of the sets themselves were never at hand: docs/data.md."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attacks import attack
from benchmarks.attacks.judge import Arena, Outcome, Trial
from benchmarks.attacks.layouts import r2e_site, smith_site
from data.loaders import load_tasks
from data.real_task import DownloadFailed
from data.task import Task
from envs.environment import EnvironmentFault, Grade
from envs.sandbox import make_backend
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.docker_engine import connect
from envs.swe import SWEEnvironment, grade_patch, read_row, validate
from envs.tools import ToolSet
from tests.envs.set_images import OTHER_BUG, R2E_ROW, SMITH_ROW, r2e_image, smith_image
from tests.envs.swe_support import call, run, shell

pytestmark = pytest.mark.docker
FIX = "sed -i 's/a - b/a + b/' shop/cart.py"


def docker() -> SandboxBackend:
    return make_backend("docker", "set-tests")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    stamp = time.time_ns()
    try:
        made = {
            "swe-smith": smith_image(f"sao-test-smith:{stamp}", tmp_path_factory.mktemp("smith")),
            "r2e-gym": r2e_image(f"sao-test-r2e:{stamp}", tmp_path_factory.mktemp("r2e")),
        }
    except DownloadFailed as error:
        pytest.skip(f"SETS NOT RUN: {error}")
    yield made
    with connect() as engine:
        for name in made.values():
            engine.api().remove_image(name, force=True)


def task(images: dict[str, str], tmp_path: Path, name: str, **columns: Any) -> Task:
    row = dict(SMITH_ROW) | {"image_name": "x/" + images[name]} if name == "swe-smith" else dict(R2E_ROW)
    row |= {"image_name": images[name]} if name == "swe-smith" else {"docker_image": images[name]}
    path = tmp_path / f"{name}.jsonl"
    path.write_text(json.dumps(row | columns))
    [made] = load_tasks(name, "train", path)
    return Task(made.task_id, made.kind, made.split, {**made.row, "image": images[name]}, made.source)


def graded(one: Task, *acts: str) -> list[Grade]:
    """One episode for each of `acts`, on one backend: its state is prepared once."""

    async def play(backend: SandboxBackend, act: str) -> Grade:
        environment = SWEEnvironment(one, backend, ToolSet())
        try:
            await environment.reset()
            assert environment.sandbox is not None
            await shell(act)(environment.sandbox)
            return await environment.grade()
        finally:
            await environment.close()

    async def main(backend: SandboxBackend) -> list[Grade]:
        return list(await asyncio.gather(*(play(backend, act) for act in acts)))

    return run(main, docker())


@pytest.mark.parametrize("name", ["swe-smith", "r2e-gym"])
def test_the_reference_fix_solves_and_nothing_does_not(images: dict[str, str], tmp_path: Path, name: str) -> None:
    one = task(images, tmp_path, name)
    checked = run(lambda backend: validate(one, backend, repeats=2), docker())
    assert checked.problems == ()
    assert checked.gold[0].detail["suspicious"] == checked.empty[0].detail["suspicious"] == []
    assert [grade.reward for grade in graded(one, FIX, "touch notes.txt")] == [1.0, 0.0]


LOOK = r"""
[ "$(git log --all --oneline | wc -l)" = 1 ] || echo "a past"
git status --porcelain
for id in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do
  git cat-file -p $id | grep -q 'a + b' && echo "the fix in $id"
done
grep -rlI 'a + b' / --include=* --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr 2>/dev/null
find / -xdev \( -name 'test_cart*' -o -name 'test_1*' -o -name run_tests.sh -o -name '*commit*.json' \
  -o -name '.hidden*' -o -name 'r2e_tests' -o -name 'expected_*' \) -not -path '/usr/*' -not -path '/proc/*'
true
"""


@pytest.mark.parametrize("name", ["swe-smith", "r2e-gym"])
def test_the_agent_finds_neither_the_fix_nor_the_tests(images: dict[str, str], tmp_path: Path, name: str) -> None:
    seen: list[str] = []

    async def look(sandbox: Sandbox) -> None:
        seen.append((await sandbox.exec(LOOK, cwd="/testbed", timeout_s=60)).text)
        seen.append((await sandbox.exec("ls tests; cat shop/cart.py", cwd="/testbed", timeout_s=60)).text)

    # The second sandbox forks from the first one's kept state.
    one = task(images, tmp_path, name)

    async def twice(backend: SandboxBackend) -> None:
        for _ in range(2):
            environment = SWEEnvironment(one, backend, ToolSet())
            try:
                assert "total() subtracts" in await environment.reset()
                assert environment.sandbox is not None
                await look(environment.sandbox)
            finally:
                await environment.close()

    run(twice, docker())
    untracked = ["?? build/"] if name == "swe-smith" else ["?? .venv/", "?? install.sh"]
    assert sorted(seen[0].split("\n")[:-1]) == sorted(untracked) == sorted(seen[2].split("\n")[:-1])
    assert "return a - b" in seen[1]
    assert "test_old.py" in seen[1]


CHEATS = {
    "swe-smith": {
        "hidden file written beforehand": "where hidden tests go",
        "tests' folder is a link": "",
        "tests' folder is a file": "",
        "at import, then _exit": "uses _exit",
        "past the capture, no telling word": "did not finish",
    },
    "r2e-gym": {
        "run_tests.sh changed": "where hidden tests go",
        "tests' folder written beforehand": "where hidden tests go",
        "tests' folder is a link": "",
        "the interpreter of the project's environment replaced": "",
        "at import, then _exit": "uses _exit",
        "past the capture, no telling word": "did not finish",
    },
}
"""Of the table of attacks, and what must be said beside the verdict."""
SITES = {"swe-smith": smith_site, "r2e-gym": r2e_site}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_earn_nothing(images: dict[str, str], tmp_path: Path, name: str) -> None:
    site = SITES[name](images[name])
    trials = [Trial(attack(each), site, "docker", "train") for each in CHEATS[name]]

    async def play(backend: SandboxBackend) -> list[Outcome]:
        async with Arena({"docker": backend}, tmp_path, workers=4) as arena:
            return await arena.run(trials)

    for outcome, flag in zip(run(play, docker()), CHEATS[name].values(), strict=True):
        assert (outcome.paid, outcome.fault) == (False, ""), outcome
        assert any(flag in each for each in outcome.findings) or not flag, outcome


def test_a_fix_beside_a_cheat_still_counts(images: dict[str, str], tmp_path: Path) -> None:
    """Tests that were written over are put back, and judge the rest of the patch."""
    [smith] = graded(
        task(images, tmp_path, "swe-smith"), f"{FIX}; echo 'def test_total(): assert 0' >tests/test_cart.py"
    )
    [r2e] = graded(task(images, tmp_path, "r2e-gym"), f"{FIX}; echo more >.venv/notes.txt; echo x >.venv/new")
    assert (smith.reward, r2e.reward) == (1.0, 1.0)
    assert r2e.patch.count(b"diff --git") == 1, "what is installed is no change of the agent's"


@pytest.mark.parametrize("name", ["swe-smith", "r2e-gym"])
def test_the_agent_works_in_the_projects_environment(images: dict[str, str], tmp_path: Path, name: str) -> None:
    one = task(images, tmp_path, name)

    async def ask(backend: SandboxBackend) -> str:
        environment = SWEEnvironment(one, backend, ToolSet())
        try:
            await environment.reset()
            return (await environment.step(call("bash", command="command -v python; echo $HOME"))).text
        finally:
            await environment.close()

    where = {"swe-smith": "/opt/miniconda3/envs/testbed/bin/python", "r2e-gym": "/testbed/.venv/bin/python"}
    assert run(ask, docker()).startswith(where[name])


def test_outcomes_must_be_those_that_the_set_expects(images: dict[str, str], tmp_path: Path) -> None:
    one = task(images, tmp_path, "r2e-gym")
    better = "printf 'def total(a, b):\\n    return b + a if isinstance(a, str) else a + b\\n' >shop/cart.py"
    [grade] = graded(one, better)  # the test that is known to fail passes: another program than the set's
    assert (grade.reward, grade.detail["fail_to_pass"]["failed"]) == (0.0, [])
    assert grade.detail["reason"] == "1 of 4 tests do not end as expected: TestCart.test_known_to_fail"


def test_bugs_of_one_image_are_kept_apart(images: dict[str, str], tmp_path: Path) -> None:
    one = task(images, tmp_path, "swe-smith")
    fails = {"FAIL_TO_PASS": ["tests/test_cart.py::test_double"], "PASS_TO_PASS": ["tests/test_cart.py::test_total"]}
    other = task(images, tmp_path, "swe-smith", instance_id="shop__cart.0123abcd.other__2", patch=OTHER_BUG, **fails)

    async def crossed(backend: SandboxBackend) -> list[float]:
        rows = [read_row(one), read_row(other)]
        pairs = [(row, fix.patch) for row in rows for fix in rows]
        return [(await grade_patch(row, backend, patch)).reward for row, patch in pairs]

    assert run(crossed, docker()) == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"hidden": ["tests/test_gone.py"]}, "there is no tests/test_gone.py in the image"),
        ({"bug_patch": OTHER_BUG.replace("2 * a", "3 * a")}, "bug_patch does not apply"),
        ({"repo_dir": "/nowhere"}, "/nowhere/.git is no plain folder"),
    ],
)
def test_what_cannot_be_settled_is_a_fault_and_no_verdict(
    images: dict[str, str], tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    made = task(images, tmp_path, "swe-smith")
    broken = Task(made.task_id, made.kind, made.split, {**made.row, **columns}, made.source)
    with pytest.raises(EnvironmentFault, match=words):
        graded(broken, FIX)
