"""One published version as servers are to take it: its files, kept for as long as they may be needed, and its proof."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.engines.vllm.faults import WeightUpdateFailed
from agent.engines.vllm.proof import file_hashes, probe_of_folder

_FILES = ("*.safetensors", "*.json")


@dataclass(frozen=True)
class PublishedWeights:
    folder: Path
    """Ours: stays until newer weights are served everywhere, whatever the publisher prunes."""
    version: int
    lineage: str
    probe: Mapping[str, Any]
    hashes: Mapping[str, str]

    @property
    def label(self) -> str:
        return f"{self.lineage}/v{self.version}"


def keep_weights(source: Path, into: Path, version: int, lineage: str) -> PublishedWeights:
    """Link (or copy) a model folder's weights and read what the proof needs. Blocks: run it in a thread."""
    if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
        raise WeightUpdateFailed(f"{source} holds no config.json with *.safetensors: nothing that a server could load.")
    folder = into / f"v{version:06d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pattern in _FILES:
        for file in source.glob(pattern):
            try:
                (folder / file.name).hardlink_to(file)
            except OSError:  # another file system
                shutil.copyfile(file, folder / file.name)
    return PublishedWeights(folder.resolve(), version, lineage, probe_of_folder(folder), file_hashes(folder))


def drop_others(kept: PublishedWeights) -> None:
    """Remove the other versions' folders beside it. Blocks."""
    for folder in kept.folder.parent.iterdir():
        if folder != kept.folder:
            shutil.rmtree(folder, ignore_errors=True)
