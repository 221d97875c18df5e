from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from data.journal import Journal
from data.log import TrajectoryLog
from trainer.paths import TrainerPaths
from trainer.publish import WEIGHTS, WeightFolder
from trainer.replay import ReplayError, recorded_steps, replay_exact, replay_offpolicy, weights_digest
from trainer.setup import build_learner
from trainer.update import Learner

from .loop_runner import config, make_trainer
from .tiny import step_config
from .tiny_models import tiny_policy

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(folder, config())
    assert trainer.run()
    trainer.close()
    return folder


def _fresh() -> Learner:
    return build_learner(tiny_policy(tied=True), step_config())


def _published(run: Path) -> str:
    weights = WeightFolder(TrainerPaths(run).weights)
    newest = weights.newest()
    assert newest is not None
    with weights.fetch(newest) as folder:
        return weights_digest(load_file(folder / WEIGHTS))


def test_exact_replay_is_bit_equal(run: Path) -> None:
    recorded = recorded_steps(Journal(TrainerPaths(run).journal).read())
    by_id = {t.identity.episode_id: t for t in TrajectoryLog(run / "log").read()}
    report = replay_exact(recorded, by_id, _fresh(), config().settings_hash())
    assert report.steps == len(recorded) > 3
    assert report.digest == _published(run)


def test_exact_replay_notices_one_changed_logprob(run: Path) -> None:
    from .tiny import with_logprobs

    recorded = recorded_steps(Journal(TrainerPaths(run).journal).read())
    by_id = {t.identity.episode_id: t for t in TrajectoryLog(run / "log").read()}
    victim = recorded[0].episodes[0]
    by_id[victim] = with_logprobs(by_id[victim], by_id[victim].logprobs[by_id[victim].action_mask] - 0.01)
    assert replay_exact(recorded, by_id, _fresh(), config().settings_hash()).digest != _published(run)


def test_exact_replay_refuses_what_it_cannot_make_again(run: Path) -> None:
    recorded = recorded_steps(Journal(TrainerPaths(run).journal).read())
    by_id = {t.identity.episode_id: t for t in TrajectoryLog(run / "log").read()}
    with pytest.raises(ReplayError, match="settings"):
        replay_exact(recorded, by_id, _fresh(), "other")
    del by_id[recorded[1].episodes[2]]
    with pytest.raises(ReplayError, match=recorded[1].episodes[2]):
        replay_exact(recorded, by_id, _fresh(), config().settings_hash())


def test_offpolicy_replay_reports_the_rejected_share_and_stops_above_the_limit(run: Path) -> None:
    trajectories = list(TrajectoryLog(run / "log").read())
    report = replay_offpolicy(trajectories, _fresh(), 4, limit=1.0)
    assert report.steps == len(report.rejected) == 5  # 22 usable draws
    fast = step_config(
        policy_optimizer={"learning_rate": 0.5, "max_grad_norm": 1.0, "warmup_steps": 0},
        objective={"eps_low": 0.05, "eps_high": 0.05},
    )
    with pytest.raises(ReplayError, match="limit"):
        replay_offpolicy(trajectories, build_learner(tiny_policy(tied=True), fast), 4, limit=0.2)


def test_digest_tells_one_bit() -> None:
    tensors = {"a": torch.zeros(3), "b": torch.ones(2)}
    before = weights_digest(tensors)
    tensors["a"][1] = 1e-45
    assert weights_digest(tensors) != before
