"""Weights on their way back to the engines: `publish`, `newest`, `fetch`. Here through a folder per version.

    weights/v000012/  model.safetensors · config.json · manifest.json

Promises: a version is visible whole or not at all, and its reader checks every hash; a version number is never used
twice: only one above the newest visible is taken, and the newest is never pruned; tied weights are stored once; a
version that somebody holds (`fetch`) is not pruned, and a holder that died holds nothing.
A faster transport (an engine's own weight-transfer calls) has the same three verbs.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.folders import MANIFEST, FolderError, new_folder, read_manifest, remove, sweep, verify

FORMAT = "sao-weights/1"
WEIGHTS = "model.safetensors"
_NAME = re.compile(r"v(\d{6,})")


class PublishError(FolderError):
    """A version cannot be published or fetched; the text says which and what to do."""


@dataclass(frozen=True, order=True)
class Version:
    """Names weights. `number` alone orders and identifies them in a run; `lineage` says which line of descent."""

    number: int
    lineage: str

    def __str__(self) -> str:
        return f"{self.lineage}/v{self.number}"


class WeightTransport(abc.ABC):
    @abc.abstractmethod
    def publish(self, model: nn.Module, version: Version, about: Mapping[str, Any]) -> None:
        """Make the model's weights available as `version`; `about` (JSON-able) goes with them."""

    @abc.abstractmethod
    def newest(self) -> Version | None:
        """The newest version there is."""

    @abc.abstractmethod
    def fetch(self, version: Version) -> contextlib.AbstractContextManager[Path]:
        """A verified folder with the version's weights, kept while the context lasts. Raises PublishError."""


class WeightFolder(WeightTransport):
    """`keep` newest versions stay besides those in use."""

    def __init__(self, directory: Path, *, keep: int = 3, dtype: torch.dtype | None = None) -> None:
        self.directory = directory
        self.keep = max(1, keep)
        self.dtype = dtype
        """Stored precision; None: as trained."""

    def open_for_writing(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        sweep(self.directory)

    def path(self, number: int) -> Path:
        return self.directory / f"v{number:06d}"

    def numbers(self) -> list[int]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def publish(self, model: nn.Module, version: Version, about: Mapping[str, Any]) -> None:
        numbers = self.numbers()
        if numbers and version.number <= numbers[-1]:
            raise PublishError(
                f"version {version} does not follow version {numbers[-1]} in {self.directory}: a number is used once. "
                "Another trainer may be writing there; end it, or use another run"
            )
        manifest = {
            "format": FORMAT,
            "version": version.number,
            "lineage": version.lineage,
            "created": time.time(),
            "about": dict(about),
        }
        with new_folder(self.path(version.number), manifest, "publish") as folder:
            write_model(model, folder, self.dtype)
        self.prune()

    def newest(self) -> Version | None:
        numbers = self.numbers()
        return self.version(numbers[-1]) if numbers else None

    def version(self, number: int) -> Version:
        manifest = read_manifest(self.path(number), FORMAT)
        return Version(int(manifest["version"]), str(manifest["lineage"]))

    @contextlib.contextmanager
    def fetch(self, version: Version) -> Iterator[Path]:
        folder = self.path(version.number)
        with _held(folder, fcntl.LOCK_SH):
            manifest = verify(folder, FORMAT)
            if manifest["lineage"] != version.lineage:
                raise PublishError(f"{folder} is of lineage {manifest['lineage']!r}, wanted {version.lineage!r}")
            yield folder

    def prune(self) -> list[int]:
        """Remove all but the `keep` newest, except versions in use; returns what was removed."""
        removed = []
        for number in self.numbers()[: -self.keep]:
            try:
                with _held(self.path(number), fcntl.LOCK_EX | fcntl.LOCK_NB):
                    remove(self.path(number))
                    removed.append(number)
            except (BlockingIOError, PublishError):
                continue  # in use, or another pruner was faster
        return removed


@contextlib.contextmanager
def _held(folder: Path, how: int) -> Iterator[None]:
    """A lock on the version's manifest: the kernel drops it when its holder dies."""
    try:
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
    except FileNotFoundError:
        raise PublishError(f"{folder} is not there: it was pruned, or never published") from None
    try:
        fcntl.flock(descriptor, how)
        if not (folder / MANIFEST).exists():  # removed between opening and locking
            raise PublishError(f"{folder} was pruned meanwhile")
        yield
    finally:
        os.close(descriptor)


def distinct_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with tied weights once (under the first of their names), detached."""
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        key = (tensor.data_ptr(), tensor.numel())
        if key[0] and key in seen:
            continue
        seen.add(key)
        kept[name] = tensor.detach()
    return kept


def write_model(model: nn.Module, folder: Path, dtype: torch.dtype | None = None) -> None:
    """config.json and model.safetensors: a folder that transformers and the engines load."""
    tensors = {
        name: tensor.to("cpu", dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in distinct_tensors(model).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    model.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
