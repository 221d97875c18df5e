"""The critic: a full-size body of its own under a scalar head, and how it rests on disk. What of it is frozen:
trainer/freeze.py.

Promises: the head is fp32 (or wider), starts at zero and is never re-initialised on load (a folder without it is an
error); a saved critic is weights and a manifest with their hash, never optimizer moments.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from data.reading import InputError, read_object
from trainer.logprobs import body_of, hidden_states

FORMAT = "sao-critic/1"
WEIGHTS, MANIFEST = "critic.safetensors", "manifest.json"


class CriticError(ValueError):
    """A critic folder or freezing is unusable; the text says what to do."""


class Critic(nn.Module):
    """Token ids -> one value per position. Position p values the state after token p, so V(a_t) is read at t - 1."""

    body: Any
    """A Hugging Face model without head."""

    def __init__(self, body: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.body = body
        parameter = next(body.parameters())
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        self.head = nn.Linear(hidden_size, 1, dtype=dtype, device=parameter.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_policy(cls, policy: nn.Module) -> Critic:
        """Same start as the policy: a copy of its body (the policy is not touched)."""
        body = copy.deepcopy(body_of(policy))
        body.requires_grad_(True)
        return cls(body, _hidden_size(body))

    def forward(self, tokens: Tensor, gather: Tensor | None = None) -> Tensor:
        """[b, L] -> values [b, L], or [K] at the places `gather` of the flattened [b * L]."""
        hidden = hidden_states(self.body, tokens)
        if gather is not None:
            hidden = hidden.reshape(-1, hidden.shape[-1]).index_select(0, gather)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)


def _hidden_size(body: Any) -> int:
    return int(body.config.hidden_size)


# --- on disk ----------------------------------------------------------------------------------------------------------


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_critic(critic: Critic, path: str | Path, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write config.json, critic.safetensors and manifest.json as a new folder, visible at once or not at all.

    `provenance` (JSON-able) goes into the manifest: tokenizer fingerprint, base model hash, data hash, step.
    """
    target = Path(path)
    if target.exists():
        raise CriticError(f"{target} exists: a critic folder is written once. Choose a new name or remove it")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    critic.body.config.save_pretrained(partial)
    save_file({k: v.detach().cpu().contiguous() for k, v in critic.state_dict().items()}, partial / WEIGHTS)
    manifest = {
        "format": FORMAT,
        "body": type(critic.body).__name__,
        "dtype": str(next(critic.body.parameters()).dtype).removeprefix("torch."),
        "sha256": _sha256(partial / WEIGHTS),
        "provenance": dict(provenance or {}),
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    for name in (WEIGHTS, MANIFEST):
        with (partial / name).open("rb") as file:
            os.fsync(file.fileno())
    partial.rename(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself must survive a power cut
    finally:
        os.close(directory)
    return target


def read_manifest(path: str | Path) -> dict[str, Any]:
    file = Path(path) / MANIFEST
    try:
        if not file.exists():
            raise CriticError(f"{file} is missing: no critic folder (make one with `sao pretrain-value`)")
        manifest = read_object(file)
    except InputError as error:
        raise CriticError(f"{error}: damaged; make the critic again") from None
    if manifest.get("format") != FORMAT:
        found = manifest.get("format")
        raise CriticError(f"{file} has format {found!r}, this version reads {FORMAT!r}")
    return manifest


def load_critic(path: str | Path, device: torch.device | str = "cpu") -> Critic:
    """Body and head exactly as saved. Raises `CriticError` on a changed file or any missing or foreign weight."""
    folder = Path(path)
    manifest = read_manifest(folder)
    if not (folder / WEIGHTS).is_file():
        raise CriticError(f"{folder / WEIGHTS} is missing: make the critic again")
    if (digest := _sha256(folder / WEIGHTS)) != manifest["sha256"]:
        raise CriticError(f"{folder / WEIGHTS} has hash {digest[:12]}, its manifest says {manifest['sha256'][:12]}")
    config = AutoConfig.from_pretrained(folder)
    body = AutoModel.from_config(config, dtype=getattr(torch, manifest["dtype"]))
    if type(body).__name__ != manifest["body"]:
        raise CriticError(f"{folder} holds a {manifest['body']}, its config builds a {type(body).__name__}")
    critic = Critic(body, _hidden_size(body))
    weights = load_file(folder / WEIGHTS)
    missing, foreign = critic.load_state_dict(weights, strict=False)
    if missing or foreign:
        raise CriticError(
            f"{folder / WEIGHTS} lacks {list(missing)[:3]} and has unknown {list(foreign)[:3]}: nothing is "
            "re-initialised; make the critic again for this model"
        )
    return critic.to(device).eval()
