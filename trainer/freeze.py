"""What of a critic's body is frozen during the RL phase: presets over the kinds of parameters that architectures have.

Promises: every parameter of a decoder has one kind, told by its name (checked against the architectures that
transformers has: tests/trainer/test_freeze.py); a preset that finds nothing of what it is about is an error, and so is
a pattern that matches nothing or a body that is wholly frozen; the head always trains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer.config import CriticConfig
from trainer.critic import Critic, CriticError


class Kind(StrEnum):
    """What a parameter is part of."""

    ATTENTION = "attention"
    """Softmax attention (and what an architecture puts under that name), its norms and gates included."""
    MIXER = "mixer"
    """The other layers that mix tokens: linear attention, state spaces, convolutions, recurrences."""
    ROUTER = "router"
    """What chooses or weighs experts, a shared expert's gate included."""
    PROJECTION = "projection"
    """MLP and expert projections."""
    OTHER = "other"
    """Embeddings, norms, residual scales, and towers of other senses."""


_TOWER = re.compile(r"^(vision|visual|audio|image|speech)|_tower$|^patch_embed")
_ATTENTION = re.compile(r"^((self|cross|encoder|multi_head|rel)_)?att(n|ention)?$")
_MIXER = re.compile(
    r"^(linear_attn|linear_attention|mamba\w*|ssm|(short_?)?conv(_?1d)?|\w*sconv|rg_lru|mlstm_layer"
    r"|slstm_layer|time_mix\w*)$"
)
_MIXED = ("mixer", "temporal_block")
"""Whatever a layer has stands under this name in some hybrids: attention, state space, recurrence, MLP or experts."""
_MIXED_ATTENTION = re.compile(r"^[qkvo]_proj$")
_MIXED_PROJECTION = re.compile(r"^(up_proj|down_proj|experts|shared_experts)$")
_ROUTER = re.compile(r"^(gate|router\w*|shared_expert_gate|moe_statics|e_score_correction_bias|expert_bias)$")
_NORM = re.compile(r"(^|_)(layer)?norm\d?(_|$)|^ln_?\d?$|layernorm")
_PROJECTION = re.compile(
    r"^(mlps?|\w+_mlp|mlp_block|feed_forward\w*|ffn|ff|moe|block_sparse_moe|experts|shared_experts?|fc\d)$"
)


def kind_of(name: str) -> Kind:
    """Of a body's parameter, by its dotted name. The outermost module that tells decides, but for routers and norms
    inside of MLPs."""
    parts = name.split(".")
    if any(_TOWER.search(part) for part in parts):
        return Kind.OTHER
    for part in parts:
        if _ATTENTION.match(part):
            return Kind.ATTENTION
        if _MIXER.match(part):
            return Kind.MIXER
    if mixed := next((part for part in parts if part in _MIXED), None):
        inner = parts[parts.index(mixed) + 1 :]
        if _MIXED_ATTENTION.match(inner[0]):
            return Kind.ATTENTION
        if not _MIXED_PROJECTION.match(inner[0]) and not any(_ROUTER.match(part) for part in inner):
            return Kind.MIXER
        parts = ["mlp", *inner]
    if any(_ROUTER.match(part) for part in parts):
        return Kind.ROUTER
    if any(_NORM.search(part) for part in parts):
        return Kind.OTHER
    return Kind.PROJECTION if any(_PROJECTION.match(part) for part in parts) else Kind.OTHER


@dataclass(frozen=True)
class Preset:
    """`needs`: kinds of which at least one must be there, or the preset is not about this model."""

    frozen: frozenset[Kind]
    needs: frozenset[Kind] = frozenset()


PRESETS: Mapping[str, Preset] = {
    # paper: "freeze attention, train the MoE projections". Router, embeddings and norms frozen too: our reading.
    "moe_paper": Preset(frozenset(Kind) - {Kind.PROJECTION}, frozenset({Kind.PROJECTION})),
    "full_except_attention": Preset(frozenset({Kind.ATTENTION}), frozenset({Kind.ATTENTION})),
    "hybrid": Preset(frozenset({Kind.ATTENTION, Kind.MIXER}), frozenset({Kind.MIXER})),
    "none": Preset(frozenset()),
}


@dataclass(frozen=True)
class FreezeReport:
    """Parameter counts (numbers, not tensors) after freezing."""

    preset: str
    trainable: int
    frozen: int
    note: str = ""

    def __str__(self) -> str:
        total = max(self.trainable + self.frozen, 1)
        return (
            f"critic freeze '{self.preset}': {self.trainable:,} parameters trainable, {self.frozen:,} frozen "
            f"({100 * self.frozen / total:.1f} %){self.note}"
        )


def freeze(critic: Critic, preset: str, patterns: Sequence[str] = ()) -> FreezeReport:
    """Set `requires_grad` for the RL phase; call it **before** an optimizer is built. The head always trains.

    Raises `CriticError` for an unknown preset, one that is about layers which this model lacks, a pattern that matches
    no parameter, or a body that is wholly frozen.
    """
    if preset not in PRESETS:
        raise CriticError(f"freeze preset '{preset}' is unknown; choose one of {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    kinds = {name: kind_of(name) for name, _ in critic.body.named_parameters()}
    found = Counter(kinds.values())
    body, like = type(critic.body).__name__, _example(list(kinds))
    if chosen.needs and not any(found[kind] for kind in chosen.needs):
        fitting = [name for name, each in PRESETS.items() if not each.needs or any(found[kind] for kind in each.needs)]
        raise CriticError(
            f"freeze preset '{preset}' is about {' or '.join(sorted(chosen.needs))} layers, and {body} has none that "
            f"are known here (names look like {like!r}). Choose {' or '.join(fitting)}, or name the modules in "
            "critic.freeze_patterns"
        )
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in kinds):
            raise CriticError(
                f"critic.freeze_patterns: {pattern!r} matches no parameter of {body} (names look like {like!r})"
            )
    critic.head.requires_grad_(True)
    for name, parameter in critic.body.named_parameters():
        fixed = kinds[name] in chosen.frozen or any(re.search(pattern, name) for pattern in patterns)
        parameter.requires_grad_(not fixed)
    if kinds and not any(p.requires_grad for p in critic.body.parameters()):
        raise CriticError(f"freeze preset '{preset}' with {list(patterns)} freezes the whole body: free some of it")
    trainable = sum(p.numel() for p in critic.parameters() if p.requires_grad)
    note = ""
    if Kind.ATTENTION in chosen.frozen and Kind.MIXER not in chosen.frozen and found[Kind.MIXER]:
        note = "; this model's linear-attention, state-space or convolution layers train (preset 'hybrid' freezes them)"
    return FreezeReport(preset, trainable, sum(p.numel() for p in critic.parameters()) - trainable, note)


def _example(names: Sequence[str]) -> str:
    return names[len(names) // 2] if names else ""


def freeze_for_rl(critic: Critic, config: CriticConfig) -> FreezeReport:
    return freeze(critic, config.freeze, config.freeze_patterns)
