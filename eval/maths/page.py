"""A maths suite as one page: per problem its reference answer and samples, each with its verdict and its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.maths.judged import judge_mark, judge_rows
from eval.maths.report import figure_rows
from eval.page import Instance, Section, write_page


def write_maths_page(
    path: Path,
    name: str,
    report: Mapping[str, Any],
    problems: Mapping[str, str],
    turns: Mapping[str, Sequence[Section]],
) -> Path:
    """`problems`: texts by task id; `turns`: of each sample, by episode id. Raises OSError."""
    rows = figure_rows(report, judge_rows(report))
    return write_page(path, name, dict(rows), _instances(report, problems, turns))


def _instances(
    report: Mapping[str, Any], problems: Mapping[str, str], turns: Mapping[str, Sequence[Section]]
) -> Iterator[Instance]:
    mark = judge_mark(report) if "judge" in report else ""
    for problem, found in report["per_problem"].items():
        samples = found["samples"]
        right = sum(each["correct"] for each in samples)
        verdict, tone = ("none right", "bad") if samples else ("not graded", "none")
        if right:
            verdict, tone = ("all right", "good") if right == len(samples) else ("some right", "none")
        yield Instance(
            problem,
            verdict,
            tone,
            {"right": f"{right} of {len(samples)}", "reference": str(found["gold"])},
            sections=[
                Section("problem", problems.get(problem, ""), "prompt"),
                *(_sample(number, each, turns, mark) for number, each in enumerate(samples)),
            ],
        )
    for problem, why in report["not_scored"].items():
        yield Instance(problem, "not scored", "none", {"why": why})


def _sample(number: int, each: Mapping[str, Any], turns: Mapping[str, Sequence[Section]], mark: str) -> Section:
    answer = "no answer" if each["answer"] is None else f"answer {str(each['answer'])[:80]}"
    title = f"sample {number}: {'right' if each['correct'] else 'wrong'} · {answer} ({each['why'].replace('_', ' ')})"
    title += f" · {each['exit']} · {each['tokens']:,} tokens · {each['calls']} calls"
    parts = [*turns.get(each["episode"], ())]
    if judge := each.get("judge"):
        title += f" · {mark}: {judge['verdict']}"
        parts.append(Section(f"{mark}: {judge['verdict']}", judge.get("error", "") + "\n\n" + judge["text"], "quoted"))
    return Section(title, parts=parts)
