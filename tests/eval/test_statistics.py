"""Statistics against values worked by hand or published."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.statistics import mcnemar, paired_bootstrap, wilson_interval


def test_wilson_by_hand() -> None:
    low, high = wilson_interval(371, 500)
    assert (round(100 * low, 1), round(100 * high, 1)) == (70.2, 77.8)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == pytest.approx(1.0)
    assert wilson_interval(1, 2) == pytest.approx((0.0945, 0.9055), abs=1e-4)
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        wilson_interval(3, 2)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 1) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 5) == pytest.approx(2 * (1 + 6) / 64)
    assert mcnemar(3, 3) == 1.0
    with pytest.raises(ValueError, match="negative"):
        mcnemar(-1, 2)


@given(st.integers(0, 80), st.integers(0, 80))
def test_mcnemar_is_a_symmetric_probability(one: int, two: int) -> None:
    p = mcnemar(one, two)
    assert 0 < p <= 1
    assert p == mcnemar(two, one)
    if one < two:
        assert mcnemar(one, two + 1) <= p or math.isclose(p, 1.0)


def test_the_bootstrap_agrees_with_the_normal_interval() -> None:
    first = [1.0] * 60 + [0.0] * 40 + [1.0] * 10 + [0.0] * 30
    second = [1.0] * 60 + [0.0] * 40 + [0.0] * 10 + [1.0] * 30
    made = paired_bootstrap(first, second, draws=20_000)
    assert made.mean == pytest.approx(20 / 140)
    spread = 1.96 * math.sqrt(40 / 140 - (20 / 140) ** 2) / math.sqrt(140)
    assert made.low == pytest.approx(made.mean - spread, abs=0.01)
    assert made.high == pytest.approx(made.mean + spread, abs=0.01)
    assert made == paired_bootstrap(first, second, draws=20_000)


def test_the_bootstrap_at_its_ends() -> None:
    same = paired_bootstrap([0.25, 0.5], [0.25, 0.5])
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    one = paired_bootstrap([0.0], [1.0], draws=10)
    assert (one.mean, one.low, one.high) == (1.0, 1.0, 1.0)
    for arguments in (([], []), ([1.0], [1.0, 0.0])):
        with pytest.raises(ValueError, match="pairs are needed"):
            paired_bootstrap(*arguments)
    with pytest.raises(ValueError, match="draws"):
        paired_bootstrap([1.0], [1.0], draws=0)
