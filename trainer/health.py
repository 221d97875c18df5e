"""Alarms over a step's metrics: typed events, limits from the configuration, counters that a checkpoint can hold.

`check(metrics, state, limits)` is pure: it returns the alarms and the next state. An alarm never changes training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from trainer.config import HealthConfig
from trainer.lengths import Lengths
from trainer.statistics import StepMetrics


class AlarmKind(StrEnum):
    REJECTED_TOKENS = "rejected_tokens"
    APPROX_KL = "approx_kl"
    EFFECTIVE_SAMPLE_SIZE = "effective_sample_size"
    ADVANTAGE_MEAN = "advantage_mean"
    CRITIC_GRADIENT = "critic_gradient"
    RECOMPUTED_LOGPROBS = "recomputed_logprobs"
    NOTHING_TRAINED = "nothing_trained"
    REWARD_LOST = "reward_lost"
    EXPLAINED_VARIANCE = "explained_variance"
    TOKENS_DROPPED = "tokens_dropped"
    OVERTAKEN = "overtaken"
    LENGTH_BIAS = "length_bias"


@dataclass(frozen=True)
class Alarm:
    kind: AlarmKind
    step: int
    value: float
    limit: float
    text: str
    """What it may mean and where to look first."""

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "kind": str(self.kind)}


@dataclass(frozen=True)
class HealthState:
    """Steps running beyond a limit, by alarm; JSON-able through `to_dict`."""

    running: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, int]:
        return dict(self.running)

    @classmethod
    def from_dict(cls, running: Mapping[str, int]) -> HealthState:
        return cls({AlarmKind(name).value: int(count) for name, count in running.items()})


@dataclass(frozen=True)
class _Rule:
    kind: AlarmKind
    value: float | None
    """None: undefined in this step; the counter stays."""
    limit: float
    beyond: bool
    steps: int
    text: str


def _rules(m: StepMetrics, c: HealthConfig, idle: int) -> list[_Rule]:
    """`idle`: steps just before this one that trained nothing."""
    distance = "rollout and trainer policies differ: stale or partly loaded engine weights, shifted mask, old rollouts"
    rules = [
        _above(AlarmKind.REJECTED_TOKENS, m.rejected_share, c.rejected_share, 1, f"tokens rejected; {distance}"),
        _above(AlarmKind.APPROX_KL, m.approx_kl, c.approx_kl, 1, f"nats per token; {distance}"),
    ]
    rules.append(
        _Rule(
            AlarmKind.EFFECTIVE_SAMPLE_SIZE,
            m.ess,
            c.ess,
            m.ess is not None and m.ess < c.ess,
            1,
            f"effective share of the tokens; {distance}",
        )
    )
    if not m.whitened and m.advantage_mean is not None and m.advantage_sd is not None:
        limit = max(c.advantage_mean, c.advantage_sigmas * m.advantage_sd / max(m.trajectories, 1) ** 0.5)
        text = "mean advantage away from 0: the critic lags behind the reward or misses part of it"
        rules.append(_above(AlarmKind.ADVANTAGE_MEAN, abs(m.advantage_mean), limit, c.advantage_steps, text))
    norm = max(m.critic_grad_norms, default=None)
    text = "critic gradient norm before clipping: targets jumped, or the critic is new under a trained actor"
    rules.append(_above(AlarmKind.CRITIC_GRADIENT, norm, c.critic_grad_norm, c.critic_grad_steps, text))
    # Updates that changed nothing leave every ratio at 1, honestly.
    behind = m.newest_version is not None and m.version - m.newest_version > idle and not m.critic_only
    same = m.log_ratio_abs is not None and m.log_ratio_abs <= c.recomputed_log_ratio
    rules.append(
        _Rule(
            AlarmKind.RECOMPUTED_LOGPROBS,
            m.log_ratio_abs if behind else None,
            c.recomputed_log_ratio,
            behind and same,
            1,
            "every ratio is 1 although the trainer is ahead of every token: recorded log-probabilities were recomputed "
            "by the trainer, or the updates do not reach the policy",
        )
    )
    rules.append(
        _Rule(
            AlarmKind.NOTHING_TRAINED,
            float(m.trained_tokens),
            1,
            m.trained_tokens == 0 and not m.critic_only,
            1,
            "no action token got a policy gradient: all rejected, all advantages 0, or the mask is empty",
        )
    )
    lost = abs(m.reward_recorded - m.reward_on_actions)
    rules.append(
        _above(AlarmKind.REWARD_LOST, lost, 1e-6, 1, "recorded reward that lies on no action token: it trains nothing")
    )
    if c.explained_variance is not None and m.step >= c.explained_variance_from:
        low = m.explained_variance is not None and m.explained_variance < c.explained_variance
        text = "the critic predicts worse than a constant"
        rules.append(
            _Rule(
                AlarmKind.EXPLAINED_VARIANCE,
                m.explained_variance,
                c.explained_variance,
                low,
                c.explained_variance_steps,
                text,
            )
        )
    if m.lengths is not None:
        rules += _length_rules(m.lengths, m.trajectories, c)
    return rules


def _length_rules(lengths: Lengths, batch: int, c: HealthConfig) -> list[_Rule]:
    off = None if lengths.bias is None or lengths.dispatched_draws < batch else abs(lengths.bias - 1)
    return [
        _above(
            AlarmKind.TOKENS_DROPPED,
            lengths.dropped_tokens,
            c.dropped_tokens,
            1,
            f"of the sampled tokens are dropped, in {100 * lengths.dropped_draws:.1f} % of the draws: long episodes "
            "get stale. Lower train.ahead or rollout.concurrency, or raise train.max_staleness",
        ),
        _above(
            AlarmKind.OVERTAKEN,
            lengths.overtaken,
            c.overtaken,
            1,
            "of the draws started so far still run while later ones are trained on: the batches are shorter than what "
            "was dispatched. Lower rollout.concurrency or train.ahead, or raise train.batch",
        ),
        _above(
            AlarmKind.LENGTH_BIAS,
            off,
            c.length_bias,
            c.length_bias_steps,
            "the batches' mean length is off that of the dispatched draws by this share: short episodes come first",
        ),
    ]


def _above(kind: AlarmKind, value: float | None, limit: float, steps: int, text: str) -> _Rule:
    return _Rule(kind, value, limit, value is not None and not value <= limit, steps, text)


def check(metrics: StepMetrics, state: HealthState, limits: HealthConfig) -> tuple[list[Alarm], HealthState]:
    """Alarms of this step and the counters after it. A value that is not a number counts as beyond its limit."""
    running, alarms = dict(state.running), []
    for rule in _rules(metrics, limits, running.get(AlarmKind.NOTHING_TRAINED.value, 0)):
        if rule.value is None:
            continue
        running[rule.kind.value] = running.get(rule.kind.value, 0) + 1 if rule.beyond else 0
        if running[rule.kind.value] >= rule.steps:
            alarms.append(Alarm(rule.kind, metrics.step, rule.value, rule.limit, rule.text))
    return alarms, HealthState(running)
