"""Tiny models for the trainer's tests. fp64 models are fp64 throughout (norms included), so that agreements to 1e-10
and finite differences mean something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from data.trajectory import Trajectory
from trainer.logprobs import body_of, head_of, hidden_states

from .tiny import VOCAB, with_logprobs


def _exact_norm(self: Qwen3RMSNorm, x: Tensor) -> Tensor:
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def exact(model: nn.Module) -> nn.Module:
    """To fp64; Qwen3's norm otherwise rounds through fp32."""
    for module in model.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.forward = _exact_norm.__get__(module)
    return model.double()


def tiny_policy(seed: int = 0, *, fp64: bool = False, tied: bool = False, layers: int = 2) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    model = Qwen3ForCausalLM(config).eval()
    return exact(model) if fp64 else model


def tiny_moe(seed: int = 0) -> Qwen3MoeForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    return Qwen3MoeForCausalLM(config).eval()


def plain_logprobs(policy: nn.Module, trajectory: Trajectory) -> Tensor:
    """[actions] the textbook way: whole softmax of one unpadded row, read one place before each action token."""
    tokens = torch.from_numpy(trajectory.tokens.astype(np.int64))[None]
    weight, bias = head_of(policy)
    logits = hidden_states(body_of(policy), tokens)[0] @ weight.T + (0 if bias is None else bias)
    at = torch.from_numpy(np.flatnonzero(trajectory.action_mask))
    return torch.log_softmax(logits, -1)[at - 1, tokens[0, at]]


def on_policy(policy: nn.Module, trajectories: Sequence[Trajectory], noise: float = 0.0) -> list[Trajectory]:
    """The same with the policy's own log-probabilities recorded, off by `noise` (normal, nats)."""
    rng = np.random.default_rng(7)
    with torch.no_grad():
        recorded = [plain_logprobs(policy, t).double().numpy() for t in trajectories]
    return [
        with_logprobs(t, p + noise * rng.standard_normal(len(p))) for t, p in zip(trajectories, recorded, strict=True)
    ]
