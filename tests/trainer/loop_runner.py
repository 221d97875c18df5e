"""A whole trainer on a prepared log, for tests: `python -m tests.trainer.loop_runner RUN [key=value …]`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from data.log import TrajectoryLog
from data.trajectory import Status, Trajectory
from trainer.loop import Trainer
from trainer.paths import TrainerPaths
from trainer.setup import build_learner
from trainer.train_config import TrainConfig

from .tiny import build, step_config
from .tiny_models import on_policy, tiny_policy

DRAWS = 24


def trajectories(policy: torch.nn.Module) -> list[Trajectory]:
    """Every draw once, some with a failed attempt before, one that fails for good (3 attempts), one without a token.
    Versions are 0 and 1, so that draw 18 and the last ones are stale when their turn comes."""
    made: list[Trajectory] = []
    for draw in range(DRAWS):
        layout = [("p", 3), ("a", 2 + draw % 4), ("o", 2), ("a", 3)] if draw != 7 else [("p", 3)]
        for attempt in range(3):
            broken = draw == 5 or (draw % 6 == 2 and attempt == 0)
            one = build(
                layout,
                seed=draw,
                reward=None if broken else float(draw % 3 == 0),
                status=Status.INFRA_ERROR if broken else Status.GRADED,
                versions=(int(draw >= 12 and draw != 18),),
            )
            made.append(replace(one, identity=replace(one.identity, episode_id=f"tiny-{draw:06d}-{attempt}")))
            if not broken:
                break
    return on_policy(policy, made, noise=0.05)


def config(**changes: object) -> TrainConfig:
    base = {
        "steps": 6,
        "batch": 4,
        "ahead": 2,
        "max_staleness": 3,
        "checkpoint_every": 2,
        "step": step_config().model_dump(),
    }
    return TrainConfig.model_validate({**base, **changes})


def make_trainer(run: Path, settings: TrainConfig) -> Trainer:
    torch.set_num_threads(1)
    policy = tiny_policy(tied=True)
    log = run / "log"
    if not log.exists():
        with TrajectoryLog(log) as writer:
            for trajectory in trajectories(policy):
                writer.append(trajectory)
    learner = build_learner(policy, settings.resolved_step())
    return Trainer(TrainerPaths(run), [log], learner, settings, lineage="tiny", max_attempts=3)


def main() -> None:
    run = Path(sys.argv[1])
    changes = {key: int(value) for key, _, value in (argument.partition("=") for argument in sys.argv[2:])}
    trainer = make_trainer(run, config(**changes))
    trainer.run()
    trainer.close()


if __name__ == "__main__":
    main()
