"""One SAO step: critic x K on fixed targets -> fresh values -> GAE -> actor x 1.

Promises:
* one global denominator N (all action tokens of the optimizer batch, rejected ones included) for policy and value;
  micro-batches add up, so their split changes nothing;
* value targets are fixed before the first critic update; V(next state) of a system cut is read then, once, without
  gradient; advantages come from the values after the K updates (`advantage_values = "fresh"`);
* every micro-batch takes the same forward and backward path, also with no token to train;
* the mask of the objective weighs tokens in this step only; it is written back nowhere;
* state is in the models and optimizers alone: step, version and reward history come in and go out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from data.trajectory import Trajectory
from trainer.config import AdvantageKind, OptimizerConfig, StepConfig
from trainer.controls import RewardHistory, critic_free_advantages
from trainer.critic import Critic
from trainer.gae import policy_advantages, value_targets, whiten
from trainer.logprobs import check_head
from trainer.measure import step_metrics
from trainer.optim import (
    TrainingSetupError,
    build_optimizer,
    check_dropout_off,
    check_optimizer,
    current_rate,
    warmed_rate,
)
from trainer.packing import ActionAxis, MicroBatch, action_axis, pack, pack_ends
from trainer.passes import ActorUpdate, CriticUpdate, actor_update, critic_update, read_logprobs, read_values
from trainer.statistics import StepMetrics


@dataclass
class Learner:
    """The models and optimizers of a run. Build it after freezing; its optimizers' state is the checkpoint's."""

    policy: nn.Module
    critic: Critic | None
    policy_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer | None
    config: StepConfig

    @classmethod
    def build(cls, policy: nn.Module, critic: Critic | None, config: StepConfig) -> Learner:
        if config.advantage.kind.needs_critic and critic is None:
            raise TrainingSetupError(f"advantage.kind '{config.advantage.kind}' needs a critic: pass one")
        if not config.advantage.kind.needs_critic:
            critic = None
        check_head(policy)
        return cls(
            policy,
            critic,
            build_optimizer(policy, config.policy_optimizer),
            None if critic is None else build_optimizer(critic, config.critic_optimizer),
            config,
        )

    @property
    def device(self) -> torch.device:
        return next(self.policy.parameters()).device


@dataclass(frozen=True)
class StepResult:
    metrics: StepMetrics
    history: RewardHistory
    """Pass it to the next step (running-mean controls; untouched otherwise)."""
    advantages: Tensor | None = None
    """[N] float32 on the batch's action axis, as trained on; None in critic-only steps."""


@dataclass
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def check_ready(learner: Learner) -> None:
    """Dropout off in both models, optimizers over exactly what trains."""
    pairs = ((learner.policy, learner.policy_optimizer), (learner.critic, learner.critic_optimizer))
    for model, optimizer in pairs:
        if model is not None and optimizer is not None:
            check_dropout_off(model)
            check_optimizer(model, optimizer)


def sao_step(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    version: int,
    history: RewardHistory | None = None,
    denominator: int | None = None,
) -> StepResult:
    """Train on one optimizer batch, in place.

    step: training steps done before this one (warm-up and critic-only count from it). version: the policy's, before
    the step; it should rise with policy updates only. denominator: N over all ranks, where there are several (their
    gradients are then to be summed); None: this batch's action tokens.
    """
    config, clock = learner.config, _Clock()
    check_ready(learner)
    history = history or RewardHistory()
    critic_only = step < config.critic_only_steps
    with clock.phase("total"):
        with clock.phase("pack"):
            axis = action_axis(trajectories, learner.device, bootstraps=learner.critic is not None)
            micro = pack(trajectories, axis, config.packing.token_budget)
        n = max(len(axis) if denominator is None else denominator, 1)
        critic_updates: list[CriticUpdate] = []
        fresh: Tensor | None = None
        advantages: Tensor | None = None
        raw: Tensor | None = None
        if learner.critic is not None:
            bootstrap, targets = _fixed_targets(learner.critic, trajectories, axis, micro, config, clock)
            with clock.phase("critic"):
                counted = axis.ends_turn if config.advantage.kind is AdvantageKind.STEP_LAST else None
                critic_updates = _critic_updates(learner, micro, targets, n, step, counted)
            if not critic_only:
                values = critic_updates[0].values
                if config.critic.advantage_values == "fresh":
                    with clock.phase("values"):
                        fresh = values = read_values(learner.critic, micro, len(axis), config.precision)
                raw = policy_advantages(values, axis.rewards, axis.lengths, bootstrap, config.advantage, axis.steps)
        else:
            prompts = [t.identity.task_id for t in trajectories]
            raw, history = critic_free_advantages(
                axis.outcomes.tolist(), prompts, axis.lengths, history, config.advantage
            )
        with clock.phase("actor"):
            if raw is None:
                actor, logprobs = [], read_logprobs(learner.policy, axis, micro, config)
            else:
                advantages = whiten(raw, config.advantage.whitening)
                actor = _actor_updates(learner, axis, micro, advantages, n, step)
                logprobs = actor[0].logprobs
    metrics = step_metrics(
        config,
        trajectories,
        axis,
        micro,
        step,
        version,
        critic_updates,
        fresh,
        raw,
        actor,
        logprobs,
        current_rate(learner.policy_optimizer),
        None if learner.critic_optimizer is None else current_rate(learner.critic_optimizer),
        clock.seconds,
    )
    return StepResult(metrics, history, advantages)


def _fixed_targets(
    critic: Critic,
    trajectories: Sequence[Trajectory],
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    config: StepConfig,
    clock: _Clock,
) -> tuple[Tensor, Tensor]:
    """V(next state) of the system cuts [B], 0 elsewhere, and the value targets [N]; both before any update."""
    with clock.phase("bootstrap"):
        ends = pack_ends(trajectories, axis, config.packing.token_budget)
        bootstrap = read_values(critic, ends, len(trajectories), config.precision)
        before = None
        if config.advantage.lambda_critic < 1:
            before = read_values(critic, micro, len(axis), config.precision)
        return bootstrap, value_targets(axis.rewards, axis.lengths, bootstrap, config.advantage, before)


def _critic_updates(
    learner: Learner, micro: Sequence[MicroBatch], targets: Tensor, n: int, step: int, counted: Tensor | None
) -> list[CriticUpdate]:
    if learner.critic is None or learner.critic_optimizer is None:
        return []
    settings: OptimizerConfig = learner.config.critic_optimizer
    return [
        critic_update(
            learner.critic,
            learner.critic_optimizer,
            micro,
            targets,
            denominator=n,
            rate=warmed_rate(settings, step),
            max_grad_norm=settings.max_grad_norm,
            precision=learner.config.precision,
            counted=counted,
        )
        for _ in range(learner.config.critic.updates)
    ]


def _actor_updates(
    learner: Learner, axis: ActionAxis, micro: Sequence[MicroBatch], advantages: Tensor, n: int, step: int
) -> list[ActorUpdate]:
    objective = learner.config.objective
    rate = warmed_rate(learner.config.policy_optimizer, step - learner.config.critic_only_steps)
    old = axis.behaviour if objective.old_policy == "rollout" else None
    done: list[ActorUpdate] = []
    for _ in range(objective.updates):
        done.append(
            actor_update(
                learner.policy,
                learner.policy_optimizer,
                axis,
                micro,
                advantages,
                old,
                learner.config,
                denominator=n,
                rate=rate,
            )
        )
        old = done[0].logprobs if objective.old_policy == "latest" else old
    return done
