"""The report of a maths suite, from the trajectories alone.

Promises: the same trajectories give the same report, byte for byte, however often the run was killed; problems that
cannot be scored are listed and in no figure; what is missing shows in `coverage`, never as a wrong answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.quoted import model_tokens
from data.task import Task
from data.trajectory import ExitReason, Status, Trajectory
from envs.maths.answer import integer_of
from eval.endpoint import summary_rows
from eval.markdown import code, document, table
from eval.statistics import bootstrap_mean, pass_at_k, wilson_interval

TRUNCATED = (ExitReason.MAX_TOKENS, ExitReason.MAX_CONTEXT, ExitReason.MAX_TURNS, ExitReason.WALL_CLOCK)


@dataclass(frozen=True)
class Sample:
    task_id: str
    number: int
    """Of the problem's samples, from 0: which run of the suite it belongs to."""
    correct: bool
    why: str
    answer: str | None
    exit: str
    truncated: bool
    tokens: int
    """Sampled, or as an endpoint counted."""
    calls: int
    episode: str
    seed: int


@dataclass(frozen=True)
class Samples:
    """Graded samples of a suite; at most one of each (problem, number)."""

    tasks: Sequence[Task]
    k: int
    made: Mapping[tuple[str, int], Sample] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], tasks: Sequence[Task], k: int) -> Samples:
        """Draw d is sample d // len(tasks) of its task; the plan may have grown, so later draws than k asks for are
        left out."""
        names = {task.task_id for task in tasks}
        made: dict[tuple[str, int], Sample] = {}
        for one in trajectories:
            identity, outcome = one.identity, one.outcome
            number = identity.draw // len(tasks)
            if outcome.status is not Status.GRADED or identity.task_id not in names or number >= k:
                continue
            made[identity.task_id, number] = Sample(
                identity.task_id,
                number,
                bool(outcome.reward),
                str(outcome.grade.get("why", "")),
                outcome.grade.get("answer"),
                str(outcome.exit_reason),
                outcome.exit_reason in TRUNCATED,
                model_tokens(one),
                int(outcome.grade.get("calls", 0)),
                identity.episode_id,
                identity.seed,
            )
        return cls(tasks, k, made)

    def of_problem(self, task_id: str) -> list[Sample]:
        return [self.made[task_id, number] for number in range(self.k) if (task_id, number) in self.made]


def figures(samples: Samples, names: Sequence[str], *, seed: int = 0) -> dict[str, Any]:
    """Scores over the problems `names`; those without a graded sample are not in the means but in `coverage`."""
    graded = {name: samples.of_problem(name) for name in names}
    graded = {name: found for name, found in graded.items() if found}
    count = sum(map(len, graded.values()))
    means = [sum(each.correct for each in found) / len(found) for found in graded.values()]
    made: dict[str, Any] = {
        "problems": len(names),
        "samples": count,
        "coverage": count / max(len(names) * samples.k, 1),
        "avg_at_k": sum(means) / len(means) if means else None,
        "bootstrap_95": list(bootstrap_mean(means, seed=seed)) if means else None,
        "pass_at_k": {},
        "runs": [],
    }
    for k in sorted({1 << power for power in range(samples.k.bit_length())} | {samples.k}):
        enough = [found for found in graded.values() if len(found) >= k]
        if k <= samples.k and enough:
            each = [pass_at_k(len(found), sum(one.correct for one in found), k) for found in enough]
            made["pass_at_k"][str(k)] = sum(each) / len(each)
    for number in range(samples.k):
        run = [samples.made[name, number] for name in names if (name, number) in samples.made]
        right = sum(one.correct for one in run)
        made["runs"].append({"correct": right, "graded": len(run), "wilson_95": list(wilson_interval(right, len(run)))})
    return made


