"""Typed settings of one SAO step: what a run may choose, with the paper's values as defaults.

Promises: unknown keys are errors; every field states its unit; a value the mathematics cannot honour (a temperature
other than 1, a band that keeps nothing) is refused here, with the way out, and never bent silently. **P** marks a
value of the paper (arXiv 2607.07508), *gap* a decision of ours where the paper is silent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Settings(BaseModel):
    """Base: frozen, unknown keys refused, docstrings under the fields become their descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class ObjectiveName(StrEnum):
    DIS = "dis"
    """Direct double-sided importance sampling: the paper's."""
    PPO_CLIP = "ppo_clip"
    """Control: the pessimistic, one-sided clip of PPO. The clip-higher control is this with eps_high > eps_low."""
    REINFORCE = "reinforce"
    """Control: no ratio at all."""


class ObjectiveConfig(Settings):
    """How one action token's log-probability is weighted. Defaults: coding agent, keep ratios in (0.2, 4.0) (P)."""

    name: ObjectiveName = ObjectiveName.DIS
    """Key of `trainer.objective.OBJECTIVES` (P: dis)."""
    eps_low: float = Field(default=0.8, gt=0)
    """An epsilon, not a bound: ratios above 1 - eps_low are kept. 0.8 coding, 0.3 maths (P). For DIS at most 1."""
    eps_high: float = Field(default=3.0, gt=0)
    """An epsilon, not a bound: ratios below 1 + eps_high are kept. 3.0 coding, 5.0 maths (P)."""
    old_policy: Literal["rollout", "latest"] = "rollout"
    """Denominator of the ratio. `rollout`: the log-probability recorded when the token was sampled (P). `latest`: the
    trainer's weights at the start of the step (the GRPO control only)."""
    updates: int = Field(default=1, ge=1)
    """Actor optimizer steps per batch (P: 1)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name is ObjectiveName.DIS:
            if self.eps_low > 1:
                raise ValueError(
                    f"objective.eps_low {self.eps_low} keeps ratios above {1 - self.eps_low:g}: it is an epsilon, the "
                    "lower bound is 1 - eps_low and cannot be negative. For the band (0.2, 4.0) write 0.8 and 3.0"
                )
            if self.old_policy == "latest":
                raise ValueError(
                    "objective.old_policy 'latest' with DIS: DIS compares with the log-probabilities recorded at "
                    "sampling time. Use old_policy = 'rollout', or name = 'ppo_clip' for the GRPO control"
                )
        elif self.name is ObjectiveName.PPO_CLIP and self.eps_low >= 1:
            raise ValueError(f"objective.eps_low {self.eps_low}: the PPO clip needs 1 - eps_low > 0")
        return self


class AdvantageKind(StrEnum):
    GAE = "gae"
    """Skip-observation token GAE: the paper's."""
    STEP_MEAN = "step_mean"
    """Control: GAE over turns, a turn's value is the mean over its tokens."""
    STEP_LAST = "step_last"
    """Control: GAE over turns, a turn's value is that of its last token, and the value loss is on that token alone."""
    GROUP = "group"
    """Control (GRPO): (R - mean) / sd over the trajectories of one prompt; no critic."""
    RUNNING_PROMPT = "running_prompt"
    """Control: R - mean of the prompt's last `window` rewards; no critic."""
    RUNNING_GLOBAL = "running_global"
    """Control: R - mean of the last `window` rewards of all prompts; no critic."""
    BATCH_LEAVE_ONE_OUT = "batch_leave_one_out"
    """Control: R - mean of the batch's other rewards, times (gamma * lambda)^(l - t): what the paper's GAE gives where
    the critic says that mean everywhere; no critic."""

    @property
    def needs_critic(self) -> bool:
        return self in (AdvantageKind.GAE, AdvantageKind.STEP_MEAN, AdvantageKind.STEP_LAST)


class AdvantageConfig(Settings):
    kind: AdvantageKind = AdvantageKind.GAE
    """How rewards become advantages (P: gae, over action tokens)."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per action token (gap: 1)."""
    alpha: float = Field(default=1.5, gt=0)
    """lambda_policy = 1 - 1 / (alpha * l), l = action tokens of the trajectory (P value; gap: meaning of l)."""
    lambda_policy: float | None = Field(default=None, ge=0, le=1)
    """A constant in place of the adaptive lambda; None: adaptive."""
    lambda_critic: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the value targets (P: 1)."""
    whitening: Literal["off", "batch", "mean"] = "off"
    """Over the action tokens of the batch, after the returns: `batch` subtracts the mean and divides by the standard
    deviation, `mean` only subtracts (gap: off)."""
    window: int = Field(default=8, ge=1)
    """Rewards remembered by the running-mean controls: 8 per prompt, 128 global."""


class CriticConfig(Settings):
    updates: int = Field(default=2, ge=1)
    """K: optimizer steps on the same batch and the same fixed targets (P: 2)."""
    advantage_values: Literal["fresh", "pre_update"] = "fresh"
    """Values that enter the advantages: computed again after the K updates (P), or those before them."""
    freeze: Literal["moe_paper", "full_except_attention", "hybrid", "none"] = "full_except_attention"
    """What the critic keeps fixed during RL (trainer/freeze.py says what each is); the head always trains."""
    freeze_patterns: tuple[str, ...] = ()
    """More regular expressions over parameter names to freeze; one that matches nothing is an error."""


class OptimizerConfig(Settings):
    """AdamW, constant rate after a linear warm-up."""

    learning_rate: float = Field(gt=0)
    """Per optimizer step."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Gap."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """Gap."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment (gap)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Gap: 0."""
    max_grad_norm: float = Field(gt=0)
    """Clip of the global L2 norm; beyond it the gradient is scaled down (gap: policy 1, critic 10)."""
    warmup_steps: int = Field(default=10, ge=0)
    """Steps of the linear warm-up: training steps for the critic, actor updates for the policy (P: 10)."""


