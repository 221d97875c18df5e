"""Both sides of a training run in forked processes, with instant environments in place of sandboxes: everything else
(engine, log, journal, weights, gate, trainer) is real. Forked, because importing torch again would cost seconds."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.process
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agent.demo_tokenizer import build_tokenizer
from data import micro_swe
from data.crashpoints import VARIABLE
from data.task import Task
from envs.environment import Environment, Grade, Observation, ToolCall
from envs.sandbox.contract import StartFailed
from envs.tools.toolset import ToolSet
from sao import train_rollouts
from sao.config import Config
from sao.rundir import open_run
from sao.train import for_training
from sao.train_worker import run_side

PRESET = """
name = "instant"
system = "You fix bugs."
user = "{problem}"
tools = ["view", "str_replace", "submit"]

[limits]
max_turns = 2
max_tokens = 10
max_context = 512
command_timeout_s = 5
episode_timeout_s = 30
observation_chars = 200
answer_reserve = 20
"""


class InstantEnvironment(Environment):
    """Rewards by task; every seventh task's first sandbox fails to start, task 5's always do."""

    failed: set[str] = set()  # noqa: RUF012 - shared by all environments of the process

    def __init__(self, task: Task) -> None:
        self.task, self.number = task, int(task.task_id.rsplit("/", 1)[1])
        self.tools = ToolSet(("view", "str_replace", "submit")).schemas

    async def reset(self) -> str:
        first = self.task.task_id not in self.failed
        self.failed.add(self.task.task_id)
        if self.number == 5 or (self.number % 7 == 3 and first):
            raise StartFailed("no sandbox today")
        return f"fix {self.number}"

    async def step(self, call: ToolCall) -> Observation:
        return Observation("done")

    async def grade(self) -> Grade:
        return Grade(float(hashlib.sha256(self.task.task_id.encode()).digest()[0] % 2))

    async def close(self) -> None:
        pass


class NoBackend:
    name = "instant"

    async def reap(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass


def make_policy(folder: Path) -> Path:
    """A random model with the demo's kind of tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    rows = [str(value) for index in range(8) for value in micro_swe.task("train", index).row.values()]
    tokenizer = build_tokenizer(rows, 4096)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_run(folder: Path, policy: Path, engine: Mapping[str, Any] = {}, **train: Any) -> tuple[Path, Config]:
    """A run folder as `sao train` makes it."""
    preset = folder / "instant.toml"
    preset.write_text(PRESET)
    step = {
        "critic_only_steps": 1,
        "policy_optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0, "warmup_steps": 0},
        "critic_optimizer": {"learning_rate": 1e-3, "max_grad_norm": 10.0, "warmup_steps": 0},
    }
    base = {"steps": 5, "batch": 4, "ahead": 2, "checkpoint_every": 2, "step": step}
    config = for_training(
        Config.model_validate(
            {
                "model": {"path": str(policy), "threads": 1},
                "engine": dict(engine),
                "agent": {"preset": str(preset)},
                "rollout": {"concurrency": 4, "seal_every": 8},
                "train": {**base, **train},
            }
        )
    )
    run = open_run(config, str(folder / "run"))
    run.close()
    return run.path, config


def start(
    side: str, run: Path, crash_at: str = "", prepare: Callable[[], None] = lambda: None
) -> multiprocessing.process.BaseProcess:
    """A side in a fork, `prepare` called in it first; it stops when it is at its end (nothing ends it otherwise)."""

    def work() -> None:
        os.environ[VARIABLE] = crash_at
        torch.set_num_threads(1)
        train_rollouts.environments_of = lambda *_: InstantEnvironment  # type: ignore[assignment]
        train_rollouts.backend_of = _no_backend  # type: ignore[assignment]
        train_rollouts.FleetSettings = _hasty  # type: ignore[assignment,misc]
        prepare()
        run_side(side, run, threading.Event())

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


async def _no_backend(*_: object) -> NoBackend:
    return NoBackend()


def _hasty(**settings: Any) -> Any:
    from agent.fleet import FleetSettings

    return FleetSettings(**settings, backoff_s=0.01, storm_limit=100)


def joined(sides: Sequence[multiprocessing.process.BaseProcess]) -> list[int | None]:
    """Exit codes of processes that `start` made, when all have ended; one whose partner died is killed too."""
    while all(side.exitcode is None for side in sides):
        for side in sides:
            side.join(0.1)
    first = [side.exitcode for side in sides]
    for side, code in zip(sides, first, strict=True):
        if code is None:
            if 0 not in first:
                side.kill()
            side.join(60)
    return [side.exitcode for side in sides]
