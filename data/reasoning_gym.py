"""Tasks of reasoning-gym (extra `gym`), generated here: no download, as many as one likes.

Promises: "reasoning-gym:<task>" with a split and a number is always the same task (one version of the package); no two
splits share a seed; a generator whose answers are no numbers is refused, since our graders could not judge them.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

from data.maths_rows import maths_task
from data.task import Task, TaskError

SPLITS = ("train", "heldout")
DEFAULT_COUNT = 1_000
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+|/[0-9]+)?")
_INSTRUCTION = re.compile(r"\s*(?:Give|Return|Provide) [^.\n]*(?:answer|result)[^.\n]*\.\s*\Z")
"""How the generator wants the answer: our presets say that."""


def generate(name: str, split: str, path: str | os.PathLike[str] | None = None, limit: int | None = None) -> list[Task]:
    """Raises TaskError."""
    task = name.partition(":")[2]
    if path is not None:
        raise TaskError(f"{name} is generated: leave tasks.path empty")
    if split not in SPLITS:
        raise TaskError(f"{name} has no split {split!r}; it has {', '.join(SPLITS)}")
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TaskError(
            f"{name} needs the package reasoning-gym: EXTRAS=dev,gym scripts/install.sh ({error})"
        ) from error
    if task not in DATASETS:
        known = ", ".join(sorted(DATASETS)[:200])
        raise TaskError(f"reasoning-gym has no task {task!r}: write reasoning-gym:<task>, one of {known}")
    seed = int.from_bytes(hashlib.sha256(f"{task}\0{split}".encode()).digest()[:4], "big")
    made = reasoning_gym.create_dataset(task, seed=seed, size=limit or DEFAULT_COUNT)
    return [_task(made[number], number, name, split) for number in range(len(made))]


def _task(entry: Any, number: int, name: str, split: str) -> Task:
    answer = str(entry["answer"]).strip()
    if not _NUMBER.fullmatch(answer):
        raise TaskError(
            f"{name}, task {number}: its answer {answer[:60]!r} is no number, and only numbers can be graded here. "
            "Choose another task, for example reasoning-gym:chain_sum, gcd, lcm or basic_arithmetic"
        )
    row = {
        "id": f"{name}/{split}/{number:06d}",
        "problem": _INSTRUCTION.sub("", str(entry["question"])).strip(),
        "answer": answer,
        "grading": "integer" if _INTEGER.fullmatch(answer) else "symbolic",
    }
    return maths_task(row, number, split=split, source=name, base_dir="")
