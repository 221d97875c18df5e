"""Puts the trainer of a run together: learner, trackers, paths, and what the weights' manifests say about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.tokenizer import load_tokenizer
from sao.assemble import weights_hash
from sao.config import Config
from sao.paths import UserError
from sao.train_files import CRITIC
from trainer.gpu_turn import GpuTurn
from trainer.loop import Trainer
from trainer.memory import refuse_what_cannot_fit, step_memory
from trainer.metrics import MetricsWriter, open_tracker
from trainer.paths import TrainerPaths
from trainer.setup import build_learner, choose_device, load_policy, model_hash


def critic_of(config: Config, run: Path) -> Path | None:
    """The critic that a run starts with; None: made from the policy. Raises UserError where it should be and is not."""
    train = config.train
    if not train.resolved_step().advantage.kind.needs_critic:
        return None
    if train.critic:
        return Path(train.critic)
    if not train.value_episodes:
        return None
    if not (run / CRITIC).is_dir():
        raise UserError(
            f"{run / CRITIC} is missing: the run's value pretraining has not come to its end. Use sao train."
        )
    return run / CRITIC


def turn_of(config: Config, run: Path) -> GpuTurn | None:
    """What trainer and servers take turns by, where they share a device."""
    return GpuTurn(run) if config.engine.kind == "vllm" and config.engine.mode == "colocated" else None


def make_trainer(config: Config, run: Path, model: Path, say: Callable[[str], None]) -> Trainer:
    """Raises UserError, TrainingSetupError, CriticError, CheckpointError, MetricsError."""
    train = config.train
    paths = TrainerPaths(run)
    tokenizer = load_tokenizer(model).fingerprint
    device = choose_device(train.device)
    say(f"memory: {refuse_what_cannot_fit(step_memory(model, train.resolved_step(), device), device)}")
    base = model_hash(model)
    policy = load_policy(model, device)
    learner = build_learner(
        policy,
        train.resolved_step(),
        critic_folder=critic_of(config, run),
        tokenizer=tokenizer,
        base_model=base,
        say=say,
    )
    settings = train.model_dump(mode="json")
    trackers = [open_tracker(name, run, run.name, settings) for name in train.trackers]
    return Trainer(
        paths,
        [run / "log"],
        learner,
        train,
        lineage=f"{run.name}-{weights_hash(model)[:8]}",
        max_attempts=config.rollout.max_attempts,
        about={"base_model": base, "tokenizer": tokenizer, "run": run.name},
        metrics=MetricsWriter(paths.metrics, trackers),
        turn=turn_of(config, run),
        say=say,
    )
