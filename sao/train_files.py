"""The files by which the sides of a training run, its view and its report see each other, besides the trainer's own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.reading import InputError, parse_json, read_bytes, read_object
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
    """Empty where there is none yet. Its writer replaces it as a whole, so a damaged one is an InputError."""
    return read_object(path) if path.exists() else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines, each an object; a torn last one is left out. Raises InputError."""
    if not path.exists():
        return []
    # Bytes first: a torn line may end in the middle of a character.
    whole = read_bytes(path).rpartition(b"\n")[0]
    found = []
    for number, line in enumerate(whole.split(b"\n"), 1):
        if line.strip():
            value = parse_json(line.decode("utf-8", "replace"), f"{path}, line {number}")
            if not isinstance(value, dict):
                raise InputError(f"{path}, line {number}: is a JSON {type(value).__name__}, expected an object")
            found.append(value)
    return found
