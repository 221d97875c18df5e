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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from data.trajectory import Trajectory
from trainer.config import OptimizerConfig, StepConfig
from trainer.controls import RewardHistory, critic_free_advantages
from trainer.critic import Critic
from trainer.gae import policy_advantages, value_targets, whiten
from trainer.logprobs import (
    action_logprobs,
    body_of,
    check_head,
    head_of,
    hidden_states,
    weighted_logprobs,
)
from trainer.objective import TokenTerms, token_terms, value_loss
from trainer.optim import (
    TrainingSetupError,
    build_optimizer,
    check_dropout_off,
    check_optimizer,
    clipped_step,
    set_rate,
    warmed_rate,
)
from trainer.packing import ActionAxis, MicroBatch, action_axis, pack, pack_ends
from trainer.statistics import (
    RatioStatistics,
    StepMetrics,
    explained_variance,
    ratio_statistics,
    staleness,
    trajectory_means,
)


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


@dataclass(frozen=True)
class CriticUpdate:
    loss: float
    grad_norm: float
    values: Tensor
    """[N] float32: before the optimizer step."""


@dataclass(frozen=True)
class ActorUpdate:
    loss: float
    grad_norm: float
    logprobs: Tensor
    """[N]: before the optimizer step."""
    terms: TokenTerms


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


# --- passes over the batch --------------------------------------------------------------------------------------------


@torch.no_grad()
def read_values(critic: Critic, micro: Sequence[MicroBatch], size: int, precision: str = "fp32") -> Tensor:
    """[size] values at the micro-batches' slots; 0 where none reads."""
    head = critic.head.weight
    values = torch.zeros(size, dtype=head.dtype, device=head.device)
    for part in micro:
        with autocast(head.device, precision):
            values[part.slots] = critic(part.tokens, part.gather)
    return values


