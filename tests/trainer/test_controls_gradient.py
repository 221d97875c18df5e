"""What each control does to the gradient, worked by hand: two turns of two tokens, R = 1, V = 0.2 0.3 | 0.5 0.6."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.controls import RewardHistory, control, critic_free_advantages
from trainer.gae import policy_advantages
from trainer.objective import policy_loss
from trainer.packing import action_axis, pack
from trainer.passes import accumulate_value_gradient

from .tiny import build, step_config

pytestmark = pytest.mark.numeric

LAYOUT = [("p", 2), ("a", 2), ("o", 3), ("a", 2)]
VALUES = torch.tensor([0.2, 0.3, 0.5, 0.6])
RATIOS = torch.tensor([1.0, 1.5, 0.5, 5.0])
SAO = [0.567593, 0.561111, 0.433333, 0.4]
"""Advantages, lambda = 1 - 1 / 6 (the algorithm's golden numbers)."""


def gradient(name: str) -> Tensor:
    """d loss / d log pi of the four action tokens, ratios as above against the recorded log-probabilities of -3."""
    config = control(name, step_config())
    axis = action_axis([build(LAYOUT, reward=1.0)])
    if config.advantage.kind.needs_critic:
        advantages = policy_advantages(VALUES, axis.rewards, axis.lengths, torch.zeros(1), config.advantage, axis.steps)
    else:
        history = RewardHistory({"t0": (0.5, 0.0)}, (0.75, 0.5, 0.0), 3, 1.25)
        advantages, _ = critic_free_advantages([1.0], ["t0"], axis.lengths, history, config.advantage)
    logp = (axis.behaviour + RATIOS.log()).requires_grad_(True)
    policy_loss(logp, axis.behaviour, advantages, config.objective, len(axis)).backward()
    assert logp.grad is not None
    return logp.grad


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # f(r) A: 1, 1.5 and 0.5 lie in (0.2, 4), 5 does not
        ("sao", [SAO[0], 1.5 * SAO[1], 0.5 * SAO[2], 0]),
        ("one_critic_update", [SAO[0], 1.5 * SAO[1], 0.5 * SAO[2], 0]),
        ("full_critic", [SAO[0], 1.5 * SAO[1], 0.5 * SAO[2], 0]),
        # A > 0: only above 1.28 is the gradient cut
        ("clip_higher", [SAO[0], 0, 0.5 * SAO[2], 0]),
        ("ppo_one_sided", [SAO[0], 1.5 * SAO[1], 0.5 * SAO[2], 0]),
        # turns: V = 0.25, 0.55, lambda = 1 - 1/3: A2 = 0.45, A1 = 0.3 + 2/3 * 0.45
        ("step_mean", [0.6, 1.5 * 0.6, 0.5 * 0.45, 0]),
        # V = 0.3, 0.6: A2 = 0.4, A1 = 0.3 + 2/3 * 0.4
        ("step_last", [0.3 + 0.8 / 3, 1.5 * (0.3 + 0.8 / 3), 0.5 * 0.4, 0]),
        # R minus the prompt's mean 0.25, or minus the mean of all 1.25 / 3
        ("running_mean_prompt", [0.75, 1.5 * 0.75, 0.5 * 0.75, 0]),
        ("running_mean_global", [1.75 / 3, 1.5 * 1.75 / 3, 0.5 * 1.75 / 3, 0]),
    ],
)
def test_policy_gradient(name: str, weights: list[float]) -> None:
    torch.testing.assert_close(gradient(name), -torch.tensor(weights) / 4, rtol=0, atol=1e-6)


class Affine(nn.Module):
    """A critic whose value is the parameter of the place it reads: its gradient is the value loss's own."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.head: Any = nn.Linear(places, 1, bias=False)
        nn.init.constant_(self.head.weight, 0.25)

    def forward(self, tokens: Tensor, gather: Tensor) -> Tensor:
        return self.head.weight[0].index_select(0, gather)


def value_gradient(name: str) -> dict[int, float]:
    """Place -> d loss / d V there, where it is not 0; V = 0.25, R = 1, N = 4."""
    config = control(name, step_config())
    trajectory = build(LAYOUT, reward=1.0)
    axis = action_axis([trajectory])
    critic, micro = Affine(len(trajectory)), pack([trajectory], axis, 100)
    counted = axis.ends_turn if config.advantage.kind == "step_last" else None
    accumulate_value_gradient(critic, micro, torch.ones(4), len(axis), counted=counted)  # type: ignore[arg-type]
    return {place: float(g) for place, g in enumerate(critic.head.weight.grad[0]) if g != 0}


def test_value_gradient_of_every_token_or_of_the_steps_last_alone() -> None:
    each = (0.25 - 1) / 4
    assert math.isclose(each, -0.1875)
    assert value_gradient("sao") == value_gradient("step_mean") == {1: each, 2: each, 6: each, 7: each}
    assert value_gradient("step_last") == {2: each, 7: each}, "read at the place before the last token of each turn"


def test_turn_ends_over_trajectories_and_observations() -> None:
    one, none = build([("p", 1), ("a", 1), ("o", 1), ("a", 3)]), build([("p", 4)])
    axis = action_axis([one, none, one])
    assert axis.ends_turn.tolist() == [True, False, False, True] * 2
    assert action_axis([none]).ends_turn.tolist() == []
