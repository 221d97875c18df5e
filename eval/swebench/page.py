"""A grading run as one page: per instance verdict, findings, patch, test log, and the turns of this project's agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.page import Instance, Section, write_page
from eval.swebench.outcome import Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.report import figure_rows
from eval.swebench.store import EvalFolder

_TONE = {Verdict.RESOLVED: "good", Verdict.UNRESOLVED: "bad", Verdict.EMPTY: "none", Verdict.ERROR: "error"}


def write_swebench_page(
    folder: EvalFolder,
    report: Mapping[str, Any],
    predictions: Mapping[str, Prediction],
    graded: Mapping[str, Graded],
    turns: Mapping[str, Sequence[Section]] | None = None,
) -> Path:
    """`turns`: the trajectory of each instance, where this project's agent made the patch. Raises OSError."""
    title = f"{folder.name}: {report['model']} on SWE-bench {report['split']}"
    instances = _instances(folder, report, predictions, graded, turns or {})
    return write_page(folder.path / "report.html", title, dict(figure_rows(report)), instances)


def _instances(
    folder: EvalFolder,
    report: Mapping[str, Any],
    predictions: Mapping[str, Prediction],
    graded: Mapping[str, Graded],
    turns: Mapping[str, Sequence[Section]],
) -> Iterator[Instance]:
    for name in sorted([*graded, *report["incomplete_ids"]]):
        one = graded.get(name)
        if one is None:
            yield Instance(name, "incomplete", "none", {"why": "no prediction for it, or not graded yet"})
            continue
        place = folder.place(predictions[name])
        sections = [
            _file(folder, place / "patch.diff", "patch", "diff") or _given(predictions[name]),
            _file(folder, place / "test_output.txt", "test log"),
            _file(folder, place / "eval.sh", "evaluation script"),
        ]
        if turns.get(name):
            sections.insert(0, Section(f"trajectory, {len(turns[name])} parts", parts=turns[name]))
        tests = _tests(one.report)
        yield Instance(
            name,
            str(one.verdict),
            _TONE[one.verdict],
            {
                "why": one.why or "—",
                "tests": tests or "—",
                "time": f"{one.seconds:.1f} s, {one.test_seconds:.1f} s of it tests; attempts {one.attempts}",
                "image": one.image[:19] or "—",
                "network": one.network,
                "patch went on by": one.applied or "—",
            },
            [str(finding) for finding in one.suspicious],
            [section for section in sections if section is not None],
        )


def _tests(report: Mapping[str, Any]) -> str:
    status = report.get("tests_status") or {}
    counts = []
    for kind, parts in status.items():
        good, bad = len(parts.get("success", ())), len(parts.get("failure", ()))
        if good or bad:
            failing = f" (not: {', '.join(parts['failure'][:5])}{' …' if bad > 5 else ''})" if bad else ""
            counts.append(f"{kind} {good} of {good + bad}{failing}")
    return "; ".join(counts)


def _given(prediction: Prediction) -> Section | None:
    return Section("patch", prediction.patch, "diff") if prediction.patch else None


def _file(folder: EvalFolder, path: Path, title: str, kind: str = "") -> Section | None:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    link = str(path.relative_to(folder.path))
    return Section(f"{title}, {len(text):,} characters", text, kind, link) if text else None
