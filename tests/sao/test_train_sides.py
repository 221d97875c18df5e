"""Both sides of a training run together: killed at named points, held back, and accounted for to the last draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.log import TrajectoryLog
from data.trajectory import Status
from sao.export import export_final
from sao.train import account, finished, ledger_of
from trainer.ledger import DropReason
from trainer.metrics import read_metrics

from .training_sides import joined, make_policy, make_run, start


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def _both(run: Path, trainer: str = "", rollouts: str = "") -> tuple[int | None, int | None]:
    """Exit codes; a side whose partner died is killed too, as a power cut would."""
    sides = [start("trainer", run, trainer), start("rollouts", run, rollouts)]
    trained, played = joined(sides)
    return trained, played


def test_trains_to_the_end_of_the_plan(tmp_path: Path, policy: Path) -> None:
    run, config = make_run(tmp_path, policy)
    assert _both(run) == (0, 0)
    assert finished(run)
    assert account(config, run) == []
    ledger = ledger_of(run)
    assert ledger.fates[5].dropped is DropReason.INFRA_ERROR
    statuses = {t.identity.episode_id: t.outcome.status for t in TrajectoryLog(run / "log").read()}
    assert all(statuses[f.episode_id] is not Status.INFRA_ERROR for f in ledger.fates.values() if f.dropped is None)
    metrics = read_metrics(run / "metrics.jsonl")
    # On-policy at step 0: the engine's numbers are the trainer's own.
    assert metrics[0]["rejected_share"] == 0.0
    assert abs(metrics[0]["ratio_min"] - 1) < 1e-4
    assert abs(metrics[0]["ratio_max"] - 1) < 1e-4
    assert metrics[0]["staleness_max"] == 0
    # Admission control: no trajectory is older than the batches that may run ahead.
    assert all(line["staleness_max"] <= config.train.ahead for line in metrics)
    assert (export_final(run, policy) / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("trainer", "rollouts"),
    [
        ("", "rollout.after_fsync:6"),
        ("", "rollout.after_dispatch:9"),
        ("step.after_optimizer:2", ""),
        ("publish.before_rename:2", ""),
        ("checkpoint.before_rename:2", "rollout.after_fsync:7"),
        ("publish.middle:3", "rollout.after_dispatch:11"),
    ],
)
def test_killed_and_started_again(tmp_path: Path, policy: Path, trainer: str, rollouts: str) -> None:
    run, config = make_run(tmp_path, policy)
    codes = _both(run, trainer, rollouts)
    assert -9 in codes
    assert _both(run) == (0, 0)
    assert account(config, run) == []
    ids = [t.identity.episode_id for t in TrajectoryLog(run / "log").read()]
    assert len(ids) == len(set(ids))


def test_progress_tells_the_phase(tmp_path: Path, policy: Path) -> None:
    run, _ = make_run(tmp_path, policy, steps=2)
    assert _both(run) == (0, 0)
    progress = json.loads((run / "trainer_progress.json").read_text())
    assert (progress["phase"], progress["consumed"], progress["planned"]) == ("finished", 8, 8)
