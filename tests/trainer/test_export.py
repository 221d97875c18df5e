"""A finished run's model folder: a checkpoint like any other, whatever the layout it was published in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.export import export_model
from trainer.folders import verify
from trainer.publish import FORMAT, Version, WeightFolder

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "more"), [("qwen3", {"tie_word_embeddings": True}), ("qwen3_moe", EXPERTS)])
def test_the_export_is_what_save_pretrained_writes(
    tmp_path: Path, kind: str, more: dict[str, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **more}), dtype=dtype)
    model.save_pretrained(tmp_path / "official")
    weights = WeightFolder(tmp_path / "weights")
    weights.open_for_writing()
    weights.publish(model, Version(3, "line"), {"probe": "kept"})
    (tmp_path / "tokenizer.json").write_text("{}")
    target = tmp_path / "final"
    for _ in range(2):  # made again over the one before
        with weights.fetch(Version(3, "line")) as folder:
            export_model(folder, target, [tmp_path / "tokenizer.json", tmp_path / "absent.json"])
    made, official = (load_file(tmp_path / name / "model.safetensors") for name in ("final", "official"))
    assert made.keys() == official.keys()
    assert all(torch.equal(made[name], official[name]) for name in official)
    manifest = verify(target, FORMAT)
    assert (manifest["version"], manifest["about"]) == (3, {"probe": "kept"})
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= manifest["files"].keys()
    tokens = torch.arange(8)[None]
    again = AutoModelForCausalLM.from_pretrained(target, dtype=dtype)
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)
