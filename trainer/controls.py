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

_CLIP_HIGHER: dict[str, Any] = {"name": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28}

CONTROLS: Mapping[str, Mapping[str, Any]] = {
    "sao": {},
    "clip_higher": {"objective": _CLIP_HIGHER},
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

_NO_GROUPS = (
    "GRPO compares 8 draws of one prompt in one batch (16 x 8). A run draws every prompt once before any twice, and "
    "batches are made in the order in which episodes end, so no group would be whole"
)
REFUSED: Mapping[str, str] = {
    "grpo": _NO_GROUPS,
    "grpo_clip_higher": _NO_GROUPS,
    "grpo_dis": _NO_GROUPS,
    "vapo_no_dis": "VAPO has another lambda (alpha 0.05), one critic update, nothing frozen, several draws a prompt "
    "and a loss on the tokens of solved draws. SAO with its clip alone (0.2 / 0.28) is `clip_higher`",
}
"""Controls of the paper that this trainer cannot run as what their names say, and why."""


class ControlError(ValueError):
    """An unknown control, or a batch a control cannot use."""


def control(name: str, base: StepConfig) -> StepConfig:
    """`base` with the control's differences; validated again, so a contradiction is an error."""
    if name in REFUSED:
        raise ControlError(f"control '{name}' cannot be run: {REFUSED[name]}. There are: {', '.join(CONTROLS)}")
    if name not in CONTROLS:
        raise ControlError(f"control '{name}' is unknown; choose one of {', '.join(CONTROLS)}")
    values = base.model_dump()
    for key, change in CONTROLS[name].items():
        values[key] = {**values[key], **change} if isinstance(change, Mapping) else change
    if values["objective"]["name"] == "ppo_clip" and values["objective"]["eps_low"] >= 1:
        values["objective"]["eps_low"] = 0.999
    made = StepConfig.model_validate(values)
    if made.advantage.kind is AdvantageKind.GROUP:
        raise ControlError(f"advantage.kind 'group' cannot be run: {_NO_GROUPS}. Choose another kind")
    return made


def check_plan(kind: AdvantageKind, draws: int, prompts: int) -> None:
    """Raises ControlError where most draws' baseline could not be what the control is called."""
    if kind is AdvantageKind.RUNNING_PROMPT and draws < 2 * prompts:
        past = max(draws - prompts, 0)
        raise ControlError(
            f"a running mean per prompt over {prompts} prompts and {draws} draws: {past} draws would come to a prompt "
            "that has a past, the others would have the mean of all rewards. Use at most "
            f"{max(draws // 2, 1)} tasks (a task file of your own), more steps, or running_mean_global"
        )


@dataclass(frozen=True)
class RewardHistory:
    """Last rewards, oldest first: of each prompt and of all; beside them the count and the sum of all there ever were.
    Only the running-mean controls use it."""

    by_prompt: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    overall: tuple[float, ...] = ()
    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        """Over all of the past."""
        return self.total / self.count if self.count else None

    def to_dict(self) -> dict[str, object]:
        prompts = {prompt: list(rewards) for prompt, rewards in self.by_prompt.items()}
        return {"by_prompt": prompts, "overall": list(self.overall), "count": self.count, "total": self.total}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RewardHistory:
        overall = tuple(saved["overall"])
        count, total = saved.get("count", len(overall)), saved.get("total", sum(overall))
        return cls({k: tuple(v) for k, v in saved["by_prompt"].items()}, overall, int(count), float(total))

    def extended(self, rewards: Sequence[float], prompts: Sequence[str], window: int) -> RewardHistory:
        by_prompt = dict(self.by_prompt)
        for reward, prompt in zip(rewards, prompts, strict=True):
            by_prompt[prompt] = (*by_prompt.get(prompt, ()), reward)[-window:]
        overall = (*self.overall, *rewards)[-window:]
        return RewardHistory(by_prompt, overall, self.count + len(rewards), self.total + sum(rewards))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def running_mean_advantages(
    rewards: Sequence[float], prompts: Sequence[str], history: RewardHistory, kind: AdvantageKind, window: int
) -> tuple[list[float], RewardHistory]:
    """R - mean of earlier rewards, and the history with this batch in it.

    Where a prompt has no past: the mean over all of the run's past, however long ago. Where there is none: the mean of
    the batch's *other* rewards, then 0 (gap: the paper does not say)."""
    advantages = []
    for index, (reward, prompt) in enumerate(zip(rewards, prompts, strict=True)):
        others = [r for other, r in enumerate(rewards) if other != index]
        last = history.by_prompt.get(prompt, ()) if kind is AdvantageKind.RUNNING_PROMPT else history.overall
        if last:
            baseline = _mean(last)
        elif history.mean is not None:
            baseline = history.mean
        else:
            baseline = _mean(others) if others else 0.0
        advantages.append(reward - baseline)
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
