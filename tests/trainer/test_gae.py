from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from data.trajectory import Trajectory
from trainer.config import AdvantageConfig
from trainer.gae import (
    AdvantageError,
    adaptive_lambda,
    gae,
    policy_advantages,
    suffix_sums,
    value_targets,
    whiten,
)
from trainer.packing import action_axis, token_rewards

from .tiny import build

pytestmark = pytest.mark.numeric

VALUES = torch.tensor([0.2, 0.3, 0.5, 0.6])
LAYOUT = [("p", 2), ("a", 2), ("o", 3), ("a", 2)]


def advantages(
    trajectories: list[Trajectory], values: Tensor, bootstrap: Tensor | None = None, **fields: object
) -> Tensor:
    axis = action_axis(trajectories)
    config = AdvantageConfig.model_validate(fields)
    bootstrap = torch.zeros(len(trajectories)) if bootstrap is None else bootstrap
    return policy_advantages(values, axis.rewards, axis.lengths, bootstrap, config, axis.steps)


class _Counted(TorchDispatchMode):
    """Counts the numbers that tensor operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numbers += tensor.numel()
                self.largest = max(self.largest, tensor.numel())
        return out


def naive(values: list[float], rewards: list[float], lam: float, gamma: float, bootstrap: float) -> list[float]:
    out, running = [0.0] * len(values), 0.0
    for t in reversed(range(len(values))):
        following = values[t + 1] if t + 1 < len(values) else bootstrap
        running = rewards[t] + gamma * following - values[t] + gamma * lam * running
        out[t] = running
    return out


class TestGoldenNumbers:
    def test_adaptive_lambda(self) -> None:
        got = advantages([build(LAYOUT)], VALUES)
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got, [0.567593, 0.561111, 0.433333, 0.400000], atol=5e-7)

    def test_lambda_one(self) -> None:
        np.testing.assert_allclose(
            advantages([build(LAYOUT)], VALUES, lambda_policy=1.0), [0.8, 0.7, 0.5, 0.4], atol=1e-7
        )

    def test_system_cut_bootstraps(self) -> None:
        got = advantages([build(LAYOUT, reward=None)], VALUES, torch.tensor([0.7]))
        np.testing.assert_allclose(got, [0.393981, 0.352778, 0.183333, 0.100000], atol=5e-7)

    def test_running_through_observation_values_would_give_the_wrong_numbers(self) -> None:
        through = torch.tensor([0.2, 0.3, 0.9, 0.1, 0.4, 0.5, 0.6])
        rewards = torch.tensor([0.0] * 6 + [1.0])
        lam = adaptive_lambda(torch.tensor([4]))
        wrong = gae(through, rewards, torch.tensor([7]), lam, 1.0, torch.zeros(1))[[0, 1, 5, 6]]
        np.testing.assert_allclose(wrong, [0.440428, 0.408513, 0.433333, 0.400000], atol=5e-7)
        assert (wrong[:2] - advantages([build(LAYOUT)], VALUES)[:2]).abs().min() > 0.1

    def test_value_target_is_the_reward_everywhere(self) -> None:
        axis = action_axis([build(LAYOUT, reward=0.75), build(LAYOUT, reward=None)])
        targets = value_targets(axis.rewards, axis.lengths, torch.tensor([0.0, 0.7]), AdvantageConfig())
        np.testing.assert_array_equal(targets, np.float32([0.75] * 4 + [0.7] * 4))

    def test_value_target_ignores_the_values_when_lambda_critic_is_one(self) -> None:
        axis = action_axis([build(LAYOUT)])
        zeros = torch.zeros(1)
        general = gae(VALUES, axis.rewards, axis.lengths, torch.ones(1), 0.9, zeros) + VALUES
        short = value_targets(axis.rewards, axis.lengths, zeros, AdvantageConfig(gamma=0.9))
        np.testing.assert_allclose(short, general, atol=1e-6)
        np.testing.assert_allclose(short, [0.9**3, 0.9**2, 0.9, 1], atol=1e-6)

    def test_lambda_critic_below_one_needs_values_and_uses_raw_ones(self) -> None:
        axis = action_axis([build(LAYOUT)])
        config = AdvantageConfig(lambda_critic=0.0, whitening="batch")
        with pytest.raises(AdvantageError, match="values before the update"):
            value_targets(axis.rewards, axis.lengths, torch.zeros(1), config)
        got = value_targets(axis.rewards, axis.lengths, torch.zeros(1), config, VALUES)
        np.testing.assert_allclose(got, [0.3, 0.5, 0.6, 1.0], atol=1e-6)  # V(next), then R: nothing whitened


class TestInvariants:
    @settings(max_examples=60, deadline=None)
    @given(
        actions=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        observations=st.lists(st.integers(0, 6), min_size=5, max_size=5),
        seed=st.integers(0, 1000),
    )
    def test_inserting_observations_changes_no_advantage(
        self, actions: list[int], observations: list[int], seed: int
    ) -> None:
        plain = build([("p", 2), *(("a", n) for n in actions)], seed=seed)
        filled = [("p", 2)]
        for n, gap in zip(actions, observations, strict=False):
            filled += [("a", n)] + ([("o", gap)] if gap else [])
        values = torch.randn(sum(actions), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(
            advantages([build(filled, seed=seed)], values), advantages([plain], values), rtol=0, atol=0
        )

    @settings(max_examples=40, deadline=None)
    @given(
        lengths=st.lists(st.integers(0, 17), min_size=1, max_size=5),
        gamma=st.sampled_from([1.0, 0.97]),
        seed=st.integers(0, 1000),
    )
    def test_batch_equals_the_textbook_recursion_one_by_one(self, lengths: list[int], gamma: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        values, rewards = rng.standard_normal(sum(lengths)), rng.standard_normal(sum(lengths))
        lam, bootstrap = rng.random(len(lengths)), rng.standard_normal(len(lengths))
        got = gae(*map(torch.tensor, (values, rewards, lengths, lam)), gamma, torch.tensor(bootstrap))
        want, start = [], 0
        for i, n in enumerate(lengths):
            part = slice(start, start + n)
            want += naive(list(values[part]), list(rewards[part]), lam[i], gamma, bootstrap[i])
            start += n
        np.testing.assert_allclose(got, want, atol=1e-12)

    def test_lengths_must_fit(self) -> None:
        with pytest.raises(AdvantageError, match="action tokens"):
            gae(torch.zeros(3), torch.zeros(3), torch.tensor([2]), torch.ones(1), 1.0, torch.zeros(1))


class TestLambdaPrecision:
    def test_bf16_would_round_lambda_to_one_from_342_tokens(self) -> None:
        assert float(torch.tensor(1 - 1 / (1.5 * 342), dtype=torch.bfloat16)) == 1.0
        lam = adaptive_lambda(torch.tensor([342, 131072]))
        assert lam.dtype == torch.float64
        assert float(lam[0]) == 1 - 1 / 513
        assert float(lam[1]) == 1 - 1 / 196608

    @pytest.mark.parametrize(("length", "low", "high"), [(1_000, 1e-6, 1e-4), (131_072, 1e-4, 1e-2)])
    def test_fp32_lambda_is_off_and_ours_is_not(self, length: int, low: float, high: float) -> None:
        """Reward 1 at the end, values 0: the first token's advantage is lambda^(l - 1)."""
        lam = adaptive_lambda(torch.tensor([length]))
        exact = float(np.longdouble(1) - 1 / (np.longdouble(1.5) * length)) ** (length - 1)
        rewards = torch.zeros(length, dtype=torch.float64)
        rewards[-1] = 1
        zeros = torch.zeros(length, dtype=torch.bfloat16)  # half-precision values must not pull the scan down
        got = gae(zeros, rewards, torch.tensor([length]), lam, 1.0, torch.zeros(1))
        assert got.dtype == torch.float64
        assert abs(float(got[0]) / exact - 1) < 1e-9
        off = abs(float(lam.float()[0]) ** (length - 1) / exact - 1)
        assert low < off < high

    def test_clamped_at_zero(self) -> None:
        assert float(adaptive_lambda(torch.tensor([1]), alpha=0.5)) == 0.0

    def test_lambda_is_each_trajectorys_own(self) -> None:
        short, long = build([("p", 2), ("a", 2)], seed=1), build([("p", 2), ("a", 6)], seed=2)
        values = torch.linspace(0, 1, 8)
        both = advantages([short, long], values)
        torch.testing.assert_close(both, torch.cat([advantages([short], values[:2]), advantages([long], values[2:])]))

    def test_suffix_sums_are_the_recursion(self) -> None:
        got = suffix_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3]), torch.tensor([0.5]))
        assert got.tolist() == [3.0, 4.0, 4.0]  # 4; 2 + .5*4; 1 + .5*4

    @given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 3), st.integers(0, 1000))
    def test_ragged_batches_are_the_recursion(self, lengths: list[int], long: int, seed: int) -> None:
        """Also over several blocks: some rows are far longer than the others."""
        lengths = [*lengths, 700 * long]
        rng = np.random.default_rng(seed)
        deltas, factors = rng.standard_normal(sum(lengths)), rng.uniform(0, 1, len(lengths))
        factors[::2] = 1.0
        expected, scale, at = [], [], 0
        for length, factor in zip(lengths, factors, strict=True):
            running = size = 0.0
            row, sizes = [], []
            for delta in deltas[at : at + length][::-1]:
                running, size = delta + factor * running, abs(delta) + factor * size
                row.append(running)
                sizes.append(size)
            expected, scale, at = expected + row[::-1], scale + sizes[::-1], at + length
        got = suffix_sums(torch.tensor(deltas), torch.tensor(lengths), torch.tensor(factors)).numpy()
        # Any order of n additions is within n eps of the sum of the sizes; a power c^k is within k eps.
        bound = 2 * max(lengths) * np.finfo(np.float64).eps * np.array(scale)
        assert (np.abs(got - np.array(expected)) <= bound).all()

    @pytest.mark.parametrize("rows", [1, 128, 2048])
    def test_work_and_memory_are_linear_in_the_tokens(self, rows: int) -> None:
        """One long row among short ones: counted in numbers written by all operations together, and by the largest."""
        lengths = torch.tensor([32_768] + [20] * (rows - 1))
        tokens = int(lengths.sum())
        with _Counted() as counted:
            gae(torch.rand(tokens), torch.rand(tokens), lengths, torch.full((rows,), 0.9), 1.0, torch.zeros(rows))
        assert counted.largest <= 3 * tokens
        assert counted.numbers <= 250 * tokens


