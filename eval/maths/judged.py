"""The judge's part of a report: its own figures, marked as judged, beside the rules' which stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from eval.maths.judge import Judgement, JudgePrompt, Question, judged_samples
from eval.maths.report import Samples, figures


def with_judge(
    report: Mapping[str, Any],
    samples: Samples,
    asked: Mapping[tuple[str, int], Question],
    made: Mapping[Question, Judgement],
    *,
    prompt: JudgePrompt,
    model: str,
    which: str,
) -> dict[str, Any]:
    """The report with `judge` (how), `judged` (figures) and the judge's words beside each sample it was asked about."""
    judgements = {place: made[question] for place, question in asked.items()}
    decided = {place: one for place, one in judgements.items() if one.correct is not None}
    turned = Counter((samples.made[place].correct, one.correct) for place, one in decided.items())
    errors = Counter(one.error for one in judgements.values() if one.correct is None)
    places = {one.episode: place for place, one in samples.made.items()}
    names = [task.task_id for task in samples.tasks]
    told = {**report, "per_problem": {}}
    told["judge"] = {
        "model": model,
        "answered_by": dict(sorted(Counter(one.model or "not said" for one in decided.values()).items())),
        "prompt": prompt.name,
        "prompt_sha256": prompt.sha256,
        "temperature": prompt.temperature,
        "answers": which,
        "asked": len(judgements),
        "decided": len(decided),
        "coverage": len(decided) / len(judgements) if judgements else 1.0,
        "turned_right": turned[False, True],
        "turned_wrong": turned[True, False],
        "errors": dict(sorted(errors.items())),
    }
    told["judged"] = figures(judged_samples(samples, asked, made), names)
    for problem, found in report["per_problem"].items():
        listed = []
        for sample in found["samples"]:
            judgement = judgements.get(places[sample["episode"]])
            listed.append({**sample, **({"judge": judgement.told()} if judgement else {})})
        told["per_problem"][problem] = {**found, "samples": listed}
    return told


def judge_mark(report: Mapping[str, Any]) -> str:
    """How a judged figure is named everywhere."""
    judge = report["judge"]
    return f"judged by {judge['model']} (prompt {judge['prompt']} {judge['prompt_sha256'][:8]})"


def judge_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, figure), each marked as judged; none where no judge was asked."""
    if "judge" not in report:
        return []
    judge, part, k = report["judge"], report["judged"], report["k"]
    mark = judge_mark(report)
    rows = []
    if part["avg_at_k"] is not None:
        low, high = part["bootstrap_95"]
        figure = f"{100 * part['avg_at_k']:.1f} % [{100 * low:.1f}, {100 * high:.1f}], bootstrap over problems"
        rows.append((f"avg@{k}, {mark}", f"{figure}; coverage {100 * part['coverage']:.1f} %"))
        rows += [(f"pass@{each}, {mark}", f"{100 * value:.1f} %") for each, value in part["pass_at_k"].items()]
    said = f"{judge['decided']} of {judge['asked']} answers ({judge['answers']}) decided; "
    said += f"{judge['turned_right']} turned right, {judge['turned_wrong']} turned wrong"
    rows.append(("judge", said))
    if judge["errors"]:
        listed = "; ".join(f"{why[:160]} × {count}" for why, count in judge["errors"].items())
        rows.append(("judge's failures, not counted as wrong", listed))
    return rows
