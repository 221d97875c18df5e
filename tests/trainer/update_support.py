"""What the tests of an update share: models in double precision, learners, batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.trajectory import Trajectory
from trainer.config import StepConfig
from trainer.critic import Critic
from trainer.freeze import freeze_for_rl
from trainer.optim import gradients
from trainer.packing import action_axis, pack
from trainer.passes import accumulate_policy_gradient
from trainer.statistics import StepMetrics
from trainer.update import Learner, sao_step

from .tiny import mixed_batch, step_config
from .tiny_models import on_policy, tiny_policy

EXACT = 1e-10


@pytest.fixture(scope="module")
def policy64() -> nn.Module:
    return tiny_policy(3, fp64=True)


def critic64() -> Critic:
    critic = Critic.from_policy(tiny_policy(4, fp64=True))
    nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    return critic


def off_policy_batch(policy: nn.Module) -> list[Trajectory]:
    """Ratios on both sides of the coding band, most of them inside."""
    return on_policy(policy, mixed_batch(), noise=0.9)


def taken(model: nn.Module) -> dict[str, Tensor]:
    found = {name: gradient.clone() for name, gradient in gradients(model)}
    model.zero_grad(set_to_none=True)
    return found


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = EXACT) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def policy_gradient(
    policy: nn.Module, batch: Sequence[Trajectory], advantages: Tensor, config: StepConfig
) -> tuple[float, dict[str, Tensor]]:
    axis = action_axis(batch)
    micro = pack(batch, axis, config.packing.token_budget)
    loss, _, _ = accumulate_policy_gradient(policy, axis, micro, advantages, axis.behaviour, len(axis), config)
    return loss, taken(policy)


def fixed_advantages(batch: Sequence[Trajectory]) -> list[Tensor]:
    """By trajectory, so that a reordered batch keeps each its own."""
    return [torch.linspace(-1, 2, int(t.action_mask.sum()), dtype=torch.float64) + i for i, t in enumerate(batch)]


def named(critic: Critic | None) -> list[tuple[str, nn.Parameter]]:
    assert critic is not None
    return [(f"critic.{n}", p) for n, p in critic.named_parameters()]


def learner64(policy: nn.Module, **changes: object) -> Learner:
    config = step_config(**changes)
    own = tiny_policy(3, fp64=True)
    own.load_state_dict(policy.state_dict())
    critic = critic64()
    freeze_for_rl(critic, config.critic)
    return Learner.build(own, critic, config)


def make_learner(seed: int = 0, **changes: object) -> Learner:
    config = step_config(**changes)
    policy = tiny_policy(seed)
    critic = Critic.from_policy(policy)
    freeze_for_rl(critic, config.critic)
    return Learner.build(policy, critic, config)


def run(learner: Learner, batch: Sequence[Trajectory], step: int = 0, version: int = 0) -> StepMetrics:
    return sao_step(learner, batch, step=step, version=version).metrics


def build_far(t: Trajectory) -> Trajectory:
    logprobs = np.where(t.action_mask, np.float32(-200), t.logprobs).astype(np.float32)
    return Trajectory(t.tokens, logprobs, t.versions, t.spans, t.outcome, t.identity)
