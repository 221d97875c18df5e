"""Two results on the same instances, side by side: who solved what, and whether the difference can be chance.

Promises: only instances with a score in both count, the others are named; a score is per instance, 1 or 0 or between;
McNemar's test is given when all scores are 0 or 1. Reads `scores.json` of our runs (or the run folder), the official
summary of SWE-bench (`*.json` with resolved_ids), and files of report.json objects (`.jsonl`, `.jsonl.gz`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.reading import InputError, is_file, json_lines, read_json, shown, user_path
from eval.errors import EvalError
from eval.markdown import document, table
from eval.statistics import Difference, mcnemar, paired_bootstrap, wilson_interval


@dataclass(frozen=True)
class Scores:
    """`scores` are None where there is no verdict about the model."""

    name: str
    suite: str
    scores: Mapping[str, float | None]


@dataclass(frozen=True)
class Comparison:
    first: Scores
    second: Scores
    pairs: Mapping[str, tuple[float, float]]
    """In sorted order of the instance ids."""
    left_out: tuple[str, ...]
    """Instances of either that the other lacks, or that have no score."""
    difference: Difference
    p_value: float | None
    """McNemar's; None where a score is neither 0 nor 1."""

    @property
    def gained(self) -> list[str]:
        """Better in the second."""
        return [name for name, (one, two) in self.pairs.items() if two > one]

    @property
    def lost(self) -> list[str]:
        return [name for name, (one, two) in self.pairs.items() if two < one]

    @property
    def both(self) -> int:
        return sum(one == two == 1.0 for one, two in self.pairs.values())

    @property
    def neither(self) -> int:
        return sum(one == two == 0.0 for one, two in self.pairs.values())

    def means(self) -> tuple[float, float]:
        total = len(self.pairs)
        return sum(one for one, _ in self.pairs.values()) / total, sum(two for _, two in self.pairs.values()) / total

    def to_dict(self) -> dict[str, Any]:
        means = self.means()
        made: dict[str, Any] = {
            "first": self.first.name,
            "second": self.second.name,
            "suite": self.first.suite,
            "instances": len(self.pairs),
            "left_out": list(self.left_out),
            "means": list(means),
            "difference": self.difference.mean,
            "paired_bootstrap_95": [self.difference.low, self.difference.high],
            "mcnemar_p": self.p_value,
            "gained": self.gained,
            "lost": self.lost,
            "both": self.both,
            "neither": self.neither,
            "pairs": {name: list(pair) for name, pair in self.pairs.items()},
        }
        if self.p_value is not None:
            total = len(self.pairs)
            made["wilson_95"] = [list(wilson_interval(round(mean * total), total)) for mean in means]
        return made


def markdown(made: Comparison, figures: Sequence[tuple[str, str]]) -> str:
    """`figures`, then every pair."""
    rows = [
        (name, f"{one:g}", f"{two:g}", "" if one == two else "second" if two > one else "first")
        for name, (one, two) in made.pairs.items()
    ]
    title = f"{made.first.name} against {made.second.name}"
    heads = ("instance", made.first.name, made.second.name, "better")
    return document(title, table(("what", "figure"), figures), table(heads, rows))


def compare(first: Scores, second: Scores, *, draws: int = 10_000, seed: int = 0) -> Comparison:
    """Raises EvalError when they share no scored instance, or are of different suites."""
    if first.suite != second.suite and first.suite and second.suite:
        raise EvalError(
            f"{first.name} is of {first.suite}, {second.name} of {second.suite}: compare one suite's results"
        )
    pairs: dict[str, tuple[float, float]] = {}
    for name in sorted(set(first.scores) & set(second.scores)):
        one, two = first.scores[name], second.scores[name]
        if one is not None and two is not None:
            pairs[name] = one, two
    if not pairs:
        raise EvalError(f"{first.name} and {second.name} share no instance that both have a score for")
    left_out = tuple(sorted((set(first.scores) | set(second.scores)) - set(pairs)))
    difference = paired_bootstrap(*(list(side) for side in zip(*pairs.values(), strict=True)), draws=draws, seed=seed)
    plain = all(score in (0.0, 1.0) for pair in pairs.values() for score in pair)
    made = Comparison(first, second, pairs, left_out, difference, None)
    p_value = mcnemar(len(made.lost), len(made.gained)) if plain else None
    return Comparison(first, second, pairs, left_out, difference, p_value)


def read_scores(path: str | Path) -> Scores:
    """Raises EvalError naming the file."""
    place = user_path(path)
    inside = [place / "scores.json", place / "grading" / "scores.json"]
    file = next((each for each in inside if each.is_file()), inside[0]) if place.is_dir() else place
    if not is_file(file):
        raise EvalError(
            f"no results at {shown(file)}: give a run folder, its scores.json, or a SWE-bench summary or reports file"
        )
    try:
        if ".jsonl" in file.suffixes:
            return _of_reports(file, [value for _, value in json_lines(file)])
        value = read_json(file)
    except InputError as error:
        raise EvalError(f"{error}") from error
    if isinstance(value, dict) and isinstance(value.get("scores"), dict):
        name = str(value.get("name") or (place.name if place.is_dir() else file.stem))
        return _checked(file, Scores(name, str(value.get("suite") or ""), value["scores"]))
    if isinstance(value, dict) and isinstance(value.get("resolved_ids"), list):
        failed = (*value.get("unresolved_ids", ()), *value.get("empty_patch_ids", ()), *value.get("error_ids", ()))
        scores = {**dict.fromkeys(failed, 0.0), **dict.fromkeys(value["resolved_ids"], 1.0)}
        return _checked(file, Scores(file.stem, "swebench", scores))
    if isinstance(value, dict):
        return _of_reports(file, [value])
    raise EvalError(f"{file} holds no results: neither scores nor resolved_ids nor report.json objects")


def _of_reports(file: Path, entries: list[Any]) -> Scores:
    scores: dict[str, float | None] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise EvalError(f"{file}: a line is a JSON {type(entry).__name__}, expected a report.json object")
        for name, report in entry.items():
            if not isinstance(report, dict) or not isinstance(report.get("resolved"), bool):
                raise EvalError(f"{file}, {name}: is no report (no flag `resolved`)")
            if name in scores:
                raise EvalError(f"{file}: {name} comes twice")
            scores[name] = float(report["resolved"])
    return _checked(file, Scores(file.name.split(".")[0], "swebench", scores))


def _checked(file: Path, scores: Scores) -> Scores:
    for name, score in scores.scores.items():
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1):
            raise EvalError(f"{file}, {name}: score {score!r} is no number from 0 to 1")
    if not scores.scores:
        raise EvalError(f"{file} holds no scores")
    return scores
