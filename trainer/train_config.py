"""Settings of the stages around the step (trainer.config): a training run, and value pretraining before it.

Imports no torch, so that configurations are read quickly.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import Field, model_validator

from trainer.config import OptimizerConfig, Settings, StepConfig


class LimitsConfig(Settings):
    """What a run admits to training, and how much it may set aside. None of it is part of a checkpoint's settings: it
    can be changed to go on with a run that stopped."""

    max_tokens: int = Field(0, ge=0)
    """Tokens (prompt, observations and actions) of the longest trajectory; 0: as many as the model has positions."""
    max_reward: float = Field(100.0, gt=0)
    """Largest size of a reward, either sign."""
    unfit_share: float = Field(0.1, ge=0, le=1)
    """Share of the draws that came in (at least one batch) that may be too long, out of bounds or set aside by a failed
    step; above it the run stops."""
    set_aside: int = Field(8, ge=0)
    """How many steps of a run may fail on their batch; the next one stops the run."""


class TrainConfig(Settings):
    steps: int = Field(100, ge=1)
    """Training steps, critic-only ones included. The plan is steps * batch draws, each trained on or dropped once."""
    batch: int = Field(128, ge=1)
    """Trajectories of one optimizer step (P: 128 x 1)."""
    control: str = "sao"
    """sao, or one of its controls (trainer/controls.py): the same run with one thing changed."""
    critic: str = ""
    """Folder made by `sao pretrain-value`; empty: see value_episodes."""
    value_episodes: int = Field(0, ge=0)
    """Episodes of the frozen policy that are played first to pretrain the critic (section `value`), where no `critic`
    is given; 0: the critic starts as the policy's own body under a zero head."""
    max_staleness: int = Field(4, ge=0)
    """Policy updates between the oldest token and the step that would train on it; above it a trajectory is dropped."""
    ahead: int = Field(2, ge=1)
    """Batches of draws that may be started before the trainer has dealt with the first of them: admission control.
    1 is nearly synchronous; above max_staleness, drops are certain."""
    publish_every: int = Field(1, ge=1)
    """Policy updates between two published versions."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between two checkpoints; what was trained since the last is trained again after a crash."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints that stay."""
    keep_weights: int = Field(3, ge=1)
    """Newest published versions that stay; one in use stays besides."""
    weights_dtype: Literal["fp32", "bf16"] = "fp32"
    """Stored precision of published versions. bf16 halves them; engine and trainer then differ by its rounding."""
    threads: int = Field(1, ge=1)
    """CPU threads of the trainer. Exact replay needs the same number."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU where there is one."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Besides metrics.jsonl, which is always written. Each must be installed."""
    heldout_every: int = Field(0, ge=0)
    """Steps between two scores on held-out tasks while training; 0: only before and after."""
    heldout_tasks: int = Field(64, ge=1)
    """Tasks of one such score."""
    restarts: int = Field(3, ge=0)
    """How often a side that died is started again by the same command."""
    limits: LimitsConfig = LimitsConfig()
    step: StepConfig = StepConfig()

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.ahead > self.max_staleness + 1:
            raise ValueError(
                f"ahead {self.ahead} lets rollouts start draws that are {self.ahead - 1} updates old when their turn "
                f"comes, max_staleness is {self.max_staleness}: most would be dropped. Lower ahead"
            )
        return self

    @property
    def planned(self) -> int:
        return self.steps * self.batch

    def resolved_step(self) -> StepConfig:
        """The step's settings with the control's difference. Raises ControlError for an unknown one."""
        from trainer.controls import control

        return control(self.control, self.step)

    def settings_hash(self) -> str:
        """Of what decides the mathematics: a checkpoint is only loaded under the same one. Limits of alarms, how often
        things are kept and where they are reported may change, and a run may be made longer."""
        step = self.step.model_dump(mode="json", exclude={"health"})
        own = {"batch": self.batch, "max_staleness": self.max_staleness, "critic": self.critic, "step": step}
        own["control"] = self.control
        own["value_episodes"] = self.value_episodes
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]


class ValueConfig(Settings):
    """Settings of value pretraining (the paper calls the stage essential; the recipe is ours)."""

    steps: int = Field(50, ge=1)
    """Optimizer steps."""
    batch: int = Field(128, ge=2)
    """Trajectories of one step."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=5e-6, max_grad_norm=10.0)
    """Its own; nothing of it is handed over."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """Share of the tasks that are only measured on."""
    evaluate_every: int = Field(10, ge=1)
    """Steps between two measurements; the weights of the best one are kept."""
    gate: float = Field(0.0, ge=-1, lt=1)
    """Least explained variance on the held-out trajectories; below it nothing is handed over."""
    token_budget: int = Field(8192, ge=1)
    """Tokens of one micro-batch."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """As train.step.precision."""
    seed: int = 0
    """Of the split and of the order."""
