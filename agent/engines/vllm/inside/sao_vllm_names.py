"""Published tensors under the names and shapes of a checkpoint, which is what vLLM's loaders read.

The trainer publishes its state dict. For most models that is the checkpoint's own layout; a mixture of experts keeps
its experts stacked in memory (`experts.gate_up_proj` of all of them) and apart on disk. transformers knows both and how
to go back; its own rule is used, tensor by tensor, so that no second copy of the model is ever made.
"""

import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

_STACKED = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")


def checkpoint_tensors(folder: pathlib.Path, device: str = "cpu") -> Iterator[tuple[str, Any]]:
    """Name and tensor of everything published in `folder`, one at a time. `device`: "meta" reads no data."""
    tied = bool(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings"))
    as_saved = _reverter(folder) if is_stacked(folder) else lambda name, tensor: {name: tensor}
    for name, tensor in stored_tensors(folder, device):
        if not (tied and name == "lm_head.weight"):  # the embedding, which is there too
            yield from as_saved(name, tensor).items()


def is_stacked(folder: pathlib.Path) -> bool:
    """Whether a folder's tensors are laid out as in memory, not as in a checkpoint."""
    return any(_STACKED.search(name) for name in _names(folder))


def _names(folder: pathlib.Path) -> Iterator[str]:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as opened:
            yield from opened.keys()


def _reverter(folder: pathlib.Path) -> Callable[[str, Any], dict[str, Any]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    return lambda name, tensor: revert_weight_conversion(model, {name: tensor})


def stored_tensors(folder: pathlib.Path, device: str = "cpu") -> Iterator[tuple[str, Any]]:
    """Every tensor of a folder's safetensors, one at a time; `meta`: its shape and dtype alone, nothing is read."""
    import torch
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                if device != "meta":
                    yield name, opened.get_tensor(name).to(device)
                    continue
                part = opened.get_slice(name)
                dtype = getattr(torch, _DTYPES[part.get_dtype()])
                yield name, torch.empty(part.get_shape(), dtype=dtype, device="meta")


_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""What a safetensors header calls a dtype → its name in torch."""
