"""The controls: SAO with one thing changed, and the critic-free advantages some of them need.

Promises: a control is a `StepConfig` made from the run's own, so data, rates and budgets stay equal; a reward never
enters the baseline it is compared with; the history of rewards is a plain value (JSON-able), returned, never kept here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.config import AdvantageConfig, AdvantageKind, StepConfig
from trainer.gae import decay_to_end

_GROUP: dict[str, Any] = {"advantage": {"kind": "group"}, "critic_only_steps": 0}
_CLIP_HIGHER: dict[str, Any] = {"name": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28}

CONTROLS: Mapping[str, Mapping[str, Any]] = {
    "sao": {},
    # 16 prompts x 8 instead of 128 x 1 is the loop's batch plan; everything else of GRPO is here.
    "grpo_clip_higher": {**_GROUP, "objective": {**_CLIP_HIGHER, "old_policy": "latest"}},
    "grpo_dis": _GROUP,
    "vapo_no_dis": {"objective": _CLIP_HIGHER},
    "ppo_one_sided": {"objective": {"name": "ppo_clip"}},  # SAO's own band, without the second side
    "running_mean_prompt": {"advantage": {"kind": "running_prompt", "window": 8}, "critic_only_steps": 0},
    "running_mean_global": {"advantage": {"kind": "running_global", "window": 128}, "critic_only_steps": 0},
    # What is the critic worth? The same lambda and batch, a mean in its place; `_flat`: lambda 1, the plain baseline.
    "batch_leave_one_out": {"advantage": {"kind": "batch_leave_one_out"}, "critic_only_steps": 0},
    "batch_leave_one_out_flat": {
        "advantage": {"kind": "batch_leave_one_out", "lambda_policy": 1.0},
        "critic_only_steps": 0,
    },
    "step_mean": {"advantage": {"kind": "step_mean"}},
    "step_last": {"advantage": {"kind": "step_last"}},
    "one_critic_update": {"critic": {"updates": 1}},
    "full_critic": {"critic": {"freeze": "none", "freeze_patterns": []}},
}
"""Name -> what differs from SAO (algorithm, section 5)."""


class ControlError(ValueError):
    """An unknown control, or a batch a control cannot use."""


def control(name: str, base: StepConfig) -> StepConfig:
    """`base` with the control's differences; validated again, so a contradiction is an error."""
    if name not in CONTROLS:
        raise ControlError(f"control '{name}' is unknown; choose one of {', '.join(CONTROLS)}")
    values = base.model_dump()
    for key, change in CONTROLS[name].items():
        values[key] = {**values[key], **change} if isinstance(change, Mapping) else change
    if values["objective"]["name"] == "ppo_clip" and values["objective"]["eps_low"] >= 1:
        values["objective"]["eps_low"] = 0.999
    return StepConfig.model_validate(values)


@dataclass(frozen=True)
class RewardHistory:
    """Last rewards, oldest first: of each prompt and of all. Only the running-mean controls use it."""

    by_prompt: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    overall: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {"by_prompt": {k: list(v) for k, v in self.by_prompt.items()}, "overall": list(self.overall)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RewardHistory:
        return cls({k: tuple(v) for k, v in saved["by_prompt"].items()}, tuple(saved["overall"]))

    def extended(self, rewards: Sequence[float], prompts: Sequence[str], window: int) -> RewardHistory:
        by_prompt = dict(self.by_prompt)
        for reward, prompt in zip(rewards, prompts, strict=True):
            by_prompt[prompt] = (*by_prompt.get(prompt, ()), reward)[-window:]
        return RewardHistory(by_prompt, (*self.overall, *rewards)[-window:])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def running_mean_advantages(
    rewards: Sequence[float], prompts: Sequence[str], history: RewardHistory, kind: AdvantageKind, window: int
) -> tuple[list[float], RewardHistory]:
    """R - mean of earlier rewards, and the history with this batch in it.

    Where a prompt (or the run) has no past: the mean over all of the past, then the mean of the batch's *other*
    rewards, then 0 (gap: the paper does not say)."""
    advantages = []
    for index, (reward, prompt) in enumerate(zip(rewards, prompts, strict=True)):
        others = [r for other, r in enumerate(rewards) if other != index]
        own = history.by_prompt.get(prompt, ()) if kind is AdvantageKind.RUNNING_PROMPT else ()
        past = own or history.overall or others
        advantages.append(reward - (_mean(past) if past else 0.0))
    return advantages, history.extended(rewards, prompts, window)


def group_advantages(rewards: Sequence[float], prompts: Sequence[str]) -> list[float]:
    """GRPO: (R - mean) / (sd + 1e-6) over the batch's trajectories of the same prompt; 0 where all are equal."""
    groups: dict[str, list[float]] = {}
    for reward, prompt in zip(rewards, prompts, strict=True):
        groups.setdefault(prompt, []).append(reward)
    lonely = sorted(prompt for prompt, group in groups.items() if len(group) < 2)
    if lonely:
        raise ControlError(
            f"group advantages: prompt {lonely[0]!r} and {len(lonely) - 1} more have one trajectory in this batch. "
            "Plan several draws per prompt (16 x 8), or use another advantage.kind"
        )
    advantages = []
    for reward, prompt in zip(rewards, prompts, strict=True):
        group = torch.tensor(groups[prompt], dtype=torch.float64)
        advantages.append(float((reward - group.mean()) / (group.std(correction=1) + 1e-6)))
    return advantages


def leave_one_out_advantages(rewards: Sequence[float]) -> list[float]:
    """R - mean of the batch's other rewards; 0 for a batch of one, which has nothing to compare with."""
    others = len(rewards) - 1
    total = math.fsum(rewards)
    return [reward - (total - reward) / others if others else 0.0 for reward in rewards]


def critic_free_advantages(
    rewards: Sequence[float],
    prompts: Sequence[str],
    lengths: Tensor,
    history: RewardHistory,
    config: AdvantageConfig,
) -> tuple[Tensor, RewardHistory]:
    """[N] float32: each trajectory's advantage on its action tokens, all alike but with `batch_leave_one_out`."""
    after = history
    if config.kind is AdvantageKind.BATCH_LEAVE_ONE_OUT:
        by_trajectory = leave_one_out_advantages(rewards)
    elif config.kind is AdvantageKind.GROUP:
        by_trajectory = group_advantages(rewards, prompts)
    else:
        by_trajectory, after = running_mean_advantages(rewards, prompts, history, config.kind, config.window)
    column = torch.tensor(by_trajectory, dtype=torch.float64, device=lengths.device)
    advantages = torch.repeat_interleave(column, lengths)
    if config.kind is AdvantageKind.BATCH_LEAVE_ONE_OUT:
        advantages = advantages * decay_to_end(lengths, config)
    return advantages.float(), after
