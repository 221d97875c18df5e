"""Presets hold on the architectures that transformers has: each is built small, from a configuration, and what a preset
trains is compared with what its modules are (their classes), not with their names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from trainer.critic import Critic, CriticError
from trainer.freeze import PRESETS, Kind, freeze, kind_of
from trainer.optim import build_optimizer

from .tiny import step_config
from .tiny_models import tiny_moe, tiny_policy

TOKENS = torch.tensor([[1, 2, 3, 4]])


def trained_names(critic: Critic) -> set[str]:
    return {name for name, p in critic.named_parameters() if p.requires_grad}


class TestFreeze:
    def test_frozen_attention_does_not_move_and_the_rest_does(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        torch.nn.init.normal_(critic.head.weight)
        report = freeze(critic, "full_except_attention")
        assert report.frozen == sum(p.numel() for n, p in critic.named_parameters() if ".self_attn." in n)
        assert report.trainable + report.frozen == sum(p.numel() for p in critic.parameters())
        assert f"{report.frozen:,} frozen" in str(report)
        before = {n: p.detach().clone() for n, p in critic.named_parameters()}
        optimizer = build_optimizer(critic, step_config().critic_optimizer)
        critic(TOKENS).square().sum().backward()
        optimizer.step()
        moved = {n for n, p in critic.named_parameters() if not torch.equal(p, before[n])}
        assert moved == trained_names(critic) == {n for n in before if ".self_attn." not in n}

    def test_moe_paper_trains_experts_and_head_only(self) -> None:
        critic = Critic.from_policy(tiny_moe())
        freeze(critic, "moe_paper")
        experts = {f"body.layers.0.mlp.experts.{n}" for n in ("gate_up_proj", "down_proj")}
        assert trained_names(critic) == experts | {"head.weight", "head.bias"}

    def test_moe_paper_on_a_dense_model_trains_its_mlp(self) -> None:
        critic = Critic.from_policy(tiny_policy(layers=1))
        freeze(critic, "moe_paper")
        mlp = {f"body.layers.0.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
        assert trained_names(critic) == mlp | {"head.weight", "head.bias"}

    def test_none_trains_everything_also_after_another_preset(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        freeze(critic, "moe_paper")
        assert freeze(critic, "none").frozen == 0

    def test_a_pattern_that_matches_nothing_is_an_error(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        with pytest.raises(
            CriticError,
            match=r"and Qwen3Model has none.*Choose moe_paper or full_except_attention or none",
        ):
            freeze(critic, "hybrid")  # no linear-attention mixer here
        with pytest.raises(CriticError, match="'typo'"):
            freeze(critic, "none", ["typo"])
        with pytest.raises(CriticError, match="unknown; choose one of"):
            freeze(critic, "all")

    def test_own_patterns_and_a_wholly_frozen_body(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        freeze(critic, "full_except_attention", [r"embed_tokens"])
        assert not any("embed" in n or "attn" in n for n in trained_names(critic))
        with pytest.raises(CriticError, match="whole body"):
            freeze(critic, "none", ["."])


SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
HALF = {"layer_types": ["linear_attention", "full_attention"] * 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {},
    "phi3": {},
    "glm4": {},
    "gpt2": {},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**EXPERTS, "num_experts": 4},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "llama4_text": {"num_local_experts": 4, "intermediate_size_mlp": 32},
    "granitemoehybrid": {"num_local_experts": 4, "shared_intermediate_size": 16, "mamba_n_heads": 8,
                         "layer_types": ["mamba", "attention"] * 2},
    "qwen3_next": {**EXPERTS, **HALF, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": HALF,
    "qwen3_5_moe_text": {**EXPERTS, **HALF, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "olmo_hybrid": HALF,
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {**EXPERTS, "num_experts": 4, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"] * 2},
    "jamba": {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 32, "mamba_d_head": 4},
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": [1, 3]},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mamba"], "n_routed_experts": 4,
                   "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "n_group": 1,
                   "topk_group": 1, "num_experts_per_tok": 2},
    "minimax": {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    "recurrent_gemma": {"lru_width": 32},
    "mamba2": {"num_heads": 8, "head_dim": 8},
}  # fmt: skip
WITH_MIXERS = {"granitemoehybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lfm2", "lfm2_moe",
               "jamba", "falcon_h1", "bamba", "nemotron_h", "recurrent_gemma", "mamba2"}  # fmt: skip
IS_ATTENTION = re.compile(r"Attention$|SdpaAttention")
IS_MIXER = re.compile(r"Mixer$|MambaLayer$|GatedDeltaNet$|ShortConv$|RecurrentBlock$")
IS_ROUTER = re.compile(r"Router$|TopK|Gate$")


def small_critic(family: str) -> Critic:
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]})
    with torch.device("meta"):  # names and shapes are all that counts
        return Critic(AutoModel.from_config(config), config.hidden_size)


def by_class(critic: Critic) -> dict[str, Kind]:
    """The kind of each parameter as the classes around it tell; the innermost that tells wins. Absent: they do not."""
    found: dict[str, Kind] = {}
    for place, module in critic.body.named_modules():
        kind = Kind.ATTENTION if IS_ATTENTION.search(type(module).__name__) else None
        kind = Kind.MIXER if IS_MIXER.search(type(module).__name__) else kind
        kind = Kind.ROUTER if IS_ROUTER.search(type(module).__name__) else kind
        if kind is not None:
            found |= {f"{place}.{name}": kind for name, _ in module.named_parameters()}
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_agree_with_the_classes_of_the_modules(family: str) -> None:
    critic = small_critic(family)
    names = [name for name, _ in critic.body.named_parameters()]
    classes = by_class(critic)
    wrong = {name: (kind_of(name), kind) for name, kind in classes.items() if kind_of(name) is not kind}
    if family == "nemotron_h":  # each of its layers is a "Mixer" by class: their names are looked at below
        wrong = {}
    assert not wrong
    kinds = {name: kind_of(name) for name in names}
    assert (Kind.MIXER in kinds.values()) == (family in WITH_MIXERS)
    # weights of experts are the only ones with three dimensions, convolutions and recurrences apart
    experts = {n for n, p in critic.body.named_parameters() if p.ndim == 3 and not re.search("conv|rg_lru", n)}
    assert all(kinds[name] is Kind.PROJECTION for name in experts)
    if experts:
        assert Kind.ROUTER in kinds.values()
    # what is left has one dimension, or is an embedding
    shapes = {n: p.ndim for n, p in critic.body.named_parameters()}
    assert not [n for n, kind in kinds.items() if kind is Kind.OTHER and shapes[n] > 1 and "embed" not in n
                and "wte" not in n and "wpe" not in n]  # fmt: skip


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mamba2"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_train_what_they_say(family: str, preset: str) -> None:
    critic = small_critic(family)
    if preset == "hybrid" and family not in WITH_MIXERS:
        with pytest.raises(CriticError, match="about mixer layers"):
            freeze(critic, preset)
        return
    report = freeze(critic, preset)
    trained = {kind_of(n.removeprefix("body.")) for n in trained_names(critic) if n.startswith("body.")}
    if preset == "moe_paper":
        assert trained == {Kind.PROJECTION}
    elif preset == "hybrid":
        assert not trained & {Kind.ATTENTION, Kind.MIXER}
    elif preset == "full_except_attention":
        assert Kind.ATTENTION not in trained
        assert ("preset 'hybrid'" in str(report)) == (family in WITH_MIXERS)
    else:
        assert report.frozen == 0
    assert {"head.weight", "head.bias"} <= trained_names(critic)


def test_what_stands_under_a_mixed_name_is_told_apart_by_what_is_in_it() -> None:
    names = {
        "layers.0.mixer.in_proj.weight": Kind.MIXER,
        "layers.1.mixer.q_proj.weight": Kind.ATTENTION,
        "layers.2.mixer.up_proj.weight": Kind.PROJECTION,
        "layers.2.mixer.experts.up_proj": Kind.PROJECTION,
        "layers.2.mixer.gate.weight": Kind.ROUTER,
        "layers.2.mixer.shared_experts.up_proj.weight": Kind.PROJECTION,
        "layers.2.temporal_block.q_proj.weight": Kind.ATTENTION,
        "layers.1.temporal_block.linear_x.weight": Kind.MIXER,
    }
    assert {name: kind_of(name) for name in names} == names


def test_the_gate_of_a_shared_expert_is_a_router() -> None:
    """Found in use: `moe_paper` trained it."""
    critic = small_critic("qwen2_moe")
    freeze(critic, "moe_paper")
    gates = [n for n, p in critic.named_parameters() if "shared_expert_gate" in n]
    assert gates
    assert not set(gates) & trained_names(critic)
    assert any("shared_expert.gate_proj" in n for n in trained_names(critic))  # a projection of the expert itself