def run_report(samples: Samples, not_scored: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts`: how it was run. `not_scored`: problems that are in no figure, and why."""
    names = [task.task_id for task in samples.tasks]
    whole = [task.task_id for task in samples.tasks if integer_of(str(task.row["answer"])) is not None]
    made = list(samples.made.values())
    per_problem = {
        task.task_id: {
            "gold": task.row["answer"],
            "samples": [
                {
                    "correct": one.correct,
                    "answer": one.answer,
                    "why": one.why,
                    "exit": one.exit,
                    "tokens": one.tokens,
                    "calls": one.calls,
                    "episode": one.episode,
                    "seed": one.seed,
                }
                for one in samples.of_problem(task.task_id)
            ],
        }
        for task in samples.tasks
    }
    report = {
        **facts,
        "k": samples.k,
        **figures(samples, names),
        "truncated_share": sum(one.truncated for one in made) / max(len(made), 1),
        "no_answer_share": sum(one.answer is None for one in made) / max(len(made), 1),
        "verdicts": dict(sorted(Counter(one.why for one in made).items())),
        "exits": dict(sorted(Counter(one.exit for one in made).items())),
        "mean_tokens": sum(one.tokens for one in made) / max(len(made), 1),
        "mean_calls": sum(one.calls for one in made) / max(len(made), 1),
        "not_scored": dict(sorted(not_scored.items())),
    }
    if len(whole) != len(names):
        report["integer_subset"] = figures(samples, whole)
    return {**report, "per_problem": per_problem}


def scores(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """For `sao eval compare`: the mean of each problem."""
    means: dict[str, float | None] = {}
    for problem, found in report["per_problem"].items():
        right = [each["correct"] for each in found["samples"]]
        means[problem] = sum(right) / len(right) if right else None
    return {"name": name, "suite": report["suite"], "scores": means}


_METHOD = (
    *("suite", "data", "data_sha256", "model", "engine", "protocol", "protocol_sha256", "agent", "prompt_sha256"),
    *("template_sha256", "temperature", "top_p", "max_tokens", "max_context", "python", "seed", "grader"),
)
"""Facts that stand in the table, in this order."""


def figure_rows(
    report: Mapping[str, Any], judged: Sequence[tuple[str, str]] = (), *, brief: bool = False
) -> list[tuple[str, str]]:
    """(what, figure) of the report's head, for terminal, table and page. `judged`: a judge's rows, below the rules'.
    `brief`: without the runs after the first and without how it was made."""
    k = report["k"]
    rows: list[tuple[str, str]] = []
    by = "by the rules, " if judged else ""
    for title, part in ((by, report), (f"{by}integer answers only, ", report.get("integer_subset"))):
        if part is None:
            continue
        if part["avg_at_k"] is None:
            rows.append((f"{title}avg@{k}", "nothing was graded"))
            continue
        low, high = part["bootstrap_95"]
        span = f"[{_percent(low)}, {_percent(high)}], bootstrap over {part['problems']} problems"
        rows.append((f"{title}avg@{k}", f"{_percent(part['avg_at_k'])} {span}"))
        rows += [(f"{title}pass@{each}", _percent(value)) for each, value in part["pass_at_k"].items()]
    rows += judged
    for number, run in enumerate(report["runs"][: 1 if brief else None]):
        low, high = run["wilson_95"]
        rows.append(
            (f"{by}run {number}", f"{run['correct']} of {run['graded']} [{_percent(low)}, {_percent(high)}], Wilson")
        )
    not_scored = report["not_scored"]
    rows += [
        ("coverage", f"{_percent(report['coverage'])} of the samples are graded"),
        ("truncated", _percent(report["truncated_share"])),
        ("without an answer", _percent(report["no_answer_share"])),
        ("verdicts", ", ".join(f"{why} {count}" for why, count in report["verdicts"].items())),
        ("not scored", f"{len(not_scored)} problems: {', '.join(not_scored) or 'none'}"),
    ]
    rows += summary_rows(report.get("endpoint", {}))
    if brief:
        return rows
    return rows + [(fact.replace("_", " "), str(report[fact])) for fact in _METHOD if fact in report]


def markdown(report: Mapping[str, Any], name: str, judged: Sequence[tuple[str, str]] = ()) -> str:
    heads = ["problem", *(("right by the rules", "judged") if judged else ("right",)), "answers"]
    rows = []
    for problem, found in report["per_problem"].items():
        samples = found["samples"]
        right = f"{sum(each['correct'] for each in samples)} of {len(samples)}"
        answers = Counter("none" if each["answer"] is None else code(each["answer"]) for each in samples).most_common(4)
        shown = ", ".join(f"{answer} × {count}" for answer, count in answers)
        rows.append([problem, right, *([_verdicts(samples)] if judged else []), shown])
    return document(name, table(("what", "figure"), figure_rows(report, judged)), table(heads, rows))


def _verdicts(samples: Sequence[Mapping[str, Any]]) -> str:
    """What the judge said of a problem's samples."""
    counts = Counter(each["judge"]["verdict"] for each in samples if "judge" in each)
    return ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items())) or "not asked"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
