"""What a step needs, counted before anything is loaded: against real parameters and real passes of small models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.config import StepConfig
from trainer.critic import Critic
from trainer.freeze import freeze
from trainer.logprobs import body_of
from trainer.memory import StepMemory, refuse_what_cannot_fit, step_memory
from trainer.optim import TrainingSetupError

from .tiny_models import tiny_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_policy().config.save_pretrained(tmp_path)
    return tmp_path


def kept_for_real(body: torch.nn.Module, length: int) -> int:
    own = {parameter.data_ptr() for parameter in body.parameters()}
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = body(input_ids=torch.zeros((1, length), dtype=torch.long), use_cache=False)
    assert out.last_hidden_state.requires_grad  # the graph, and so what it keeps, is alive here
    return sum(storages.values())


def test_against_a_real_model(folder: Path) -> None:
    policy = tiny_policy()
    memory = step_memory(folder, StepConfig())
    critic = Critic.from_policy(policy)
    report = freeze(critic, "full_except_attention")
    assert memory.policy == 16 * sum(p.numel() for p in policy.parameters())
    assert memory.critic == 16 * report.trainable + 4 * report.frozen
    real = (kept_for_real(body_of(policy), 256) - kept_for_real(body_of(policy), 128)) / 128
    assert memory.per_token == pytest.approx(real, rel=0.2)  # kernels differ by machine
    assert memory.per_token > 0
    assert memory.total == memory.fixed + memory.per_token * 8192


def test_bf16_keeps_less(folder: Path) -> None:
    full, half = step_memory(folder, StepConfig()), step_memory(folder, StepConfig(precision="bf16"))
    assert half.per_token < full.per_token
    assert half.policy > full.policy  # the copies of a pass


def test_a_control_without_a_critic_has_none(folder: Path) -> None:
    from trainer.controls import control

    assert step_memory(folder, control("batch_leave_one_out", StepConfig())).critic == 0


def test_refusal_says_what_is_large_and_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StepMemory(policy=6 << 30, critic=1 << 30, per_token=1 << 20, logits=1 << 30, tokens=1024)
    monkeypatch.setattr("trainer.memory.available", lambda device: 10 << 30)
    assert refuse_what_cannot_fit(memory, torch.device("cpu")).endswith("a trajectory of 2,048 tokens fits at most")
    monkeypatch.setattr("trainer.memory.available", lambda device: 8 << 30)
    with pytest.raises(TrainingSetupError, match=r"needs policy 6\.0 GiB .* = 9\.0 GiB .*has 8\.0 GiB"):
        refuse_what_cannot_fit(memory, torch.device("cpu"))


def test_what_cannot_be_counted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StepMemory(policy=1 << 30, critic=0, per_token=0, logits=1 << 20, tokens=1024)
    monkeypatch.setattr("trainer.memory.available", lambda device: 8 << 30)
    assert "activations (not known for this architecture)" in memory.text()
    assert "trajectory" not in refuse_what_cannot_fit(memory, torch.device("cpu"))