@torch.no_grad()
def read_logprobs(policy: nn.Module, axis: ActionAxis, micro: Sequence[MicroBatch], config: StepConfig) -> Tensor:
    """[N] log pi(a_t) of the trainer's policy now."""
    weight, bias = head_of(policy)
    logprobs = torch.zeros(len(axis), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    for part in micro:
        with autocast(weight.device, config.precision):
            hidden = part.rows(hidden_states(body_of(policy), part.tokens))
        budget = config.packing.logit_budget
        logprobs[part.slots] = action_logprobs(hidden, weight, axis.tokens[part.slots], bias, logit_budget=budget)
    return logprobs


def accumulate_value_gradient(
    critic: Critic, micro: Sequence[MicroBatch], targets: Tensor, denominator: int, precision: str = "fp32"
) -> tuple[float, Tensor]:
    """Add the gradient of 0.5 sum (V - target)^2 / denominator; returns that loss and the values [N]."""
    head = critic.head.weight
    values = torch.zeros(len(targets), dtype=head.dtype, device=head.device)
    total = torch.zeros((), dtype=torch.float64, device=head.device)
    for part in micro:
        with autocast(head.device, precision):
            predicted = critic(part.tokens, part.gather)
        loss = value_loss(predicted, targets[part.slots], denominator)
        loss.backward()
        values[part.slots] = predicted.detach()
        total += loss.detach()
    return float(total), values


def accumulate_policy_gradient(
    policy: nn.Module,
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    advantages: Tensor,
    old: Tensor | None,
    denominator: int,
    config: StepConfig,
) -> tuple[float, Tensor, TokenTerms]:
    """Add the gradient of the objective / denominator; returns its value, log pi [N] and the token terms [N].

    `old` [N] is what ratios are taken against; None: the policy itself at this moment (ratio 1, "latest")."""
    body, (weight, bias) = body_of(policy), head_of(policy)
    logprobs = torch.zeros(len(axis), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    for part in micro:
        part_advantages = advantages[part.slots]
        part_old = None if old is None else old[part.slots]

        def weigh(logp: Tensor, rows: slice, a: Tensor = part_advantages, o: Tensor | None = part_old) -> Tensor:
            return token_terms(logp, logp if o is None else o[rows], a[rows], config.objective).weight / denominator

        with autocast(weight.device, config.precision):
            hidden = part.rows(hidden_states(body, part.tokens))
        loss, part_logprobs = weighted_logprobs(
            hidden, weight, axis.tokens[part.slots], weigh, bias, logit_budget=config.packing.logit_budget
        )
        loss.backward()
        logprobs[part.slots] = part_logprobs
    terms = token_terms(logprobs, logprobs if old is None else old, advantages, config.objective)
    return float(terms.loss.to(torch.float64).sum() / denominator), logprobs, terms


def critic_update(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    micro: Sequence[MicroBatch],
    targets: Tensor,
    *,
    denominator: int,
    rate: float,
    max_grad_norm: float,
    precision: str = "fp32",
) -> CriticUpdate:
    """One optimizer step of the critic against fixed targets [N] (value pretraining uses it as it is)."""
    set_rate(optimizer, rate)
    loss, values = accumulate_value_gradient(critic, micro, targets, denominator, precision)
    norm = clipped_step(critic, optimizer, max_grad_norm)
    return CriticUpdate(loss, norm, values)


def actor_update(
    learner: Learner,
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    advantages: Tensor,
    old: Tensor | None,
    *,
    denominator: int,
    rate: float,
) -> ActorUpdate:
    """One optimizer step of the policy."""
    set_rate(learner.policy_optimizer, rate)
    loss, logprobs, terms = accumulate_policy_gradient(
        learner.policy, axis, micro, advantages, old, denominator, learner.config
    )
    norm = clipped_step(learner.policy, learner.policy_optimizer, learner.config.policy_optimizer.max_grad_norm)
    return ActorUpdate(loss, norm, logprobs, terms)


# --- the step ---------------------------------------------------------------------------------------------------------


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
                critic_updates = _critic_updates(learner, micro, targets, n, step)
            if not critic_only:
                values = critic_updates[0].values
                if config.critic.advantage_values == "fresh":
                    with clock.phase("values"):
                        fresh = values = read_values(learner.critic, micro, len(axis), config.precision)
                raw = policy_advantages(values, axis.rewards, axis.lengths, bootstrap, config.advantage, axis.steps)
        else:
            prompts = [t.identity.task_id for t in trajectories]
            raw, history = critic_free_advantages(
                axis.outcomes.tolist(), prompts, axis.lengths, history, config.advantage.kind, config.advantage.window
            )
        with clock.phase("actor"):
            if raw is None:
                actor, logprobs = [], read_logprobs(learner.policy, axis, micro, config)
            else:
                advantages = whiten(raw, config.advantage.whitening)
                actor = _actor_updates(learner, axis, micro, advantages, n, step)
                logprobs = actor[0].logprobs
    metrics = _metrics(
        learner, trajectories, axis, micro, step, version, critic_updates, fresh, raw, actor, logprobs, clock
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
    learner: Learner, micro: Sequence[MicroBatch], targets: Tensor, n: int, step: int
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
        done.append(actor_update(learner, axis, micro, advantages, old, denominator=n, rate=rate))
        old = done[0].logprobs if objective.old_policy == "latest" else old
    return done


def _metrics(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    step: int,
    version: int,
    critic_updates: Sequence[CriticUpdate],
    fresh: Tensor | None,
    advantages: Tensor | None,
    actor: Sequence[ActorUpdate],
    logprobs: Tensor,
    clock: _Clock,
) -> StepMetrics:
    config = learner.config
    size, first = max(len(axis), 1), actor[0] if actor else None
    ratio: RatioStatistics = ratio_statistics(logprobs - axis.behaviour)
    graded_token = ~axis.cut[axis.trajectory]
    goal = axis.outcomes[axis.trajectory]

    def explained(values: Tensor | None) -> float | None:
        return None if values is None else explained_variance(values[graded_token], goal[graded_token])

    acted = ~axis.cut & (axis.lengths > 0)
    ages = [age for t in trajectories if (age := staleness(t, version)) is not None]
    mixed = [len(set(t.versions[t.action_mask].tolist())) > 1 for t in trajectories]
    means = None if advantages is None else trajectory_means(advantages, axis.trajectory, len(trajectories))
    if first is not None:
        low, high = int(first.terms.rejected_low.sum()), int(first.terms.rejected_high.sum())
    else:  # critic-only: what the objective would reject, whatever the advantages
        ones = torch.ones_like(logprobs)
        old = logprobs if config.objective.old_policy == "latest" else axis.behaviour
        terms = token_terms(logprobs, old, ones, config.objective)
        low, high = int(terms.rejected_low.sum()), int(terms.rejected_high.sum())
    before = critic_updates[0].values if critic_updates else None
    real, padded = sum(part.real_tokens for part in micro), sum(part.tokens.numel() for part in micro)
    return StepMetrics(
        step=step,
        version=version,
        critic_only=first is None,
        trajectories=len(trajectories),
        action_tokens=len(axis),
        context_tokens=real,
        padding_share=1 - real / max(padded, 1),
        trained_tokens=0 if first is None else int((first.terms.weight != 0).sum()),
        reward=float(axis.outcomes[~axis.cut].mean()) if bool((~axis.cut).any()) else None,
        reward_recorded=float(axis.outcomes[acted].sum()),
        reward_on_actions=float(axis.rewards.sum()),
        cut_trajectories=int(axis.cut.sum()),
        rejected_share=(low + high) / size if len(axis) else None,
        rejected_low_share=low / size if len(axis) else None,
        rejected_high_share=high / size if len(axis) else None,
        approx_kl=ratio.approx_kl,
        ess=ratio.ess,
        log_ratio_abs=ratio.log_ratio_abs,
        ratio_min=ratio.ratio_min,
        ratio_max=ratio.ratio_max,
        newest_version=int(axis.versions.max()) if len(axis) else None,
        staleness_mean=sum(ages) / len(ages) if ages else None,
        staleness_max=max(ages, default=None),
        mixed_version_share=sum(mixed) / max(len(mixed), 1),
        advantage_mean=None if means is None or not len(means) else float(means.mean()),
        advantage_sd=None if means is None or len(means) < 2 else float(means.std()),
        whitened=config.advantage.whitening != "off",
        policy_loss=None if first is None else first.loss,
        policy_grad_norm=None if first is None else first.grad_norm,
        policy_rate=None if first is None else float(learner.policy_optimizer.param_groups[0]["lr"]),
        value_losses=tuple(update.loss for update in critic_updates),
        critic_grad_norms=tuple(update.grad_norm for update in critic_updates),
        critic_rate=float(learner.critic_optimizer.param_groups[0]["lr"]) if learner.critic_optimizer else None,
        value_mean=None if before is None or not len(before) else float(before.mean()),
        explained_variance=explained(before),
        explained_variance_after=explained(fresh),
        seconds=clock.seconds,
    )