class PackingConfig(Settings):
    token_budget: int = Field(default=8192, ge=1)
    """Tokens of one micro-batch, padding included. A trajectory longer than this gets a micro-batch of its own."""
    logit_budget: int = Field(default=0, ge=0)
    """Logits (fp32 numbers) held at once when log-probabilities are computed: chunk = logit_budget / vocabulary. 0: on
    a GPU what takes about 1/32 of its memory, 2^24 on a CPU."""


class HealthConfig(Settings):
    """Alarm limits. Defaults belong to a policy rate of 1e-6: a preset with another rate states its own, and why."""

    rejected_share: float = Field(default=0.01, ge=0)
    """Share of action tokens outside the band (paper's runs: 0.0004-0.006)."""
    approx_kl: float = Field(default=1e-2, ge=0)
    """Nats per action token between rollout and trainer policy."""
    ess: float = Field(default=0.99, ge=0, le=1)
    """Least effective sample size of the token ratios, as a share of the tokens."""
    advantage_mean: float = Field(default=0.15, ge=0)
    """Reward units: floor of the limit on |mean A|; the limit is max(this, advantage_sigmas * sd(A) / sqrt(N))."""
    advantage_sigmas: float = Field(default=4.0, ge=0)
    """Standard errors of the mean that chance is granted."""
    advantage_steps: int = Field(default=3, ge=1)
    """Steps running before |mean A| raises its alarm."""
    critic_grad_norm: float = Field(default=30.0, gt=0)
    """Before clipping."""
    critic_grad_steps: int = Field(default=3, ge=1)
    """Steps running before the critic's gradient raises its alarm."""
    recomputed_log_ratio: float = Field(default=1e-6, ge=0)
    """Nats: a mean |log ratio| at or below this counts as "exactly 1 everywhere" (0 is too strict: the same weights
    differ by rounding between two packings)."""
    explained_variance: float | None = Field(default=0.0)
    """Least explained variance after `explained_variance_from`; None: no alarm (gap; the paper's rises to 0.2-0.6)."""
    explained_variance_from: int = Field(default=50, ge=0)
    """Training step from which explained variance is watched."""
    explained_variance_steps: int = Field(default=5, ge=1)
    """Steps running, those where it is undefined not counted, before the alarm."""
    dropped_tokens: float = Field(default=0.05, ge=0, le=1)
    """Share of the sampled tokens that may be in dropped trajectories (ours): long ones get stale first."""
    overtaken: float = Field(default=0.4, ge=0, le=1)
    """Share of the draws started so far that may still run while later ones are trained on (ours)."""
    length_bias: float = Field(default=0.3, gt=0)
    """Relative distance of a batch's mean length from that of what was dispatched (ours)."""
    length_bias_steps: int = Field(default=3, ge=1)
    """Steps running beyond it before the alarm."""


class StepConfig(Settings):
    """One optimizer step of SAO. `trainer.controls.control(name)` gives the controls as variants of it."""

    objective: ObjectiveConfig = ObjectiveConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    critic: CriticConfig = CriticConfig()
    policy_optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6, max_grad_norm=1.0)
    critic_optimizer: OptimizerConfig = OptimizerConfig(learning_rate=5e-6, max_grad_norm=10.0)
    packing: PackingConfig = PackingConfig()
    health: HealthConfig = HealthConfig()
    critic_only_steps: int = Field(default=10, ge=0)
    """First steps that train the critic alone (P, ambiguous: the paper's "10-step warmup" may mean this or the
    learning rate; we do both). 0 without a critic."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`bf16`: autocast of the model bodies, TF32 products in the head; weights, log-probabilities, values and losses
    stay fp32. `auto`: bf16 on a GPU that has it, fp32 on a CPU; a run keeps what it began with."""
    temperature: float = 1.0
    """Sampling temperature of the rollouts. Only 1: the trainer's log-probabilities are untransformed."""
    top_p: float = 1.0
    """Nucleus of the rollouts. Only 1."""

    @field_validator("temperature", "top_p")
    @classmethod
    def _untransformed(cls, value: float, info: Any) -> float:
        if value != 1.0:
            raise ValueError(
                f"{info.field_name} {value}: SAO compares the trainer's log-probabilities with the sampled ones, which "
                "holds only for the untransformed distribution. Sample training rollouts at temperature 1 and top-p 1"
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.advantage.kind.needs_critic and self.critic_only_steps:
            raise ValueError(
                f"critic_only_steps {self.critic_only_steps} with advantage.kind '{self.advantage.kind}', which has no "
                "critic: set critic_only_steps = 0"
            )
        return self
