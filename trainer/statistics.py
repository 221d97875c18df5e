"""Numbers that say whether a step was sound. Pure functions, float64 inside; undefined is None, never 0 or NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from data.trajectory import Trajectory
from trainer.lengths import Lengths


def explained_variance(values: Tensor, targets: Tensor) -> float | None:
    """1 - Var(target - V) / Var(target); None on equal targets (all rewards alike, a batch of one): undefined there.

    1 is perfect, 0 is as good as a constant, negative is worse. A constant offset of V does not show."""
    y, v = targets.detach().to(torch.float64).flatten(), values.detach().to(torch.float64).flatten()
    if len(y) < 2:
        return None
    spread = y.var(correction=0)
    if float(spread) <= 1e-12 * max(1.0, float(y.square().mean())):
        return None
    return float(1 - (y - v).var(correction=0) / spread)


@dataclass(frozen=True)
class RatioStatistics:
    """Distance between the policy that sampled and the trainer's, over the batch's action tokens. None without any."""

    approx_kl: float | None = None
    """Nats per token, KL(rollout || trainer) by the unbiased non-negative estimator (r - 1) - log r."""
    ess: float | None = None
    """(sum r)^2 / (N sum r^2), in (0, 1]."""
    log_ratio_abs: float | None = None
    """Mean |log r|."""
    ratio_min: float | None = None
    ratio_max: float | None = None


def ratio_statistics(log_ratio: Tensor) -> RatioStatistics:
    """log r = log pi(trainer) - log pi(recorded), [N], every action token, rejected ones included."""
    if not log_ratio.numel():
        return RatioStatistics()
    x = log_ratio.detach().to(torch.float64)
    scaled = (x - x.max()).exp()  # ESS does not change with scale, and this cannot overflow
    return RatioStatistics(
        approx_kl=float((torch.expm1(x.clamp(max=700)) - x).mean()),
        ess=float(scaled.sum().square() / (len(x) * scaled.square().sum())),
        log_ratio_abs=float(x.abs().mean()),
        ratio_min=float(x.min().clamp(min=-700).exp()),
        ratio_max=float(x.max().clamp(max=700).exp()),
    )


def staleness(trajectory: Trajectory, version: int) -> int | None:
    """Trainer version minus the **oldest** token's version (gap); None without action tokens."""
    oldest = trajectory.oldest_version
    return None if oldest is None else version - oldest


def trajectory_means(per_token: Tensor, trajectory: Tensor, count: int) -> Tensor:
    """[N] -> float64 mean of each trajectory that has tokens: every trajectory weighs the same, however long."""
    sums = torch.zeros(count, dtype=torch.float64, device=per_token.device)
    sums = sums.index_add(0, trajectory, per_token.detach().to(torch.float64))
    sizes = torch.bincount(trajectory, minlength=count)
    return sums[sizes > 0] / sizes[sizes > 0]


@dataclass(frozen=True)
class StepMetrics:
    """All that one step reports. None: undefined or not computed in this step."""

    step: int
    version: int
    """Trainer's policy version before the step."""
    critic_only: bool
    trajectories: int
    action_tokens: int
    """N, the global denominator."""
    context_tokens: int
    """Real tokens of one pass over the batch."""
    padding_share: float
    trained_tokens: int
    """Action tokens with a non-zero policy weight."""
    reward: float | None
    """Mean over graded trajectories."""
    reward_recorded: float
    """Sum of the outcomes' rewards ..."""
    reward_on_actions: float
    """... and what of it lies on action tokens: anything else is lost signal."""
    cut_trajectories: int
    rejected_share: float | None
    rejected_low_share: float | None
    rejected_high_share: float | None
    approx_kl: float | None
    ess: float | None
    log_ratio_abs: float | None
    ratio_min: float | None
    ratio_max: float | None
    newest_version: int | None
    staleness_mean: float | None
    staleness_max: int | None
    mixed_version_share: float
    """Trajectories whose tokens come from more than one version."""
    advantage_mean: float | None
    """Signed, each trajectory weighing the same."""
    advantage_sd: float | None
    """Over trajectories."""
    whitened: bool
    policy_loss: float | None
    policy_grad_norm: float | None
    """Before clipping, first update."""
    policy_rate: float | None
    value_losses: tuple[float, ...]
    """One per critic update, each before its optimizer step."""
    critic_grad_norms: tuple[float, ...]
    critic_rate: float | None
    value_mean: float | None
    explained_variance: float | None
    """Of the values *before* the step's updates: prediction, not fit. Graded trajectories only."""
    explained_variance_after: float | None
    """Of the fresh values."""
    lengths: Lengths | None = None
    """The run's, so far; None outside a run."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase: pack, bootstrap, critic, values, actor, total."""

    @property
    def tokens_per_second(self) -> float:
        """Context tokens through a whole step, per second."""
        return self.context_tokens / max(self.seconds.get("total", 0.0), 1e-9)

    def to_dict(self) -> dict[str, object]:
        """JSON-able, one flat level but for the seconds."""
        return {**asdict(self), "seconds": dict(self.seconds), "tokens_per_second": self.tokens_per_second}
