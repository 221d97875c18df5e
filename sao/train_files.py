"""The files by which the sides of a training run, its view and its report see each other, besides the trainer's own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sao.rundir import write_atomically

ROLLOUTS = "rollout_progress.json"
"""Replaced all the time by the rollouts' side."""
HELDOUT = "heldout.jsonl"
"""Scores on held-out tasks while training, one line each."""
CRITIC = "critic"
"""The pretrained critic of a run that made its own."""
SCORES = "scores.json"
"""Scores before and after, by split."""
STAGES = "stages.json"
"""Seconds that each stage of the run took, all its starts together."""


@contextlib.contextmanager
def stage(run: Path, name: str) -> Iterator[None]:
    """Add the time of the block to the run's stage `name`, also when it fails; a killed start is not counted."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds = read_json(run / STAGES)
        seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - began, 1)
        write_atomically(run / STAGES, json.dumps(seconds, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is none yet (its writer replaces it as a whole)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines; a torn last one is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line]
