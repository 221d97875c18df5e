"""The layouts that are attacked: micro-SWE, a SWE-bench row with an install step, the toy row, SWE-smith, R2E-Gym."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.attacks.site import Site
from data.gitobjects import commit_id
from data.loaders import load_tasks
from data.micro_swe import task as micro_task
from data.task import Task
from tests.envs.swe_support import FILES as TINY
from tests.envs.swe_support import GOLD

EMBEDDED, DOCKER = "embedded", "docker"
_ENDED = "=" * 30 + " {count} passed in 0.03s " + "=" * 30


def unittest_report(ids: list[str]) -> str:
    lines = [f"{each.rsplit('.', 1)[-1]} ({each}) ... ok" for each in ids]
    return "\n".join([*lines, "", "-" * 70, f"Ran {len(ids)} tests in 0.001s", "", "OK"])


def pytest_report(lines: list[str], count: int, failed: int = 0) -> str:
    end = f"{failed} failed, {count} passed" if failed else f"{count} passed"
    summary = "=" * 27 + " short test summary info " + "=" * 28
    return "\n".join([summary, *lines, "=" * 30 + f" {end} in 0.03s " + "=" * 30])


def micro() -> Site:
    task = micro_task("train", 0)
    files = json.loads(task.row["files"])
    ids = [*task.row["FAIL_TO_PASS"], *task.row["PASS_TO_PASS"]]
    return Site(
        name="micro",
        task=task,
        runner="unittest",
        judges=("train",),
        backends=(EMBEDDED, DOCKER),
        product="fleet/plan.py",
        text=files["fleet/plan.py"],
        function="blend",
        hidden="tests/test_plan.py",
        tests={"TestPlan": ("test_blend", "test_settle")},
        report=unittest_report(ids),
        base=files,
        gold=task.row["patch"],
        answers={(14, 3): 17},
        nodes={each: "/".join(each.split(".")[:2]) + ".py" for each in ids},
    )


FILES = {
    **TINY,
    "tests/test_cart.py": "import unittest\n\nfrom shop.cart import total\n\n\nclass TestCart(unittest.TestCase):\n"
    "    def test_zero(self):\n        self.assertEqual(total(0, 0), 0)\n",
    "setup.py": "import sys\n\nprint('built', sys.argv[1:])\n",
    "README.md": "# shop\n",
}
TEST_PATCH = """diff --git a/tests/test_cart.py b/tests/test_cart.py
--- a/tests/test_cart.py
+++ b/tests/test_cart.py
@@ -6,3 +6,6 @@
 class TestCart(unittest.TestCase):
     def test_zero(self):
         self.assertEqual(total(0, 0), 0)
+
+    def test_total(self):
+        self.assertEqual(total(1, 2), 3)
"""


def unit() -> Site:
    """SWE-bench's own form of an eval script, unittest behind it: runs on both backends."""
    base = commit_id(FILES)
    script = (
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit config --global --add safe.directory /testbed\n"
        "cd /testbed\ngit status\ngit show --stat\n"
        f"python3 setup.py -q develop\ngit checkout {base} tests/test_cart.py\n"
        f"git apply -v - <<'EOF_114329324912'\n{TEST_PATCH}\nEOF_114329324912\n: '>>>>> Start Test Output'\n"
        "python3 -m unittest -v tests.test_cart tests.test_old\n: '>>>>> End Test Output'\n"
        f"git checkout {base} tests/test_cart.py\n"
    )
    full = [
        "tests.test_cart.TestCart.test_total",
        "tests.test_cart.TestCart.test_zero",
        "tests.test_old.TestOld.test_x",
    ]
    ids = [f"{each.rsplit('.', 1)[-1]} ({each})" for each in full]
    row: dict[str, Any] = {
        "instance_id": "shop__cart-1",
        "repo": "shop/cart",
        "version": "1",
        "base_commit": base,
        "problem_statement": "total() subtracts",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ids[:1],
        "PASS_TO_PASS": ids[1:],
        "image": "sao-base:latest",
        "eval_script": script,
        "log_parser": "parse_log_django",
        "eval_type": "pass_and_fail",
        "files": FILES,
        "portable": True,
    }
    trained = {**row, "log_parser": "unittest", "FAIL_TO_PASS": full[:1], "PASS_TO_PASS": full[1:]}
    return Site(
        name="unit",
        task=Task("shop__cart-1", "swe", "test", row, "attacks"),
        trained=Task("shop__cart-1", "swe", "train", trained, "attacks"),
        runner="unittest",
        judges=("train", "eval"),
        backends=(EMBEDDED, DOCKER),
        product="shop/cart.py",
        text=FILES["shop/cart.py"],
        function="total",
        hidden="tests/test_cart.py",
        tests={"TestCart": ("test_total", "test_zero")},
        report=unittest_report(full),
        base=FILES,
        gold=GOLD,
        answers={(1, 2): 3},
        nodes={each: "/".join(each.split(".")[:2]) + ".py" for each in full},
        installs=True,
    )


