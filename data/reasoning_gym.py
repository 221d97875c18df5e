"""Tasks of reasoning-gym (extra `gym`), generated here: no download, as many as one likes.

Promises: "reasoning-gym:<task>" with a split and a number is always the same task (one version of the package); no two
splits share a seed; a generator whose answers are no numbers is refused, since our graders could not judge them. The
generator's own options follow the task: "reasoning-gym:chain_sum?max_terms=3&max_digits=1"; so does
`grading=last_integer`, for models too small to box an answer. Without it integers are graded as integers and other
numbers by math-verify; a grading that was asked for is that of every task, or the set is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import warnings
from typing import Any
from urllib.parse import parse_qsl

from data.installed import get_extra
from data.maths_rows import Grading, maths_task
from data.task import Task, TaskError

SPLITS = ("train", "heldout")
DEFAULT_COUNT = 1_000
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+|/[0-9]+)?")
_INSTRUCTION = re.compile(r"\s*(?:Give|Return|Provide) [^.\n]*(?:answer|result)[^.\n]*\.\s*\Z")
"""How the generator wants the answer: our presets say that."""


def generate(name: str, split: str, path: str | os.PathLike[str] | None = None, limit: int | None = None) -> list[Task]:
    """Raises TaskError."""
    task, _, options = name.partition(":")[2].partition("?")
    if path is not None:
        raise TaskError(f"{name} is generated: leave tasks.path empty")
    if split not in SPLITS:
        raise TaskError(f"{name} has no split {split!r}; it has {', '.join(SPLITS)}")
    try:
        with warnings.catch_warnings():  # the first import compiles a dependency whose source warns
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TaskError(f"{name} needs the package reasoning-gym: {get_extra('gym')} ({error})") from error
    if task not in DATASETS:
        known = ", ".join(sorted(DATASETS)[:200])
        raise TaskError(f"reasoning-gym has no task {task!r}: write reasoning-gym:<task>, one of {known}")
    seed = int.from_bytes(hashlib.sha256(f"{task}\0{split}".encode()).digest()[:4], "big")
    given = _options(name, options)
    grading = given.pop("grading", None)
    try:
        made = reasoning_gym.create_dataset(task, seed=seed, size=limit or DEFAULT_COUNT, **given)
    except (TypeError, AssertionError, ValueError) as error:
        known = ", ".join(
            field.name for field in dataclasses.fields(DATASETS[task][1]) if field.name not in ("seed", "size")
        )
        raise TaskError(f"{name}: the generator refuses its options ({error}); it has {known}") from error
    return [_task(made[number], number, name, split, grading) for number in range(len(made))]


def _options(name: str, text: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError as error:
        raise TaskError(f"{name}: write options as reasoning-gym:<task>?option=value&option=value ({error})") from error
    return {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    """A number, true, false, null or a list as JSON has them; else a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _task(entry: Any, number: int, name: str, split: str, grading: str | None) -> Task:
    answer = str(entry["answer"]).strip()
    if not _NUMBER.fullmatch(answer):
        raise TaskError(
            f"{name}, task {number}: its answer {answer[:60]!r} is no number, and only numbers can be graded here. "
            "Choose another task, for example reasoning-gym:chain_sum, gcd, lcm or basic_arithmetic"
        )
    integer = _INTEGER.fullmatch(answer) is not None
    if grading not in (None, Grading.SYMBOLIC) and not integer:
        raise TaskError(
            f"{name}, task {number}: its answer {answer[:60]!r} is no integer, so grading={grading} would never "
            "find it right. Leave the grading out (other numbers are then graded symbolically), or choose options or "
            "a task whose answers are integers"
        )
    row = {
        "id": f"{name}/{split}/{number:06d}",
        "problem": _INSTRUCTION.sub("", str(entry["question"])).strip(),
        "answer": answer,
        "grading": grading or str(Grading.INTEGER if integer else Grading.SYMBOLIC),
    }
    return maths_task(row, number, split=split, source=name, base_dir="")
