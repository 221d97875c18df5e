"""The forward pass of a Llama-like model in fp32 without module overhead: the same weights, the same numbers.

A one-million-parameter model spends three quarters of a decode step in Python between small kernels. This runs
Qwen3, Qwen2 and Llama layers with about half the kernels (projections joined, norms in one call).

Promises:
* weights are not copied: joined projections *become* the storage that the model's own parameters look into, so a
  weight update in place reaches both;
* `FusedForward.for_model` returns None for anything it does not know, and compares itself with the model's own forward
  before it is used; a difference above 1e-4 of the logits' size is refused with a warning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agent.engines.slots import SlotCache, attend

_log = logging.getLogger(__name__)

_KNOWN = ("qwen3", "qwen2", "llama")


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Any
    after: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Any


class FusedForward:
    """Call with ids and positions [B, n], a mask [B, 1, n, L] and an aimed cache; returns the last logits [B, V]."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._core, self._head = model.model, model.lm_head
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        first = self._core.layers[0]
        self._dim = first.self_attn.head_dim
        self._scale = first.self_attn.scaling
        self._eps = first.input_layernorm.variance_epsilon
        self._activation = first.mlp.act_fn
        self._layers = [self._take(layer) for layer in self._core.layers]
        self._norm = self._core.norm.weight
        self._rope: tuple[Tensor, Tensor] | None = None

    @classmethod
    def for_model(cls, model: Any) -> FusedForward | None:
        config = model.config
        if config.model_type not in _KNOWN or next(model.parameters()).dtype != torch.float32:
            return None
        try:
            fused = cls(model)
        except (AttributeError, TypeError) as error:
            _log.warning("%s: laid out differently than expected (%s); using its own forward", config.model_type, error)
            return None
        worst = fused._difference(model)
        if not worst <= 1e-4:
            _log.warning("%s: the fused forward differs by %.1e; using the model's own", config.model_type, worst)
            return None
        return fused

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        rows, length = ids.shape
        heads, groups, dim, eps = self._heads, self._groups, self._dim, self._eps
        cos, sin = self._rotation(positions)
        hidden = F.embedding(ids, self._core.embed_tokens.weight)
        width = (hidden.shape[-1],)
        for index, layer in enumerate(self._layers):
            joined = F.linear(F.rms_norm(hidden, width, layer.before, eps), layer.qkv, layer.qkv_bias)
            joined = joined.view(rows, length, heads + 2 * groups, dim)
            turned = joined[:, :, : heads + groups]
            if layer.query_norm is not None:
                queries = F.rms_norm(turned[:, :, :heads], (dim,), layer.query_norm, eps)
                turned = torch.cat((queries, F.rms_norm(turned[:, :, heads:], (dim,), layer.key_norm, eps)), dim=2)
            low, high = turned.chunk(2, dim=-1)
            turned = (turned * cos + torch.cat((-high, low), dim=-1) * sin).transpose(1, 2)
            keys, values = cache.update(turned[:, heads:], joined[:, :, heads + groups :].transpose(1, 2), index)
            seen = attend(turned[:, :heads], keys, values, mask, self._scale)
            hidden = hidden + layer.out(seen.reshape(rows, length, heads * dim))
            inner = F.linear(F.rms_norm(hidden, width, layer.after, eps), layer.gate_up, layer.gate_up_bias)
            gate, up = inner.chunk(2, dim=-1)
            hidden = hidden + layer.down(self._activation(gate) * up)
        return self._head(F.rms_norm(hidden[:, -1], width, self._norm, eps))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [B, n, 1, D], from a table that the model's own rotary module fills."""
        length = self._rope[0].shape[0] if self._rope is not None else 0
        needed = int(positions.max()) + 1
        if self._rope is None or needed > length:
            every = torch.arange(max(needed, 2 * length, 512), device=positions.device)[None]
            probe = torch.zeros((), dtype=torch.float32, device=positions.device)
            cos, sin = self._core.rotary_emb(probe, every)
            self._rope = cos[0], sin[0]
        return self._rope[0][positions].unsqueeze(2), self._rope[1][positions].unsqueeze(2)

    def _take(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, qkv_bias = _join(attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up, gate_up_bias = _join(mlp.gate_proj, mlp.up_proj)
        return _Layer(
            layer.input_layernorm.weight,
            qkv,
            qkv_bias,
            attention.q_norm.weight if hasattr(attention, "q_norm") else None,
            attention.k_norm.weight if hasattr(attention, "k_norm") else None,
            attention.o_proj,
            layer.post_attention_layernorm.weight,
            gate_up,
            gate_up_bias,
            mlp.down_proj,
        )

    def _difference(self, model: Any) -> float:
        """Largest difference from the model's own forward on a probe, relative to the largest logit."""
        with torch.inference_mode():
            vocab, device = model.config.vocab_size, next(model.parameters()).device
            ids = torch.arange(2 * 12, device=device).view(2, 12) * 31 % vocab
            expected = model(input_ids=ids, use_cache=False).logits[:, -1]
            cache = SlotCache(len(self._layers))
            for row in range(2):  # ten positions of each row first, the other two as decode steps of the batch
                cache.aim_row(row, 0, 10)
                positions = torch.arange(10, device=device)
                mask = positions <= positions[:, None]
                self(ids[row : row + 1, :10], positions[None], mask[None, None], cache)
            for at in (10, 11):
                positions = torch.full((2, 1), at, device=device)
                cache.aim_batch(torch.arange(2, device=device), positions[:, 0], at + 1)
                mask = torch.ones(2, 1, 1, at + 1, dtype=torch.bool, device=device)
                found = self(ids[:, at : at + 1], positions, mask, cache)
            return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


def _join(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """One matrix of several projections' rows; the projections' parameters become views of it."""
    joined: list[Tensor | None] = []
    for name in ("weight", "bias"):
        parts = [getattr(linear, name) for linear in linears]
        if any(part is None for part in parts):
            if any(part is not None for part in parts):
                raise TypeError(f"some of the joined projections have a {name} and some have none")
            joined.append(None)
            continue
        whole = torch.cat([part.detach() for part in parts])
        for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = view
        joined.append(whole)
    assert joined[0] is not None
    return joined[0], joined[1]
