"""What one step reports, gathered from its parts. Reads only; nothing here trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from data.trajectory import Trajectory
from trainer.config import AdvantageKind, StepConfig
from trainer.objective import token_terms
from trainer.packing import ActionAxis, MicroBatch
from trainer.passes import ActorUpdate, CriticUpdate
from trainer.statistics import (
    RatioStatistics,
    StepMetrics,
    explained_variance,
    ratio_statistics,
    staleness,
    trajectory_means,
)


def step_metrics(
    config: StepConfig,
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
    policy_rate: float,
    critic_rate: float | None,
    seconds: Mapping[str, float],
) -> StepMetrics:
    """`advantages`: raw, before whitening. `actor` is empty in critic-only steps."""
    size, first = max(len(axis), 1), actor[0] if actor else None
    ratio: RatioStatistics = ratio_statistics(logprobs - axis.behaviour)
    graded_token = ~axis.cut[axis.trajectory]
    if config.advantage.kind is AdvantageKind.STEP_LAST:  # the critic is trained there alone
        graded_token &= axis.ends_turn
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
        policy_rate=None if first is None else policy_rate,
        value_losses=tuple(update.loss for update in critic_updates),
        critic_grad_norms=tuple(update.grad_norm for update in critic_updates),
        critic_rate=critic_rate,
        value_mean=None if before is None or not len(before) else float(before.mean()),
        explained_variance=explained(before),
        explained_variance_after=explained(fresh),
        seconds=seconds,
    )
