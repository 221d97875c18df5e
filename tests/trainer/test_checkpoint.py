from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.checkpoint import STATE, TENSORS, CheckpointError, Checkpoints
from trainer.controls import RewardHistory
from trainer.critic import Critic
from trainer.freeze import freeze_for_rl
from trainer.health import HealthState
from trainer.ledger import DropReason, Fate, Ledger
from trainer.replay import weights_digest
from trainer.state import TrainerState, VersionAxis
from trainer.update import Learner, sao_step

from .tiny import mixed_batch, step_config
from .tiny_models import on_policy, tiny_policy


def learner(seed: int = 0) -> Learner:
    config = step_config()
    policy = tiny_policy(seed=seed, tied=True)
    critic = Critic.from_policy(policy)
    freeze_for_rl(critic, config.critic)
    return Learner.build(policy, critic.eval(), config)


def state() -> TrainerState:
    ledger = Ledger()
    ledger.enter(0, Fate("e0", 0))
    ledger.enter(3, Fate("e3", 1, DropReason.STALE))
    return TrainerState(
        lineage="run+1",
        step=2,
        updates=2,
        versions=VersionAxis(((0, 0), (7, 5))),
        history=RewardHistory({"t": (1.0, 0.0)}, (1.0,)),
        health=HealthState({"effective_sample_size": 2}),
        ledger=ledger,
        positions={"log": 9},
        attempts={4: 1},
    )


def test_goes_on_bit_for_bit(tmp_path: Path) -> None:
    original = learner()
    batch = on_policy(original.policy, mixed_batch(), noise=0.1)
    for step in range(2):
        sao_step(original, batch, step=step, version=step)
    store = Checkpoints(tmp_path)
    saved = store.save(original, state(), "hash")
    restored = learner(seed=5)
    loaded = Checkpoints.load(saved, restored, "hash")
    assert loaded == state()
    for one in (original, restored):
        for step in range(2, 4):
            sao_step(one, batch, step=step, version=step)
    assert weights_digest(restored.policy) == weights_digest(original.policy)
    assert original.critic is not None
    assert restored.critic is not None
    assert weights_digest(restored.critic) == weights_digest(original.critic)


def test_random_state_is_restored(tmp_path: Path) -> None:
    store, one = Checkpoints(tmp_path), learner()
    saved = store.save(one, state(), "hash")
    expected = torch.rand(3)
    Checkpoints.load(saved, one, "hash")
    assert torch.equal(torch.rand(3), expected)


def test_other_settings_and_other_shapes_are_refused(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path).save(learner(), state(), "hash")
    with pytest.raises(CheckpointError, match="settings"):
        Checkpoints.load(saved, learner(), "other")
    config = step_config()
    policy = tiny_policy(layers=1, tied=True)
    critic = Critic.from_policy(policy)
    freeze_for_rl(critic, config.critic)
    with pytest.raises(CheckpointError, match="no place for"):
        Checkpoints.load(saved, Learner.build(policy, critic, config), "hash")


def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path) -> None:
    store, one = Checkpoints(tmp_path, keep=3), learner()
    for step in (1, 2, 3):
        store.save(one, TrainerState("run", step=step), "hash")
    (store.path(3) / STATE).write_text("{}")
    (store.path(2) / TENSORS).unlink()
    found = store.newest()
    assert found is not None
    assert found.path == store.path(1)
    assert len(found.damaged) == 2
    (store.path(1) / STATE).unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        store.newest()


def test_keeps_the_last_and_replaces_its_own_step(tmp_path: Path) -> None:
    store, one = Checkpoints(tmp_path, keep=2), learner()
    for step in (1, 2, 3, 3):
        store.save(one, TrainerState("run", step=step), "hash")
    assert store.steps() == [2, 3]


def test_no_pickle_anywhere(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path).save(learner(), state(), "hash")
    assert {path.suffix for path in saved.iterdir()} == {".safetensors", ".json"}


class TestVersionAxis:
    def test_without_rollbacks_numbers_are_updates(self) -> None:
        axis = VersionAxis()
        assert (axis.updates(7), axis.number(7)) == (7, 7)

    def test_after_a_rollback_the_same_weights_have_a_higher_number(self) -> None:
        axis = VersionAxis().renumbered(updates=10, first=20)  # versions 11 to 19 were taken back
        assert (axis.number(10), axis.updates(20), axis.updates(23)) == (20, 10, 13)
        assert axis.updates(15) == 15, "tokens of a version that was taken back keep their distance"

    def test_segments_of_lineages_taken_back_stay_known(self) -> None:
        axis = VersionAxis().including([(0, 0), (20, 10)]).renumbered(updates=10, first=26)
        assert (axis.updates(22), axis.updates(26)) == (12, 10)
