"""Is a model folder whole? Asked of the headers of its safetensors files alone, before a model is built from it.

Promises: a shard that the index names and that is not there, a file that a broken download cut short, and a folder that
holds fewer weights than its configuration asks for are refused by name; nothing of the model's size is read or
allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.policy import EngineError
from data.reading import InputError, parse_json, read_object

INDEX = "model.safetensors.index.json"
_MOST_HEADER = 100 << 20
"""As the format allows."""


class ModelRefused(EngineError):
    """The model folder or the weights cannot be used here; the text says why and what to do."""


def check_model_folder(folder: Path) -> None:
    """Raises ModelRefused. The configuration's own count is asked on a model without memory."""
    if not (folder / "config.json").is_file():
        raise ModelRefused(
            f"{folder}: no config.json, so no Hugging Face model. Point at a folder made by save_pretrained."
        )
    held = stored_tensors(folder)
    # A number of layers that no file can hold is not tried out: building them would take for ever.
    layers = read_config(folder).get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(held):
        raise ModelRefused(
            f"{folder}: config.json asks for {layers:,} layers and the safetensors files hold {len(held):,} tensors: a "
            "part is missing, or they are of another model. Fetch or copy the folder again."
        )
    wanted = _wanted_numbers(folder)
    stored = sum(math.prod(shape) for shape in held.values())
    if stored < wanted:
        raise ModelRefused(
            f"{folder}: config.json asks for {wanted:,} weights and the safetensors files hold {stored:,}: a part is "
            "missing, or they are of another model. Fetch or copy the folder again."
        )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises ModelRefused."""
    try:
        return read_object(folder / "config.json")
    except InputError as error:
        raise ModelRefused(f"{error}. It is no configuration of a Hugging Face model.") from error


def stored_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of everything in the folder's safetensors files. Raises ModelRefused."""
    held: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        held.update(_header(file))
    index = folder / INDEX
    if index.is_file():
        lost = sorted(set(_weight_map(index)) - set(held))
        if lost:
            raise ModelRefused(f"{folder}: {INDEX} names {len(lost)} weights that no file holds, e.g. {lost[0]}.")
    return held


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights. Raises ModelRefused where one is not there."""
    index = folder / INDEX
    names = sorted(set(_weight_map(index).values())) if index.is_file() else ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = [file.name for file in sorted(folder.glob("*")) if file.suffix in (".bin", ".pt", ".pth", ".gguf")]
        hint = f"; {others[0]} is no safetensors and is not loaded" if others else ""
        raise ModelRefused(
            f"{folder}: {len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:3])}{hint}. "
            "Fetch or copy the folder again."
        )
    return [folder / name for name in names]


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        found = read_object(index)["weight_map"]
        if isinstance(found, dict) and all(isinstance(name, str) and "/" not in name for name in found.values()):
            return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelRefused(f"{index}: cannot be read ({type(error).__name__}: {error})") from error
    raise ModelRefused(f"{index}: weight_map does not name files of this folder")


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """A safetensors file is the header's length (8 bytes), the header as JSON, and the data."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(size, _MOST_HEADER):
                raise ValueError("its header is longer than the file")
            header = parse_json(opened.read(length).decode("utf-8"), "its header")
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = 8 + length + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in entries.items()}
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, IndexError, struct.error) as error:
        raise ModelRefused(f"{file}: no safetensors file, or cut off ({error}). Fetch or copy it again.") from error
    if size < end:
        raise ModelRefused(f"{file}: cut off: {size:,} bytes of {end:,}. Fetch or copy it again.")
    return shapes


def _wanted_numbers(folder: Path) -> int:
    """Numbers in the model's parameters, tied ones once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # transformers checks little: whatever a value breaks in there is raised
        raise ModelRefused(f"{folder}: cannot make a model of config.json ({type(error).__name__}: {error})") from error
    return sum(parameter.numel() for parameter in model.parameters())
