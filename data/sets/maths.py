"""Open maths sets with answers that can be checked, for training."""

from __future__ import annotations

import re
from typing import Any

from data.sets import Row, TaskSet
from data.sets.columns import text
from data.task import TaskError

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INSTRUCTION = re.compile(
    r"\A\s*Solve the following math problem step by step\..*?\n\n(?P<problem>.*?)\n\nRemember to put your answer.*\Z",
    re.DOTALL,
)
"""What DAPO's rows put around the problem; our presets say how to answer."""


def dapo(row: Row, number: int) -> dict[str, Any]:
    """open-r1's rows have the bare problem in `prompt` and the answer in `solution`; the original's hold chat messages
    and `reward_model.ground_truth`."""
    source = "dapo-math-17k"
    extra = row.get("extra_info")
    prompt, reward = row.get("prompt"), row.get("reward_model")
    if isinstance(prompt, list):
        if not prompt or not isinstance(prompt[0], dict):
            raise TaskError(f"{source}, row {number + 1}: column prompt is an empty list or holds no messages")
        prompt = "\n\n".join(str(message.get("content", "")) for message in prompt)
    if isinstance(prompt, str) and (found := _INSTRUCTION.match(prompt)):
        prompt = found["problem"]
    answer = row.get("solution")
    if not answer and isinstance(reward, dict):
        answer = reward.get("ground_truth")
    made = {"prompt": prompt, "solution": answer}
    name = extra.get("index") if isinstance(extra, dict) else None
    return {
        "id": f"dapo/{name or number}",
        "problem": text(made, number, source, "prompt"),
        "answer": text(made, number, source, "solution").strip(),
        "grading": "integer",
    }


def deepscaler(row: Row, number: int) -> dict[str, Any]:
    answer = text(row, number, "deepscaler", "answer").strip()
    return {
        "id": f"deepscaler/{number}",
        "problem": text(row, number, "deepscaler", "problem"),
        "answer": answer,
        "grading": "integer" if _INTEGER.fullmatch(answer) else "symbolic",
    }


SETS = (
    TaskSet(
        "dapo-math-17k",
        "open-r1/DAPO-Math-17k-Processed",
        "maths",
        ("train",),
        dapo,
        "Apache-2.0 (BytedTsinghua-SIA/DAPO-Math-17k)",
        "about 17 thousand",
        subset="en",
        note="answers are integers; rows of the original set are read too",
    ),
    TaskSet(
        "deepscaler",
        "agentica-org/DeepScaleR-Preview-Dataset",
        "maths",
        ("train",),
        deepscaler,
        "MIT",
        "about 40 thousand",
        note="AIME before 2024, AMC, Omni-MATH and STILL; plain integers are graded exactly, the rest by math-verify",
    ),
)
