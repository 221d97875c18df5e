"""SIGKILL at every named point of the trainer: the next start goes on, every draw has one fate, and the weights are
those of the undisturbed run, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from data.crashpoints import VARIABLE
from data.journal import Journal
from data.log import TrajectoryLog
from trainer.ledger import Ledger, audit, from_journal
from trainer.paths import TrainerPaths
from trainer.publish import WeightFolder

from .loop_runner import DRAWS, config, make_trainer

POINTS = [
    "step.after_optimizer:3",
    "step.after_journal:4",
    "checkpoint.middle:2",
    "checkpoint.before_rename:3",
    "checkpoint.after_rename:3",
    "publish.middle:1",
    "publish.middle:4",
    "publish.before_rename:3",
    "publish.after_rename:4",
    "publish.after_journal:6",
]


def _train(run: Path, crash_at: str, **changes: object) -> int:
    """In a fork (importing torch again would cost seconds); its exit code, -9 when killed."""

    def work() -> None:
        os.environ[VARIABLE] = crash_at
        trainer = make_trainer(run, config(**changes))
        trainer.run()
        trainer.close()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def _weights(run: Path) -> tuple[str, dict[str, torch.Tensor]]:
    folder = WeightFolder(run / "weights")
    newest = folder.newest()
    assert newest is not None
    with folder.fetch(newest) as path:
        return newest.lineage, load_file(path / "model.safetensors")


def _ledger(run: Path) -> Ledger:
    ledger = from_journal(Journal(TrainerPaths(run).journal).read())
    logged = {t.identity.episode_id: t.identity.draw for t in TrajectoryLog(run / "log").read()}
    assert audit(ledger, DRAWS, logged) == []
    return ledger


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed")
    assert _train(run, "") == 0
    return run


@pytest.mark.parametrize(
    ("point", "every"),
    [(point, 2) for point in POINTS]
    + [("publish.before_rename:3", 1), ("checkpoint.before_rename:4", 1), ("publish.after_rename:5", 100)],
)
def test_killed_at(point: str, every: int, tmp_path: Path, undisturbed: Path) -> None:
    assert _train(tmp_path, point, checkpoint_every=every) == -9
    assert _train(tmp_path, "", checkpoint_every=every) == 0
    ledger, (_, weights) = _ledger(tmp_path), _weights(tmp_path)
    expected = _ledger(undisturbed)
    assert {d: f.dropped for d, f in ledger.fates.items()} == {d: f.dropped for d, f in expected.fates.items()}
    for name, tensor in _weights(undisturbed)[1].items():
        assert torch.equal(weights[name], tensor), name
    numbers = [
        (entry.fields["version"], entry.fields["lineage"])
        for entry in Journal(TrainerPaths(tmp_path).journal).read()
        if entry.event == "published"
    ]
    assert len({number for number, _ in numbers}) == len(numbers), "a version number was used twice"


def test_killed_again_and_again(tmp_path: Path, undisturbed: Path) -> None:
    for point in (
        "publish.after_rename:3",
        "step.after_optimizer:2",
        "publish.before_rename:1",
        "step.after_journal:2",
    ):
        assert _train(tmp_path, point) == -9
    assert _train(tmp_path, "") == 0
    expected = _ledger(undisturbed)
    assert {d: f.dropped for d, f in _ledger(tmp_path).fates.items()} == {
        d: f.dropped for d, f in expected.fates.items()
    }
    lineage, weights = _weights(tmp_path)
    assert lineage.startswith("tiny+")
    for name, tensor in _weights(undisturbed)[1].items():
        assert torch.equal(weights[name], tensor), name
