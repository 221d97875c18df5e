"""All that is needed to go on exactly: both models, both optimizers, the random state and the trainer's plain values.

    checkpoints/s000120/  tensors.safetensors · state.json · manifest.json (hashes)

Promises: safetensors and JSON only, no pickle; a checkpoint is there whole or not at all; loading it into freshly built
models and optimizers gives the same next step, bit for bit, at the same thread count; the newest undamaged one is used
and a damaged one is named; the settings' hash is compared, so that a run never goes on under other mathematics.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trainer.folders import FolderError, new_folder, read_manifest, remove, sweep, verify
from trainer.publish import distinct_tensors
from trainer.state import TrainerState
from trainer.update import Learner

FORMAT = "sao-checkpoint/1"
TENSORS, STATE = "tensors.safetensors", "state.json"
_NAME = re.compile(r"s(\d{6,})")


class CheckpointError(FolderError):
    """A checkpoint does not fit this run; the text says what differs."""


@dataclass(frozen=True)
class Found:
    path: Path
    damaged: tuple[str, ...]
    """What newer checkpoints were passed over, and why."""


class Checkpoints:
    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        self.directory = directory
        self.keep = max(1, keep)

    def steps(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return sorted(int(match[1]) for path in self.directory.iterdir() if (match := _NAME.fullmatch(path.name)))

    def path(self, step: int) -> Path:
        return self.directory / f"s{step:06d}"

    def open_for_writing(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        sweep(self.directory)

    def save(self, learner: Learner, state: TrainerState, settings: str) -> Path:
        """`settings`: hash of what decides the mathematics. A folder of the same step (from before a roll-back) is
        replaced; older ones go, all but the last `keep`."""
        target = self.path(state.step)
        if target.exists():
            remove(target)
        manifest = {"format": FORMAT, "step": state.step, "settings": settings, "threads": torch.get_num_threads()}
        with new_folder(target, manifest, "checkpoint") as folder:
            save_file(pack_tensors(learner), folder / TENSORS)
            (folder / STATE).write_text(json.dumps(state.to_dict(), allow_nan=False), encoding="utf-8")
        for step in self.steps()[: -self.keep]:
            remove(self.path(step))
        return target

    def newest(self) -> Found | None:
        """The newest that verifies, or None. Raises CheckpointError when there are some and none does."""
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                verify(self.path(step), FORMAT)
            except FolderError as error:
                damaged.append(str(error))
                continue
            return Found(self.path(step), tuple(damaged))
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be used: {damaged[0]}. Restore it from a copy, or begin anew"
            )
        return None

    @staticmethod
    def load(path: Path, learner: Learner, settings: str) -> TrainerState:
        """Into models and optimizers in place. Raises CheckpointError when it belongs to other settings or shapes."""
        manifest = read_manifest(path, FORMAT)
        if manifest["settings"] != settings:
            raise CheckpointError(
                f"{path} was made under other training settings (hash {manifest['settings']}, now {settings}): go on "
                "with those of the run's config.toml, or start a new run"
            )
        unpack_tensors(load_file(path / TENSORS), learner, path)
        return TrainerState.from_dict(json.loads((path / STATE).read_text(encoding="utf-8")))


# --- tensors ----------------------------------------------------------------------------------------------------------


def _parts(learner: Learner) -> list[tuple[str, nn.Module, torch.optim.Optimizer]]:
    parts: list[tuple[str, nn.Module, torch.optim.Optimizer]] = [("policy", learner.policy, learner.policy_optimizer)]
    if learner.critic is not None and learner.critic_optimizer is not None:
        parts.append(("critic", learner.critic, learner.critic_optimizer))
    return parts


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The optimizer's parameters under the model's names, in the optimizer's order."""
    by_identity = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(by_identity[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def pack_tensors(learner: Learner) -> dict[str, Tensor]:
    """`policy/…`, `critic/…`, `policy_optimizer/<parameter>/<moment>`, `rng/…`, all on the CPU."""
    tensors: dict[str, Tensor] = {"rng/cpu": torch.get_rng_state()}
    if learner.device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(learner.device)
    for kind, model, optimizer in _parts(learner):
        for name, tensor in distinct_tensors(model).items():
            tensors[f"{kind}/{name}"] = tensor
        for name, parameter in _names(model, optimizer):
            for moment, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{kind}_optimizer/{name}/{moment}"] = torch.as_tensor(value)
    # Clones: safetensors refuses views, and the models go on training.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def unpack_tensors(tensors: dict[str, Tensor], learner: Learner, where: Path) -> None:
    left = dict(tensors)
    for kind, model, optimizer in _parts(learner):
        for name, own in distinct_tensors(model).items():
            saved = left.pop(f"{kind}/{name}", None)
            if saved is None or saved.shape != own.shape or saved.dtype != own.dtype:
                found = "nothing" if saved is None else f"{saved.dtype} {tuple(saved.shape)}"
                raise CheckpointError(f"{where}: {kind}/{name} should be {own.dtype} {tuple(own.shape)}, found {found}")
            own.copy_(saved)
        optimizer.state.clear()
        for name, parameter in _names(model, optimizer):
            prefix = f"{kind}_optimizer/{name}/"
            moments = {key: left.pop(key) for key in list(left) if key.startswith(prefix)}
            state: dict[str, Any] = {key.removeprefix(prefix): value for key, value in moments.items()}
            # AdamW keeps its step counter beside the parameter when fused, on the CPU otherwise.
            on_device = {key: value.to(parameter.device) for key, value in state.items()}
            if on_device:
                optimizer.state[parameter] = on_device
    torch.set_rng_state(left.pop("rng/cpu"))
    if (cuda := left.pop("rng/cuda", None)) is not None and learner.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, learner.device)
    if left:
        raise CheckpointError(f"{where}: holds tensors this run has no place for, first {sorted(left)[0]!r}")
