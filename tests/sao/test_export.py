"""`sao export`: any version of a run, with its tokenizer, as a folder that engine and trainer load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agent.engines.weights import load_model
from agent.tokenizer import load_tokenizer
from sao.assemble import KEPT_FILES, copy_tokenizer
from sao.config import load_config
from sao.paths import DEMO_POLICY
from trainer.paths import TrainerPaths
from trainer.publish import Version, WeightFolder

from .command import sao


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with versions 3 and 4 of the shipped policy's weights; every tensor of v is the policy's plus v."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(load_config("demo", []).to_toml())
    model = load_model(DEMO_POLICY, torch.device("cpu"), torch.float32)
    weights = WeightFolder(TrainerPaths(run).weights)
    weights.open_for_writing()
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number in (3, 4):
        model.load_state_dict({name: tensor + number for name, tensor in first.items()})
        weights.publish(model, Version(number, "lineage"), {})
    return run


def head(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["model.norm.weight"]


def test_newest_or_any_with_the_tokenizer(run: Path, tmp_path: Path) -> None:
    copy_tokenizer(DEMO_POLICY, run / "tokenizer")
    new, old = tmp_path / "new", tmp_path / "old"
    assert "version 4 of" in sao("export", run, "--out", new)
    assert "version 3 of" in sao("export", run, "--version", 3, "--out", old)
    torch.testing.assert_close(head(new) - head(old), torch.ones_like(head(new)))
    for folder in (new, old):
        load_model(folder, torch.device("cpu"), torch.float32)
        assert load_tokenizer(folder).fingerprint == load_tokenizer(DEMO_POLICY).fingerprint
        kept = [name for name in KEPT_FILES if (DEMO_POLICY / name).is_file()]
        assert all((folder / name).read_bytes() == (DEMO_POLICY / name).read_bytes() for name in kept)


def test_a_run_that_kept_no_tokenizer_takes_that_of_its_model(run: Path, tmp_path: Path) -> None:
    sao("export", run, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_refusals_name_the_way_out(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "has no version 1 any more; it has: 3, 4" in sao("export", run, "--version", 1, "--out", out, code=2)
    (tmp_path / "there").mkdir()
    assert "replaces nothing" in sao("export", run, "--out", tmp_path / "there", code=2)
    shutil.rmtree(TrainerPaths(run).weights)
    assert "no versions of weights" in sao("export", run, "--out", out, code=2)
    assert not out.exists()
