"""Optimizers, warm-up, clipping and the checks that guard them.

Promises: an optimizer holds exactly the trainable parameters, in fp32 or wider (a bf16 weight cannot move by a rate of
1e-6); dropout in any form is an error; a non-finite gradient never reaches the weights. The learning rate is a pure
function of a counter: there is no scheduler state to save.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainer.config import OptimizerConfig


class TrainingSetupError(ValueError):
    """A model or optimizer is not fit to train; the text says which part and what to do."""


class NonFiniteGradientError(ArithmeticError):
    """Gradient of `model` is not finite; its weights were left untouched."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over what is trainable *now*: freeze first."""
    parameters = trainable(model)
    if not parameters:
        raise TrainingSetupError(f"{type(model).__name__} has no trainable parameter")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise TrainingSetupError(
                f"{type(model).__name__}.{name} is {parameter.dtype}: an update of {config.learning_rate:g} is lost to "
                "rounding. Load trained models in float32 and set precision = 'bf16' for fast arithmetic"
            )
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise when the optimizer was built before freezing (or over another model)."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    wanted = {id(p) for p in trainable(model)}
    if held != wanted:
        raise TrainingSetupError(
            f"the optimizer of {type(model).__name__} holds {len(held - wanted)} parameters that do not train and "
            f"lacks {len(wanted - held)} that do: build it after freezing, over this very model"
        )


def check_dropout_off(model: nn.Module) -> None:
    """Raise when any module would drop or jitter activations: rollouts run without, so ratios would be noise."""
    for name, module in model.named_modules():
        if not module.training:
            continue
        for attribute, value in vars(module).items():
            noisy = "drop" in attribute or "jitter" in attribute
            noisy = noisy or (attribute == "p" and isinstance(module, nn.modules.dropout._DropoutNd))
            if noisy and isinstance(value, float) and value > 0:
                raise TrainingSetupError(
                    f"{type(model).__name__}.{name or '(root)'} has {attribute} = {value} in training mode: call "
                    "eval() or set it to 0 in the model's config. Dropout rejects 15-54 % of the tokens"
                )


def warmed_rate(config: OptimizerConfig, done: int) -> float:
    """Rate of the update that comes after `done` earlier ones: linear from rate / warmup_steps, then constant."""
    if config.warmup_steps == 0:
        return config.learning_rate
    return config.learning_rate * min(1.0, (done + 1) / config.warmup_steps)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def current_rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def clipped_step(model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the global norm, step, clear the gradients. Returns the norm before clipping."""
    norm = float(nn.utils.clip_grad_norm_(trainable(model), max_norm))
    if not torch.isfinite(torch.tensor(norm)):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteGradientError(f"gradient norm of {type(model).__name__} is {norm}; its weights are unchanged")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def gradients(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Names and gradients of the trainable parameters that have one (tests and diagnostics)."""
    return ((n, p.grad) for n, p in model.named_parameters() if p.requires_grad and p.grad is not None)
