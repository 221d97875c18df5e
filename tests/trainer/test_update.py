"""The step through tiny Qwen3 models: gradients against finite differences and plain formulas, in fp64."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.update_support import (
    EXACT,
    assert_same,
    critic64,
    fixed_advantages,
    learner64,
    named,
    off_policy_batch,
    policy_gradient,
    taken,
)
from trainer.packing import action_axis, pack
from trainer.passes import accumulate_policy_gradient, accumulate_value_gradient, read_logprobs
from trainer.update import sao_step

from .tiny import build, mixed_batch, step_config
from .tiny_models import on_policy, plain_logprobs, tiny_policy

pytestmark = pytest.mark.numeric


class TestGradients:
    def test_policy_gradient_is_f_times_a_times_grad_log_pi(self, policy64: nn.Module) -> None:
        batch = off_policy_batch(policy64)
        advantages = fixed_advantages(batch)
        config = step_config()
        loss, ours = policy_gradient(policy64, batch, torch.cat(advantages), config)
        total, n, rejected = torch.zeros((), dtype=torch.float64), 0, 0
        for trajectory, a in zip(batch, advantages, strict=True):
            logp = plain_logprobs(policy64, trajectory)
            recorded = torch.tensor(trajectory.logprobs[trajectory.action_mask])
            r = (logp.detach() - recorded).exp()
            f = torch.where((r > 0.2) & (r < 4.0), r, 0)
            total = total - (f * a * logp).sum()
            n, rejected = n + len(a), rejected + int((f == 0).sum())
        assert 0 < rejected < n / 2
        (total / n).backward()
        assert_same(ours, taken(policy64))
        assert loss == pytest.approx(float(total.detach()) / n, abs=EXACT)

    def test_policy_gradient_equals_finite_differences(self, policy64: nn.Module) -> None:
        """Along random directions, by central differences, with f(r) A held fixed (the stop-gradient)."""
        batch = off_policy_batch(policy64)
        config = step_config(packing={"token_budget": 30})
        axis = action_axis(batch)
        advantages = torch.cat(fixed_advantages(batch))
        micro = pack(batch, axis, config.packing.token_budget)
        _, _, terms = accumulate_policy_gradient(policy64, axis, micro, advantages, axis.behaviour, len(axis), config)
        ours = taken(policy64)
        weights = terms.weight.clone()

        def loss() -> float:
            return -float((weights * read_logprobs(policy64, axis, micro, config)).sum()) / len(axis)

        generator = torch.Generator().manual_seed(5)
        parameters = dict(policy64.named_parameters())
        for _ in range(3):
            direction = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in parameters.items()}
            ends, h = [], 1e-6
            for sign in (1, -2):
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        parameter += sign * h * direction[name]
                ends.append(loss())
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter += h * direction[name]
            numeric = (ends[0] - ends[1]) / (2 * h)
            analytic = float(sum((ours[n] * direction[n]).sum() for n in ours))
            assert numeric == pytest.approx(analytic, rel=1e-6)

    def test_value_gradient_is_the_plain_formula(self) -> None:
        critic, batch = critic64(), mixed_batch()
        axis = action_axis(batch)
        targets = torch.linspace(-1, 1, len(axis), dtype=torch.float64)
        loss, values = accumulate_value_gradient(critic, pack(batch, axis, 20), targets, len(axis))
        ours, start, total = taken(critic), 0, torch.zeros((), dtype=torch.float64)
        for trajectory in batch:
            at = np.flatnonzero(trajectory.action_mask)
            everywhere = critic(torch.from_numpy(trajectory.tokens.astype(np.int64))[None])[0]
            predicted = everywhere[torch.from_numpy(at) - 1]
            torch.testing.assert_close(values[start : start + len(at)], predicted.detach(), rtol=0, atol=EXACT)
            total = total + 0.5 * (predicted - targets[start : start + len(at)]).square().sum() / len(axis)
            start += len(at)
        total.backward()
        assert_same(ours, taken(critic))
        assert loss == pytest.approx(float(total.detach()), abs=EXACT)

    def test_tied_embeddings_get_both_gradients(self) -> None:
        policy = tiny_policy(1, fp64=True, tied=True)
        batch = on_policy(policy, [build([("p", 3), ("a", 4)], seed=1)])
        _, ours = policy_gradient(policy, batch, torch.ones(4, dtype=torch.float64), step_config())
        r = (plain_logprobs(policy, batch[0]).detach() - torch.tensor(batch[0].logprobs[3:])).exp()
        (-(r * plain_logprobs(policy, batch[0])).sum() / 4).backward()
        assert_same(ours, taken(policy))


class TestNoDependenceOnPacking:
    @pytest.mark.parametrize("budget", [1, 25, 60, 10_000])
    def test_split_and_padding(self, policy64: nn.Module, budget: int) -> None:
        batch = off_policy_batch(policy64)
        advantages = torch.cat(fixed_advantages(batch))
        want = policy_gradient(policy64, batch, advantages, step_config(packing={"token_budget": 17}))
        # chunks of one row of logits as well
        other = step_config(packing={"token_budget": budget, "logit_budget": 1})
        got = policy_gradient(policy64, batch, advantages, other)
        assert got[0] == pytest.approx(want[0], abs=EXACT)
        assert_same(got[1], want[1])

        axis, critic = action_axis(batch), critic64()
        targets = torch.linspace(-1, 1, len(axis), dtype=torch.float64)
        results = []
        for size in (17, budget):
            loss, _ = accumulate_value_gradient(critic, pack(batch, axis, size), targets, len(axis))
            results.append((loss, taken(critic)))
        assert results[0][0] == pytest.approx(results[1][0], abs=EXACT)
        assert_same(results[0][1], results[1][1])

    def test_order_of_trajectories(self, policy64: nn.Module) -> None:
        batch = off_policy_batch(policy64)
        advantages = fixed_advantages(batch)
        config = step_config(packing={"token_budget": 30})
        want = policy_gradient(policy64, batch, torch.cat(advantages), config)
        order = list(range(len(batch)))
        random.Random(3).shuffle(order)
        shuffled = torch.cat([advantages[i] for i in order])
        got = policy_gradient(policy64, [batch[i] for i in order], shuffled, config)
        assert got[0] == pytest.approx(want[0], abs=EXACT)
        assert_same(got[1], want[1])

    def test_whole_steps_agree(self, policy64: nn.Module) -> None:
        """Critic x 2, fresh values, GAE, actor: the same weights whatever the budget and order."""
        batch = off_policy_batch(policy64)
        ends = []
        for budget, order in ((10_000, 1), (20, -1)):
            learner = learner64(policy64, packing={"token_budget": budget})
            sao_step(learner, batch[::order], step=0, version=1)
            ends.append(
                {n: p.detach().clone() for n, p in (*learner.policy.named_parameters(), *named(learner.critic))}
            )
        # Adam divides by |gradient| and GAE's results are fp32: looser than the gradients themselves
        assert_same(ends[0], ends[1], atol=1e-6)
