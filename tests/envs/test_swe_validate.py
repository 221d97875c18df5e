"""A task that nobody can solve is found by its reference fix: its source part alone has to be enough."""

from __future__ import annotations

import pytest

from envs.swe import validate
from envs.swe.validate import source_part
from tests.envs.swe_support import GOLD, TEST_PATCH, run, tiny_task


def test_the_source_part_by_hand() -> None:
    both = (GOLD + TEST_PATCH).encode()
    assert source_part(both) == (GOLD.encode(), ("tests/test_cart.py",))
    assert source_part(GOLD.encode()) == (GOLD.encode(), ())
    assert source_part(TEST_PATCH.encode()) == (b"", ("tests/test_cart.py",))


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
