"""Where a run's trainer reads and writes, and how it tells the other process how far it is. Imports nothing heavy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainerPaths:
    run: Path

    @property
    def weights(self) -> Path:
        return self.run / "weights"

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    @property
    def journal(self) -> Path:
        return self.run / "trainer.jsonl"

    @property
    def metrics(self) -> Path:
        return self.run / "metrics.jsonl"

    @property
    def progress(self) -> Path:
        return self.run / "trainer_progress.json"


def replace_file(path: Path, values: Mapping[str, Any]) -> None:
    """Readers see the old values or the new ones. Not durable: made to be replaced."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    os.replace(temporary, path)
