"""Which arithmetic training takes on a device, and how much of the head at once: one rule for all kinds of training.

Promises: weights, gradients, optimizers, values, log-probabilities and losses are fp32 in either; `bf16` is autocast of
the model's body, and the head's products in TF32 (11 of 24 bits, more than bf16's 8; sums stay fp32). What
`auto` became is stored with the run and stays when it goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from trainer.config import StepConfig

LOGITS_ON_CPU = 1 << 24
_LOGITS_SHARE, _LOGIT_BYTES = 1 / 32, 12
"""Of a GPU's memory for the chunk of logits, their exponentials and their gradient, 4 bytes each."""


def resolve(precision: str, device: torch.device) -> str:
    """`fp32` or `bf16`. auto: bf16 on a GPU whose cores have it, else fp32 (on a CPU bf16 is slower)."""
    if precision != "auto":
        return precision
    has_it = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if has_it else "fp32"


def logits_at_once(budget: int, device: torch.device) -> int:
    """Numbers; a `budget` of 0 follows the device's whole memory, not what is free: a replay takes the same chunks."""
    if budget:
        return budget
    if device.type != "cuda":
        return LOGITS_ON_CPU
    most = int(torch.cuda.get_device_properties(device).total_memory * _LOGITS_SHARE) // _LOGIT_BYTES
    return max(LOGITS_ON_CPU, 1 << (most.bit_length() - 1))


def resolve_step(step: StepConfig, device: torch.device) -> StepConfig:
    packing = step.packing.model_copy(update={"logit_budget": logits_at_once(step.packing.logit_budget, device)})
    return step.model_copy(update={"precision": resolve(step.precision, device), "packing": packing})


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Of a model's body."""
    return torch.autocast(device.type, torch.bfloat16) if resolve(precision, device) == "bf16" else nullcontext()


@contextmanager
def head_products(device: torch.device, precision: str) -> Iterator[None]:
    """The head's products of fp32 numbers: TF32 with bf16 on a GPU, else full fp32, whatever the process has set."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = resolve(precision, device) == "bf16"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
