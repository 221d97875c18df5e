"""Published tensors reach vLLM as a checkpoint has them: names, shapes and values are those of `save_pretrained`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from agent.engines.vllm.launch import INSIDE

sys.path.append(str(INSIDE))
from sao_vllm_names import checkpoint_tensors

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
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3-tied": {"tie_word_embeddings": True},
    "llama": {},
    "qwen3_moe": {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def published(model: Any, folder: Path) -> Path:
    from trainer.publish import Version, WeightFolder

    weights = WeightFolder(folder)
    weights.open_for_writing()
    weights.publish(model, Version(1, "line"), {})
    return weights.path(1)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_sent_is_what_save_pretrained_writes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.partition("-")[0], **{**SMALL, **MODELS[name]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path / "official")
    official = load_file(tmp_path / "official" / "model.safetensors")
    folder = published(model, tmp_path / "ours")
    sent = list(checkpoint_tensors(folder))
    assert len({each for each, _ in sent}) == len(sent)
    assert {each: tuple(tensor.shape) for each, tensor in sent} == {
        each: tuple(tensor.shape) for each, tensor in official.items()
    }
    for each, tensor in sent:
        assert torch.equal(tensor, official[each]), each


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3_moe"])
def test_what_is_announced_is_what_is_sent(name: str, tmp_path: Path) -> None:
    """In the same order: the receiver sizes and cuts its buffers by it."""
    config = AutoConfig.for_model(name.partition("-")[0], **{**SMALL, **MODELS[name]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    folder = published(model, tmp_path)
    announced = [(each, tensor.dtype, tensor.shape) for each, tensor in checkpoint_tensors(folder, "meta")]
    sent = [(each, tensor.dtype, tensor.shape) for each, tensor in checkpoint_tensors(folder)]
    assert announced == sent
    assert {dtype for _, dtype, _ in sent} == {torch.bfloat16}
    assert ("lm_head.weight" in dict((each, 1) for each, _, _ in sent)) is (name != "qwen3-tied")
