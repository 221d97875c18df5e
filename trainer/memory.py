"""What a training step needs of its device, before anything is loaded: counted on a model without memory.

Promises: nothing of the model's size is allocated; what autograd keeps is asked of autograd itself, so no formula
stands for an architecture; numbers are lower bounds (an allocator's waste, the driver's own memory and a server on the
same device come on top), so what does not fit here does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.config import StepConfig
from trainer.critic import Critic
from trainer.freeze import freeze_for_rl
from trainer.logprobs import body_of, head_of
from trainer.optim import TrainingSetupError
from trainer.precision import autocast, resolve_step

_MASTER, _GRADIENT, _MOMENTS = 4, 4, 8
"""Bytes of a trained parameter: fp32 weight, fp32 gradient, AdamW's two fp32 moments."""
_COPY = 2
"""Bytes of autocast's 16-bit copy of a weight, which lives as long as a pass."""
_CPU = torch.device("cpu")
_SHORT, _LONG = 128, 256
"""Tokens of the trial passes."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on the trainer's device."""

    policy: int
    """Weights, gradients and optimizer moments (and the 16-bit copy of a pass, which the critic then uses)."""
    critic: int
    per_token: int
    """What autograd keeps for a token of the micro-batch's context, attention fused; 0 where it cannot be counted."""
    logits: int
    """Of a chunk of rows, forward and backward."""
    tokens: int
    """Of the largest micro-batch of ordinary length: packing.token_budget."""

    @property
    def fixed(self) -> int:
        return self.policy + self.critic + self.logits

    @property
    def total(self) -> int:
        return self.fixed + self.per_token * self.tokens

    def longest(self, available: int) -> int:
        """Context tokens of the longest trajectory (a micro-batch of its own) that fits."""
        return max(0, (available - self.fixed) // self.per_token) if self.per_token else 0

    def text(self) -> str:
        kept = f"activations {_gib(self.per_token * self.tokens)} ({self.per_token / 2**10:,.0f} KiB a token"
        kept = f"{kept} x {self.tokens:,})" if self.per_token else "activations (not known for this architecture)"
        return (
            f"policy {_gib(self.policy)} + critic {_gib(self.critic)} (fp32 weights, gradients, AdamW) + {kept} + "
            f"logits {_gib(self.logits)} = {_gib(self.total)} at least"
        )


def step_memory(folder: Path, config: StepConfig, device: torch.device = _CPU) -> StepMemory:
    """`folder`: config.json is read, weights are not. Raises CriticError where the freezing does not fit the model."""
    config = resolve_step(config, device)
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with FakeTensorMode():
        policy: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
    rows = max(1, config.packing.logit_budget // head_of(policy)[0].shape[0])
    logits = 3 * 4 * rows * head_of(policy)[0].shape[0]  # logits, their exponentials and their gradient
    copies = _COPY * sum(p.numel() for p in policy.parameters()) if config.precision == "bf16" else 0
    size, critic_size = _trained(policy) + copies, 0
    kept = _kept_per_token(body_of(policy), config.precision)  # of the policy: all of it trains, so it keeps more
    if config.advantage.kind.needs_critic:
        critic = Critic(body_of(policy), int(shape.get_text_config().hidden_size))  # a body of its own is as large
        freeze_for_rl(critic, config.critic)
        critic_size = _trained(critic)
    return StepMemory(size, critic_size, kept, logits, config.packing.token_budget)


def refuse_what_cannot_fit(memory: StepMemory, device: torch.device) -> str:
    """What there is and how long a trajectory may be, in words. Raises TrainingSetupError."""
    there = available(device)
    name = "the GPU" if device.type == "cuda" else "this machine (free now)"
    if memory.total > there:
        raise TrainingSetupError(
            f"A training step does not fit: it needs {memory.text()}, {name} has {_gib(there)}. Take a smaller model, "
            "lower train.step.packing.token_budget (activations) or logit_budget (logits), or set step.precision bf16; "
            "the trainer uses one device."
        )
    longest = f"; a trajectory of {memory.longest(there):,} tokens fits at most" if memory.per_token else ""
    return f"{name} has {_gib(there)}{longest}"


def available(device: torch.device) -> int:
    """Bytes of the device: a GPU's own memory, or what this machine has free now."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62  # not told here: nothing is refused


def _trained(model: nn.Module) -> int:
    return sum(
        parameter.numel() * (_MASTER + (_GRADIENT + _MOMENTS if parameter.requires_grad else 0))
        for parameter in model.parameters()
    )


def _kept_per_token(body: Any, precision: str) -> int:
    """Slope between two lengths: what does not grow with the text (autocast's copies of weights) falls out. 0 where it
    cannot be counted: an architecture whose passes depend on what its tensors hold."""
    try:
        return (_kept(body, _LONG, precision) - _kept(body, _SHORT, precision)) // (_LONG - _SHORT)
    except RuntimeError:
        return 0


def _kept(body: Any, length: int, precision: str) -> int:
    """Bytes that autograd saves in one pass, parameters (which are there anyway) and repeated storages apart."""
    parameters = {id(parameter) for parameter in body.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        # A mask is made here since tensors without contents cannot tell that it is the plain causal one.
        mask = not tensor.requires_grad and tensor.shape[-2:] == (length, length)
        if id(base) not in parameters and not mask:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage
        return tensor

    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(torch.device("cpu"), precision),
    ):
        body(input_ids=torch.zeros((1, length), dtype=torch.long), use_cache=False)
    return sum(storage.nbytes() for storage in storages.values())


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
