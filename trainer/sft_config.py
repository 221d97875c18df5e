"""Settings of supervised fine-tuning, and its learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config import OptimizerConfig, Settings
from trainer.optim import warmed_rate


class SftConfig(Settings):
    model: Path
    """Folder of the base model: config.json, safetensors, fast tokenizer with a chat template."""
    out: Path
    """Run folder. An unfinished run there goes on from its last checkpoint."""
    tasks: Literal["micro-swe"] = "micro-swe"
    """Task set that demonstrations are written for: needs a known bug place and candidate fixes. Unused with chats."""
    chats: tuple[str, ...] = ()
    """Conversations to train on instead: known sets (data/chats.py), or files with a column messages."""
    chat_split: str = "train"
    """Split of the known sets among them."""
    chat_limit: int = Field(100_000, ge=2)
    """Conversations read of each set; all of them are kept in memory."""
    max_length: int = Field(2048, ge=16)
    """Tokens of a conversation; what is longer is cut there, and counted."""
    train_tasks: int = Field(32768, ge=1)
    """Tasks of the train split that demonstrations are drawn from."""
    preset: str = "demo"
    """Agent preset: prompt, tools, limits. Use the same for rollouts."""
    drill_share: float = Field(0.4, ge=0, le=1)
    """Share of copying drills (trainer/drills.py) among the demonstrations."""
    drill_lists: bool = True
    """Drills may also change the order of an argument list."""
    steps: int = Field(6000, ge=1)
    batch: int = Field(8, ge=1)
    """Demonstrations or conversations of one optimizer step."""
    token_budget: int = Field(16384, ge=1)
    """Tokens of one forward and backward, padding included: a larger batch is done in parts, under one denominator."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=1.5e-3, max_grad_norm=1.0, warmup_steps=100, weight_decay=0.01
    )
    decay_share: float = Field(0.4, ge=0, le=1)
    """Last share of the steps, over which the rate falls linearly to a twentieth."""
    seed: int = Field(0, ge=0)
    threads: int = Field(1, ge=1)
    """CPU threads."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic, as in training (trainer/precision.py): bf16 on a GPU that has it, fp32 on a CPU."""
    checkpoint_every: int = Field(500, ge=1)
    """Steps between two checkpoints and two held-out measurements."""
    log_every: int = Field(20, ge=1)
    """Steps averaged in one line of metrics.jsonl."""
    measure_tasks: int = Field(64, ge=1)
    """Tasks (or conversations, at most 5 % of them) of each held-out measurement."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model.resolve() == self.out.resolve():
            raise ValueError(f"out {self.out} is the base model's folder: name another one")
        if len(set(self.chats)) != len(self.chats):
            raise ValueError("chats: a set is named twice")
        return self


def rate_at(config: SftConfig, step: int) -> float:
    """Rate of the update after `step` earlier ones: warm-up, constant, linear to 5 %."""
    left = (config.steps - step) / max(config.steps * config.decay_share, 1e-9)
    return warmed_rate(config.optimizer, step) * max(0.05, min(1.0, left))
