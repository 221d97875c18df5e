from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data.trajectory import ExitReason, Identity, Outcome, Status, Trajectory, TrajectoryBuilder
from trainer.critic import Critic, load_critic
from trainer.optim import TrainingSetupError
from trainer.setup import build_learner
from trainer.train_config import ValueConfig
from trainer.value_pretrain import (
    GateError,
    ValueDataError,
    _order,
    hand_over,
    measure,
    pretrain_value,
    split,
    usable,
)

from .tiny import step_config
from .tiny_models import tiny_policy

pytestmark = pytest.mark.numeric


def episode(index: int, version: int = 0, tell: bool = True) -> Trajectory:
    """Passed when its prompt ends in token 5; where `tell` is off, rewards have nothing to do with tokens."""
    passed = index % 2 == 0
    builder = TrajectoryBuilder([1, 2, 5 if passed == tell or not tell else 6, 3] if tell else [1, 2, 5, 3])
    builder.append_action([7 + index % 3, 8], [-1.0, -1.0], [version] * 2)
    return builder.finish(
        Outcome(Status.GRADED, ExitReason.SUBMITTED, float(passed)),
        Identity(f"e{index}", f"t{index}", index, index, "tok", lineage="frozen"),
    )


CONFIG = ValueConfig.model_validate(
    {
        "steps": 40,
        "batch": 16,
        "evaluate_every": 10,
        "optimizer": {"learning_rate": 1e-2, "max_grad_norm": 10.0, "warmup_steps": 0},
    }
)


def test_learns_what_tokens_tell_and_hands_over_weights_only(tmp_path: Path) -> None:
    data = [episode(i) for i in range(60)]
    policy = tiny_policy()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    critic = Critic.from_policy(policy)
    result = pretrain_value(critic, data, CONFIG)
    assert result.measured[0].explained_variance == pytest.approx(0.0, abs=1e-6)  # zero head
    assert result.best.explained_variance > 0.9
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    folder = hand_over(critic, result, tmp_path / "critic", tokenizer="tok", base_model="base", config=CONFIG)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "critic.safetensors", "manifest.json"]
    about = json.loads((folder / "manifest.json").read_text())["provenance"]
    assert (about["tokenizer"], about["base_model"], about["data"]) == ("tok", "base", result.data)
    _, held = split(usable(data), CONFIG.held_out, CONFIG.seed)
    assert measure(load_critic(folder), held, 4096)[0] == pytest.approx(result.best.explained_variance, abs=1e-6)
    build_learner(policy, step_config(), critic_folder=folder, tokenizer="tok", base_model="base")
    with pytest.raises(TrainingSetupError, match="base model"):
        build_learner(policy, step_config(), critic_folder=folder, tokenizer="tok", base_model="another")


def test_gate_hands_nothing_over_when_nothing_is_learnt() -> None:
    config = CONFIG.model_copy(update={"gate": 0.3, "steps": 10})
    with pytest.raises(GateError, match="gate"):
        pretrain_value(Critic.from_policy(tiny_policy()), [episode(i, tell=False) for i in range(60)], config)


def test_refuses_a_moving_policy_and_equal_rewards() -> None:
    with pytest.raises(ValueDataError, match="frozen"):
        usable([episode(0), episode(1, version=1), episode(2), episode(3)])
    passed = [episode(i) for i in range(0, 80, 2)]
    with pytest.raises(ValueDataError, match="explained variance"):
        split(passed, 0.2, 0)


def test_split_keeps_a_task_on_one_side() -> None:
    data = [
        replace(t, identity=replace(t.identity, task_id=f"t{i % 10}"))
        for i, t in enumerate(episode(i) for i in range(60))
    ]
    train, held = split(data, 0.3, 1)
    assert not {t.identity.task_id for t in train} & {t.identity.task_id for t in held}
    assert len(train) + len(held) == 60


def test_order_uses_every_trajectory_before_it_repeats_one() -> None:
    batches = _order(10, CONFIG.model_copy(update={"batch": 5, "steps": 4}))
    assert sorted(batches[0] + batches[1]) == list(range(10)) == sorted(batches[2] + batches[3])
