"""Checkpoints of supervised fine-tuning: weights, AdamW's moments and the step, in safetensors and JSON.

Promises: a checkpoint is there whole or not at all; it goes on only under the settings that made it; loading gives the
next step bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trainer.folders import FolderError, new_folder, read_manifest, remove, sweep, verify
from trainer.publish import distinct_tensors

FORMAT = "sao-sft-state/1"
_TENSORS, _STATE = "tensors.safetensors", "state.json"


def save_state(target: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: str) -> None:
    """Write `target` and remove the older ones beside it."""
    tensors: dict[str, Tensor] = {f"model/{name}": value for name, value in distinct_tensors(model).items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{name}/{moment}"] = torch.as_tensor(value)
    if target.exists():
        remove(target)
    with new_folder(target, {"format": FORMAT, "step": step}, "sft_state") as folder:
        save_file(
            {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, folder / _TENSORS
        )
        (folder / _STATE).write_text(json.dumps({"step": step, "settings": settings}), encoding="utf-8")
    for older in target.parent.glob("s*"):
        if older.name < target.name:
            remove(older)


def newest_state(directory: Path) -> Path | None:
    """The newest undamaged checkpoint. Raises FolderError when there are some and none is whole."""
    if not directory.is_dir():
        return None
    sweep(directory)
    problem: FolderError | None = None
    for folder in sorted(directory.glob("s*"), reverse=True):
        try:
            verify(folder, FORMAT)
            return folder
        except FolderError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def settings_of(folder: Path) -> dict[str, Any]:
    """What the checkpoint was made with."""
    read_manifest(folder, FORMAT)
    return dict(json.loads(json.loads((folder / _STATE).read_text(encoding="utf-8"))["settings"]))


@torch.no_grad()
def load_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: str) -> int:
    """Into model and optimizer, in place; returns the steps done. Raises FolderError when it belongs to another run."""
    read_manifest(folder, FORMAT)
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    if state["settings"] != settings:
        changed = _difference(json.loads(state["settings"]), json.loads(settings))
        raise FolderError(f"{folder} was made with other settings ({changed}): repeat them, or name another --out")
    tensors = load_file(folder / _TENSORS)
    for name, own in distinct_tensors(model).items():
        own.copy_(tensors[f"model/{name}"])
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        prefix = f"optimizer/{name}/"
        moments = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if moments:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in moments.items()}
    return int(state["step"])


def _difference(before: dict[str, object], now: dict[str, object]) -> str:
    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    return "; ".join(f"{key}: {before.get(key)!r} then, {now.get(key)!r} now" for key in keys)
