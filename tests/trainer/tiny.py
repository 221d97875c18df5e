"""Tiny trajectories and settings for the trainer's tests (models: tiny_models)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from data.trajectory import ExitReason, Identity, Outcome, Sampling, Status, Trajectory, TrajectoryBuilder
from trainer.config import StepConfig

torch.set_num_threads(1)
VOCAB = 24


def build(
    layout: Sequence[tuple[str, int]],
    *,
    reward: float | None = 1.0,
    seed: int = 0,
    task: str | None = None,
    versions: Sequence[int] = (0,),
    temperature: float = 1.0,
    status: Status | None = None,
    logprob: float = -3.0,
) -> Trajectory:
    """`layout`: ("p" | "a" | "o", length) spans; random ids; the versions go round over the actions."""
    rng = np.random.default_rng(seed)
    builder: TrajectoryBuilder | None = None
    action = 0
    for kind, length in layout:
        ids = rng.integers(0, VOCAB, length).tolist()
        if kind == "p":
            builder = TrajectoryBuilder(ids)
        elif kind == "a":
            assert builder is not None
            version = versions[action % len(versions)]
            builder.append_action(ids, [logprob] * length, [version] * length)
            action += 1
        else:
            assert builder is not None
            builder.append_observation(ids)
    status = status or (Status.CUT if reward is None else Status.GRADED)
    reason = {
        Status.CUT: ExitReason.SYSTEM_CUT,
        Status.GRADED: ExitReason.SUBMITTED,
        Status.INFRA_ERROR: ExitReason.SANDBOX_ERROR,
    }[status]
    assert builder is not None
    identity = Identity(f"e{seed}", task or f"t{seed}", seed, seed, "tok", Sampling(temperature=temperature))
    return builder.finish(Outcome(status, reason, reward), identity)


def with_logprobs(trajectory: Trajectory, logprobs: Sequence[float]) -> Trajectory:
    column = trajectory.logprobs.copy()
    column[trajectory.action_mask] = np.minimum(np.asarray(logprobs, dtype=np.float32), 0)
    return Trajectory(
        trajectory.tokens, column, trajectory.versions, trajectory.spans, trajectory.outcome, trajectory.identity
    )


def mixed_batch() -> list[Trajectory]:
    """Ragged: one turn, many turns, trailing observation, a system cut, one without any action."""
    return [
        build([("p", 3), ("a", 4)], reward=1.0, seed=1),
        build([("p", 5), ("a", 2), ("o", 6), ("a", 3), ("o", 2)], reward=0.0, seed=2, versions=(0, 1)),
        build([("p", 2), ("a", 1), ("o", 1), ("a", 1), ("o", 9), ("a", 5)], reward=1.0, seed=3),
        build([("p", 4), ("a", 3), ("o", 4)], reward=None, seed=4),
        build([("p", 6)], reward=0.0, seed=5),
        build([("p", 1), ("a", 7)], reward=0.0, seed=6),
    ]


def step_config(**changes: object) -> StepConfig:
    """No warm-ups, rates that move a tiny model."""
    base = {
        "critic_only_steps": 0,
        "policy_optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0, "warmup_steps": 0},
        "critic_optimizer": {"learning_rate": 1e-2, "max_grad_norm": 10.0, "warmup_steps": 0},
    }
    return StepConfig.model_validate({**base, **changes})