class TestReward:
    def test_reward_sits_on_the_last_action_token_not_on_the_trailing_observation(self) -> None:
        trajectory = build([*LAYOUT, ("o", 5)], reward=0.5)
        rewards = token_rewards(trajectory)
        assert np.flatnonzero(rewards).tolist() == [8]
        assert trajectory.action_mask[8]
        assert float(action_axis([trajectory]).rewards.sum()) == 0.5

    def test_last_action_is_a_place_not_the_masks_sum(self) -> None:
        trajectory = build(LAYOUT)
        assert int(trajectory.action_mask.sum()) == 4
        assert np.flatnonzero(token_rewards(trajectory)).tolist() == [8]


class TestStepLevel:
    """Two turns of two tokens; values 0.2 0.3 | 0.5 0.6; reward 1; l = 2 turns, lambda = 1 - 1/3."""

    def test_mean(self) -> None:
        second = 1 - 0.55
        first = (0.55 - 0.25) + (2 / 3) * second
        got = advantages([build(LAYOUT)], VALUES, kind="step_mean")
        np.testing.assert_allclose(got, [first, first, second, second], atol=1e-6)

    def test_last_token(self) -> None:
        second = 1 - 0.6
        first = (0.6 - 0.3) + (2 / 3) * second
        got = advantages([build(LAYOUT)], VALUES, kind="step_last")
        np.testing.assert_allclose(got, [first, first, second, second], atol=1e-6)

    def test_turns_of_neighbours_stay_apart(self) -> None:
        one = build([("p", 2), ("a", 2)], seed=1)
        values = torch.tensor([0.2, 0.4, 0.6, 0.8])
        got = advantages([one, one], values, kind="step_mean")
        np.testing.assert_allclose(got, [0.7, 0.7, 0.3, 0.3], atol=1e-6)


class TestWhitening:
    def test_modes(self) -> None:
        raw = torch.tensor([1.0, 2.0, 3.0])
        assert whiten(raw, "off") is raw
        assert whiten(raw, "mean").tolist() == [-1, 0, 1]
        np.testing.assert_allclose(whiten(raw, "batch"), np.array([-1, 0, 1]) / np.sqrt(2 / 3), rtol=1e-6)

    def test_equal_advantages_become_zero_not_nan(self) -> None:
        assert whiten(torch.full((3,), 0.5), "batch").tolist() == [0, 0, 0]
