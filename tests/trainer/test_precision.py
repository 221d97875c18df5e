"""One rule for the arithmetic of all training, and what a run keeps of it."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from sao.config import Config
from sao.rundir import open_run
from sao.train import begun, for_training, with_arithmetic
from trainer.config import StepConfig
from trainer.logprobs import chunk_rows
from trainer.precision import autocast, head_products, logits_at_once, resolve, resolve_step

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What the rule asks of a GPU that is not here."""
    facts = types.SimpleNamespace(capability=(9, 0), total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: facts.capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return facts


def test_auto_is_bf16_where_the_device_has_it(gpu: types.SimpleNamespace) -> None:
    assert (resolve("auto", CPU), resolve("auto", GPU)) == ("fp32", "bf16")
    assert (resolve("bf16", CPU), resolve("fp32", GPU)) == ("bf16", "fp32")
    gpu.capability = (7, 5)
    assert resolve("auto", GPU) == "fp32"


def test_the_heads_chunk_follows_the_memory(gpu: types.SimpleNamespace) -> None:
    assert logits_at_once(0, CPU) == 1 << 24
    assert logits_at_once(0, GPU) == 1 << 27  # 80 GiB / 32 / 12 bytes = 223 million, and the power of two below
    assert logits_at_once(1000, GPU) == 1000
    gpu.total_memory = 1 << 30
    assert logits_at_once(0, GPU) == 1 << 24
    assert chunk_rows(torch.zeros(151_936, 1)) == 110
    assert resolve_step(StepConfig(), GPU).packing.logit_budget == 1 << 24


def test_tf32_is_on_for_the_heads_products_alone(gpu: types.SimpleNamespace) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with head_products(GPU, "auto"):
        assert torch.backends.cuda.matmul.allow_tf32
    with head_products(GPU, "fp32"):
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_autocast_follows_the_rule() -> None:
    a = torch.ones(2, 2)
    with autocast(CPU, "auto"):
        assert (a @ a).dtype is torch.float32
    with autocast(CPU, "bf16"):
        assert (a @ a).dtype is torch.bfloat16


def test_a_run_keeps_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: types.SimpleNamespace
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = for_training(Config())
    on_gpu = with_arithmetic(plan, begun(plan, None, fresh=False))
    assert (on_gpu.train.step.precision, on_gpu.value.precision) == ("bf16", "bf16")
    assert on_gpu.train.step.packing.logit_budget == 1 << 27
    open_run(on_gpu).close()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    elsewhere = with_arithmetic(plan, begun(plan, None, fresh=False))
    assert elsewhere.train.settings_hash() == on_gpu.train.settings_hash()
    assert elsewhere.value == on_gpu.value
    new = with_arithmetic(plan, begun(plan, None, fresh=True))
    assert (new.train.step.precision, new.value.precision) == ("fp32", "fp32")
    step = plan.train.step.model_copy(update={"precision": "fp32"})
    asked = plan.model_copy(update={"train": plan.train.model_copy(update={"step": step})})
    assert with_arithmetic(asked, begun(asked, None, fresh=False)).train.step.precision == "fp32"
