"""Models and weights for the embedded engine: safetensors only, no code from the model folder, all checked first.

Promises: a model with missing, unexpected or misshapen weights is refused (never filled at random); a weight update is
checked as a whole before the first tensor changes, so a bad one leaves the old weights untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agent.engines.model_files import ModelRefused as ModelRefused
from agent.engines.model_files import check_model_folder, weight_files
from agent.engines.slots import ATTENTION
from agent.policy import EngineError


class ContextOverflow(EngineError):
    """A request needs more positions than the engine has. Raised before anything is sampled."""


def choose_device(device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """bf16 on a GPU; fp32 on a CPU, where bf16 is slower and exactness is the point."""
    if dtype is not None:
        return dtype
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_model(folder: str | Path, device: torch.device, dtype: torch.dtype) -> Any:
    """A causal LM from a folder with config.json and safetensors. Raises ModelRefused."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    folder = Path(folder)
    check_model_folder(folder)
    shows_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would run through the caller's live view
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise ModelRefused(f"{folder}: cannot load the model ({type(error).__name__}: {error})") from error
    finally:
        if shows_bar:
            logging.enable_progress_bar()
    model, info = loaded
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(kind):
            raise ModelRefused(
                f"{folder}: the weights do not fit config.json, {kind.replace('_', ' ')}: {_few(info[kind])}. "
                "Save model and configuration together with save_pretrained."
            )
    return model.to(device)


def prepare_model(model: Any) -> Any:
    """Set evaluation mode and slot attention; refuse architectures whose results would depend on the batch."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        raise ModelRefused(
            f"{config.model_type}: the embedded engine keeps plain key/value rows and this model has "
            f"{sorted(kinds)} with sliding_window={getattr(config, 'sliding_window', None)}. Serve it with vLLM."
        )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type in ("dynamic", "longrope"):
        raise ModelRefused(
            f"{config.model_type}: rope type {rope_type} depends on the longest request of the batch, so batching "
            "would change results. Serve it with vLLM."
        )
    model.eval()
    if any(module.training for module in model.modules()):
        raise ModelRefused(f"{config.model_type}: a module stays in training mode, its dropout would be on.")
    model.requires_grad_(False)
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:
        raise ModelRefused(f"{config.model_type}: does not take a custom attention function. Serve it with vLLM.")
    return model


def read_weights(source: str | Path | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict, or the safetensors of a folder (one file or sharded with an index), on the CPU."""
    if isinstance(source, Mapping):
        return dict(source)
    folder = Path(source)
    tensors: dict[str, Tensor] = {}
    try:
        for file in weight_files(folder):
            tensors.update(load_file(file))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise ModelRefused(f"{folder}: cannot read the weights ({type(error).__name__}: {error})") from error
    return tensors


def check_weights(model: Any, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs (parameter of the model, new value), complete and of equal shapes, or ModelRefused."""
    own = model.state_dict(keep_vars=True)
    unexpected = sorted(set(tensors) - set(own))
    given = {own[name].data_ptr() for name in tensors if name in own}
    missing = sorted(name for name, tensor in own.items() if name not in tensors and tensor.data_ptr() not in given)
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(own[name].shape)}"
        for name in tensors
        if name in own and tensors[name].shape != own[name].shape
    ]
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    for kind, names in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("misshapen", misshapen),
        ("not finite", broken),
    ):
        if names:
            raise ModelRefused(f"weights cannot be used by this model, {kind}: {_few(names)}. The old weights stay.")
    pairs: dict[int, tuple[str, Tensor, Tensor]] = {}
    for name, value in tensors.items():
        twin = pairs.get(own[name].data_ptr())
        if twin is not None and not torch.equal(twin[2], value):
            raise ModelRefused(f"{name} and {twin[0]} are tied in this model but differ in the update.")
        pairs[own[name].data_ptr()] = (name, own[name], value)
    return [(parameter, value) for _, parameter, value in pairs.values()]


def _few(names: object) -> str:
    listed = [str(name) for name in names]  # type: ignore[attr-defined]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
