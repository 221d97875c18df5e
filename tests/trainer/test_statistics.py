from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.statistics import explained_variance, ratio_statistics, staleness, trajectory_means

from .tiny import build

pytestmark = pytest.mark.numeric


class TestExplainedVariance:
    def test_by_hand(self) -> None:
        targets = torch.tensor([0.0, 1.0, 0.0, 1.0])
        assert explained_variance(targets, targets) == 1
        assert explained_variance(torch.full((4,), 0.3), targets) == pytest.approx(0)
        assert explained_variance(1 - targets, targets) == pytest.approx(-3)  # residuals -1, 1: variance 1 against 1/4
        assert explained_variance(0.5 * targets, targets) == pytest.approx(0.75)

    @pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
    def test_missing_on_equal_rewards(self, reward: float) -> None:
        assert explained_variance(torch.randn(50), torch.full((50,), reward)) is None

    def test_missing_on_nothing_and_on_one(self) -> None:
        assert explained_variance(torch.empty(0), torch.empty(0)) is None
        assert explained_variance(torch.ones(1), torch.ones(1)) is None


class TestRatios:
    def test_by_hand(self) -> None:
        got = ratio_statistics(torch.tensor([math.log(2), math.log(0.5)]))
        # (2 - 1 - log 2 + 0.5 - 1 + log 2) / 2
        assert got.approx_kl == pytest.approx(0.25)
        assert got.ess == pytest.approx(2.5**2 / (2 * 4.25))
        assert got.log_ratio_abs == pytest.approx(math.log(2))
        assert (got.ratio_min, got.ratio_max) == pytest.approx((0.5, 2.0))

    def test_on_policy(self) -> None:
        got = ratio_statistics(torch.zeros(5))
        assert (got.approx_kl, got.ess, got.log_ratio_abs) == (0, 1, 0)

    def test_missing_without_tokens(self) -> None:
        assert ratio_statistics(torch.empty(0)).approx_kl is None

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(-2000, 2000), min_size=1, max_size=20))
    def test_always_finite_and_in_range(self, log_ratios: list[float]) -> None:
        got = ratio_statistics(torch.tensor(log_ratios))
        assert got.approx_kl is not None
        assert got.ess is not None
        assert math.isfinite(got.approx_kl)
        assert got.approx_kl >= -1e-9
        assert 0 < got.ess <= 1 + 1e-9


def test_staleness_counts_from_the_oldest_token() -> None:
    trajectory = build([("p", 2), ("a", 1), ("o", 1), ("a", 1)], versions=(3, 7))
    assert staleness(trajectory, 8) == 5
    assert staleness(build([("p", 2)]), 8) is None


def test_trajectories_weigh_the_same_however_long() -> None:
    per_token, trajectory = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 2, 2, 2])
    assert trajectory_means(per_token, trajectory, 3).tolist() == [1.0, 0.0]
