"""The files by which the sides of a training run, its view and its report see each other, besides the trainer's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROLLOUTS = "rollout_progress.json"
"""Replaced all the time by the rollouts' side."""
HELDOUT = "heldout.jsonl"
"""Scores on held-out tasks while training, one line each."""
CRITIC = "critic"
"""The pretrained critic of a run that made its own."""
SCORES = "scores.json"
"""Scores before and after, by split."""


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
