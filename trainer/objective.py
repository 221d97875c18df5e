"""Policy objectives: how each action token's log-probability is weighted, as pure functions of three vectors.

Promises, for every objective in `OBJECTIVES`:
* `weight` is the exact gradient of the token's surrogate: d(-loss)/d(log pi) = weight, without any gradient of its own
  (no gradient ever flows through a ratio *and* log pi);
* rejected tokens get weight 0 and stay in the denominator, which the caller supplies: nothing here averages;
* ratios are compared in log space in at least fp32, and `exp` sees accepted tokens only, so no inf * 0 = NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import ObjectiveConfig, ObjectiveName


@dataclass(frozen=True)
class TokenTerms:
    """Per action token, all [K] and without gradient."""

    weight: Tensor
    """d(-loss)/d(log pi)."""
    loss: Tensor
    """Value of the surrogate that is reported."""
    rejected_low: Tensor
    """bool: the ratio is at or under the lower bound and the objective gives the token no gradient."""
    rejected_high: Tensor
    """bool: likewise at or over the upper bound."""

    @property
    def kept(self) -> Tensor:
        return ~(self.rejected_low | self.rejected_high)


Objective = Callable[[Tensor, Tensor, Tensor, ObjectiveConfig], TokenTerms]
"""(log pi [K], old log pi [K], advantages [K], config) -> terms."""

_LOG_RATIO_CAP = 20.0  # PPO clip only: exp(20) = 5e8 keeps fp32 finite where the clip does not bound (A < 0)


def _bounds(config: ObjectiveConfig) -> tuple[float, float]:
    low = math.log1p(-config.eps_low) if config.eps_low < 1 else -math.inf
    return low, math.log1p(config.eps_high)


def _prepared(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Detached, in at least fp32: in bf16 the ratio of a long-tail token is off by per cents."""
    return tuple(v.detach().to(torch.promote_types(v.dtype, torch.float32)) for v in vectors)


def dis(logp: Tensor, old: Tensor, advantages: Tensor, config: ObjectiveConfig) -> TokenTerms:
    """Direct double-sided importance sampling (paper, Eq. 1-3): weight f(r) A, with f(r) = r strictly inside
    (1 - eps_low, 1 + eps_high) and 0 outside, on both sides whatever the sign of A. The ratio stays as the weight:
    neither a clamp nor a 0/1 mask. The stop-gradient on f is our decision (gap): the surrogate is -sg(f(r)) A log pi.
    """
    logp, old, advantages = _prepared(logp, old, advantages)
    log_ratio = logp - old
    low, high = _bounds(config)
    rejected_low, rejected_high = log_ratio <= low, log_ratio >= high
    kept = (log_ratio > low) & (log_ratio < high)
    ratio = torch.where(kept, log_ratio, 0).exp() * kept
    weight = ratio * advantages
    return TokenTerms(weight, -weight * logp, rejected_low, rejected_high)


def ppo_clip(logp: Tensor, old: Tensor, advantages: Tensor, config: ObjectiveConfig) -> TokenTerms:
    """Control: loss -min(r A, clip(r, 1 - eps_low, 1 + eps_high) A). One-sided: with A > 0 only the upper bound stops
    the gradient, with A < 0 only the lower one. eps 0.2 / 0.28 is clip-higher. log r is capped at 20 (ours)."""
    logp, old, advantages = _prepared(logp, old, advantages)
    low, high = _bounds(config)
    log_ratio = (logp - old).clamp(max=_LOG_RATIO_CAP)
    ratio = log_ratio.exp()
    rejected_low = (log_ratio < low) & (advantages < 0)
    rejected_high = (log_ratio > high) & (advantages > 0)
    clipped = ratio.clamp(1 - config.eps_low, 1 + config.eps_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    weight = ratio * advantages * ~(rejected_low | rejected_high)
    return TokenTerms(weight, loss, rejected_low, rejected_high)


def reinforce(logp: Tensor, old: Tensor, advantages: Tensor, config: ObjectiveConfig) -> TokenTerms:
    """Control: weight A, no correction for the distance between the sampling policy and ours."""
    logp, _, advantages = _prepared(logp, old, advantages)
    none = torch.zeros_like(logp, dtype=torch.bool)
    return TokenTerms(advantages, -advantages * logp, none, none)


OBJECTIVES: Mapping[ObjectiveName, Objective] = {
    ObjectiveName.DIS: dis,
    ObjectiveName.PPO_CLIP: ppo_clip,
    ObjectiveName.REINFORCE: reinforce,
}


def token_terms(logp: Tensor, old: Tensor, advantages: Tensor, config: ObjectiveConfig) -> TokenTerms:
    return OBJECTIVES[config.name](logp, old, advantages, config)


def policy_loss(logp: Tensor, old: Tensor, advantages: Tensor, config: ObjectiveConfig, denominator: int) -> Tensor:
    """Scalar with gradient in `logp` only: -sum(weight * log pi) / denominator.

    `denominator` is N, **all** action tokens of the optimizer batch, rejected ones included, over all ranks and
    micro-batches (gap), so that parts of a batch add up. The training step uses the fused form
    (`trainer.logprobs.weighted_logprobs`); this is its definition.
    """
    weight = token_terms(logp, old, advantages, config).weight
    return -(weight * logp).sum() / denominator


def value_loss(values: Tensor, targets: Tensor, denominator: int) -> Tensor:
    """Scalar: 0.5 * sum((V - target)^2) / denominator, the same global N, no value clipping (gap)."""
    return 0.5 * (values - targets.detach().to(values.dtype)).square().sum() / denominator
