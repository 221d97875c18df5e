"""The maths benchmarks of `sao eval`. Their task ids are <suite>/<id>, so that no training takes one for its own."""

from __future__ import annotations

import functools
from typing import Any

from data.sets import Row, TaskSet
from data.sets.columns import text

_PROBLEM = ("problem", "question", "Problem")
_ANSWER = ("answer_raw", "answer", "Short Answer", "label")
_KEPT = ("category", "subcategory", "Category", "Subcategory", "answer_type")


def _convert(suite: str, grading: str, row: Row, number: int) -> dict[str, Any]:
    names = ("id", "Problem ID", "problem_idx", "uid")
    given = next((str(row[name]) for name in names if row.get(name) not in (None, "")), f"{number + 1:03d}")
    kept = {name: row[name] for name in _KEPT if row.get(name)}
    return {
        **kept,
        "id": f"{suite}/{given}",
        "problem": text(row, number, suite, *_PROBLEM),
        "answer": text(row, number, suite, *_ANSWER),
        "grading": grading,
    }


SETS = (
    TaskSet(
        "aime2025",
        "MathArena/aime_2025",
        "maths",
        ("train",),
        functools.partial(_convert, "aime2025", "integer"),
        "CC-BY-NC-SA-4.0 (the collection; the problems are the MAA's)",
        "30",
        evaluation=True,
        note="the hub calls its only split train",
    ),
    TaskSet(
        "beyondaime",
        "ByteDance-Seed/BeyondAIME",
        "maths",
        ("test",),
        functools.partial(_convert, "beyondaime", "integer"),
        "CC0-1.0",
        "100",
        evaluation=True,
    ),
    TaskSet(
        "imo-answerbench",
        "Hwilner/imo-answerbench",
        "maths",
        ("train",),
        functools.partial(_convert, "imo-answerbench", "symbolic"),
        "CC-BY-4.0",
        "400",
        evaluation=True,
        note="published as imobench/answerbench_v2.csv of github.com/google-deepmind/superhuman; the hub has mirrors",
    ),
)
