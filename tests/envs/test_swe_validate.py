"""A task that nobody can solve is found by its reference fix: its source part alone has to be enough."""

from __future__ import annotations

from typing import Any

import pytest

from envs.swe import read_row, validate
from envs.swe.validate import source_part
from tests.envs.swe_support import GOLD, TEST_PATCH, run, tiny_task


def part(patch: str, **columns: Any) -> tuple[str, tuple[str, ...]]:
    source, tests = source_part(read_row(tiny_task(patch=patch, **columns)))
    return source.decode(), tests


def new(path: str, git: bool = True) -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n" if git else ""
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"


def changed(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-x\n+y\n"


def test_the_source_part_by_hand() -> None:
    assert part(GOLD + TEST_PATCH) == (GOLD, ("tests/test_cart.py",))
    assert part(GOLD) == (GOLD, ())
    assert part(TEST_PATCH) == ("", ("tests/test_cart.py",))
    assert part(new("tests/test_b.py", git=False) + GOLD) == (GOLD, ("tests/test_b.py",))


def test_what_belongs_to_tests_by_the_judged_ones() -> None:
    assert part(new("tests/data.json") + GOLD) == (GOLD, ("tests/data.json",))
    assert part(GOLD + changed("tests/data.json")) == (GOLD, ("tests/data.json",))
    assert part(GOLD + new("tests/helper.py")) == (GOLD, ("tests/helper.py",))
    by_id = {"test_patch": "", "FAIL_TO_PASS": ["tests.cart.TestCart.test_total"], "PASS_TO_PASS": []}
    assert part(GOLD + new("tests/cart.py"), **by_id) == (GOLD, ("tests/cart.py",))
    for own in ("shop/test/client.py", "shop/commands/test.py", "tests/helper.py", "shop/testing/data.json"):
        assert part(GOLD + changed(own)) == (GOLD + changed(own), ())


@pytest.mark.parametrize(
    ("patch", "test_patch", "usable"),
    [(GOLD + TEST_PATCH, "", False), (TEST_PATCH, "", False), (GOLD, TEST_PATCH, True)],
)
def test_tests_inside_the_fix(patch: str, test_patch: str, usable: bool) -> None:
    found = run(lambda backend: validate(tiny_task(patch=patch, test_patch=test_patch), backend))
    assert found.usable is usable
    if patch.startswith(GOLD) and not usable:
        assert "holds tests (tests/test_cart.py)" in found.problems[0]
        assert found.gold[0].reward == 1.0
