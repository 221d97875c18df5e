"""Folders that lack a part of their weights, as broken downloads and copies leave them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agent.engines import weights
from agent.engines.model_files import INDEX, ModelRefused, check_model_folder, stored_tensors
from agent.engines.weights import load_model

DEMO = Path(__file__).parents[2] / "agent" / "assets" / "demo"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The shipped policy in three files with an index."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number in range(3):
        name = f"model-0000{number + 1}-of-00003.safetensors"
        part = {key: tensors[key] for place, key in enumerate(sorted(tensors)) if place % 3 == number}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_whole_folders(sharded: Path) -> None:
    check_model_folder(DEMO)
    check_model_folder(sharded)
    assert stored_tensors(sharded) == stored_tensors(DEMO)
    assert stored_tensors(DEMO) == {n: tuple(t.shape) for n, t in load_file(DEMO / "model.safetensors").items()}


def test_a_tied_head_is_stored_once(make_model: Any, tmp_path: Path) -> None:
    make_model(1, tie_word_embeddings=True).save_pretrained(tmp_path)
    check_model_folder(tmp_path)


def broken(folder: Path, how: str) -> str:
    """Damage `folder`; what the error must name."""
    shard = folder / "model-00002-of-00003.safetensors"
    if how == "missing shard":
        shard.unlink()
        return "1 of 3 weight files are missing: model-00002"
    if how == "cut":
        data = shard.read_bytes()
        shard.write_bytes(data[: len(data) // 2])
        return "model-00002-of-00003.safetensors: cut off"
    if how == "header cut":
        shard.write_bytes(shard.read_bytes()[:20])
        return "model-00002-of-00003.safetensors: no safetensors file, or cut off"
    if how == "empty":
        shard.write_bytes(b"")
        return "no safetensors file, or cut off"
    if how == "page in its place":
        shard.write_text("<html>Not found</html>")
        return "no safetensors file, or cut off"
    if how == "index names more":
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = shard.name
        (folder / INDEX).write_text(json.dumps(index))
        return "names 1 weights that no file holds, e.g. model.layers.9"
    if how == "index is broken":
        (folder / INDEX).write_text("{")
        return "cannot be read"
    if how == "index leads out":
        (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
        return "does not name files of this folder"
    if how == "another configuration":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9, "layer_types": None}))
        return "weights and the safetensors files hold"
    if how == "pickles":
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        (folder / "pytorch_model.bin").write_bytes(b"x")
        return "pytorch_model.bin is no safetensors and is not loaded"
    (folder / "config.json").unlink()
    return "no config.json"


@pytest.mark.parametrize(
    "how",
    ["missing shard", "cut", "header cut", "empty", "page in its place", "index names more", "index is broken",
     "index leads out", "another configuration", "pickles", "no config"],
)  # fmt: skip
def test_refused_by_name_before_a_model_is_built(sharded: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = broken(sharded, how)
    import transformers

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", never)
    with pytest.raises(ModelRefused) as refused:
        load_model(sharded, torch.device("cpu"), torch.float32)
    assert said in str(refused.value)
    assert weights.ModelRefused is ModelRefused


def test_the_trainer_asks_first_too(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.setup import load_policy

    (sharded / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(ModelRefused, match="1 of 3 weight files are missing"):
        load_policy(sharded, torch.device("cpu"))