def toy() -> Site:
    """The offline SWE-bench row of the shared data; its image is made where it is not there."""
    from tests.eval.toy import TOY, toy_image, toy_task

    toy_image()
    task = toy_task()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["git", "clone", "-q", str(TOY / "testbed.bundle"), folder + "/toy"], check=True, capture_output=True
        )
        files = _read(Path(folder) / "toy")
    ids = ["test_calc.py::test_sub", "test_calc.py::test_add"]
    return Site(
        name="toy",
        task=task,
        runner="pytest",
        judges=("train", "eval"),
        backends=(DOCKER,),
        product="calc.py",
        text=files["calc.py"],
        function="add",
        hidden="test_calc.py",
        tests={"": ("test_sub", "test_add")},
        report=pytest_report([f"PASSED {each}" for each in ids], 2),
        base=files,
        gold=task.row["patch"],
        answers={(1, 2): 3},
        nodes={each: each.split("::")[0] for each in ids},
    )


@contextmanager
def smith() -> Iterator[Site]:
    from tests.envs.set_images import smith_image

    with _image(smith_image, "smith") as image:
        yield smith_site(image)


def smith_site(image: str) -> Site:
    """The agent has no hidden tests: the set takes their files out of its sandbox."""
    from tests.envs.set_images import BUG, GOOD, PROJECT, SMITH_ROW

    ids = [*SMITH_ROW["FAIL_TO_PASS"], *SMITH_ROW["PASS_TO_PASS"]]
    bug = GOOD.replace("a + b", "a - b")
    seen = {path: text for path, text in PROJECT.items() if path != "tests/test_cart.py"}
    return Site(
        name="smith",
        task=_set_task("swe-smith", {**SMITH_ROW, "image_name": "x/" + image}, image),
        runner="pytest",
        judges=("train",),
        backends=(DOCKER,),
        product="shop/cart.py",
        text=bug,
        function="total",
        hidden="tests/test_cart.py",
        tests={"": ("test_total", "test_zero", "test_double")},
        report="\n".join([*(f"{each} PASSED [ 25%]" for each in ids), pytest_report([], len(ids))]),
        base={**seen, "shop/cart.py": bug},
        gold="".join(_reversed(BUG)),
        answers={(1, 2): 3},
        nodes={each: each.split("::")[0] for each in ids},
    )


@contextmanager
def r2e() -> Iterator[Site]:
    from tests.envs.set_images import r2e_image

    with _image(r2e_image, "r2e") as image:
        yield r2e_site(image)


def r2e_site(image: str) -> Site:
    from tests.envs.set_images import GOOD, PROJECT, R2E_ROW

    place = "r2e_tests/test_1.py::TestCart::"
    good = ["test_total", "test_names[a - b]", "test_names[c]"]
    lines = [*(f"PASSED {place}{name}" for name in good), f"FAILED {place}test_known_to_fail - assert"]
    return Site(
        name="r2e",
        task=_set_task("r2e-gym", {**R2E_ROW, "docker_image": image}, image),
        runner="pytest",
        judges=("train",),
        backends=(DOCKER,),
        product="shop/cart.py",
        text=GOOD.replace("a + b", "a - b"),
        function="total",
        hidden="r2e_tests/test_1.py",
        tests={"TestCart": ("test_total",)},
        report=pytest_report(lines, 3, 1),
        base={**PROJECT, "shop/cart.py": GOOD.replace("a + b", "a - b")},
        gold="-    return a - b\n+    return a + b\n",
        answers={(1, 2): 3},
        spare=("known_to_fail", "later"),
        own_tests="tests/",
    )


def _reversed(patch: str) -> Iterator[str]:
    for line in patch.splitlines(keepends=True):
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++")):
            yield ("+" if line[0] == "-" else "-") + line[1:]


def _set_task(name: str, row: dict[str, Any], image: str) -> Task:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        path.write_text(json.dumps(row))
        [made] = load_tasks(name, "train", path)
    return Task(made.task_id, made.kind, made.split, {**made.row, "image": image}, made.source)


@contextmanager
def _image(make: Any, name: str) -> Iterator[str]:
    from envs.sandbox.docker_engine import connect

    with tempfile.TemporaryDirectory() as folder:
        image = make(f"sao-attacks-{name}:{Path(folder).name.lower()}", Path(folder))
    try:
        yield image
    finally:
        with connect() as engine:
            engine.api().remove_image(image, force=True)


def _read(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] != ".git"
    }
