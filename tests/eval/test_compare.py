"""Comparing two results, in each form that they come in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from eval.compare import Scores, compare, markdown, read_scores
from eval.errors import EvalError


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_a_comparison_by_hand() -> None:
    first = Scores("a", "swebench", {"i1": 1.0, "i2": 0.0, "i3": 0.0, "i4": 1.0, "i5": None, "i6": 1.0})
    second = Scores("b", "swebench", {"i1": 1.0, "i2": 1.0, "i3": 0.0, "i4": 0.0, "i5": 1.0, "i7": 1.0})
    made = compare(first, second, draws=100)
    assert list(made.pairs) == ["i1", "i2", "i3", "i4"]
    assert made.left_out == ("i5", "i6", "i7")
    assert (made.both, made.neither, made.gained, made.lost) == (1, 1, ["i2"], ["i4"])
    assert (made.p_value, made.difference.mean) == (1.0, 0.0)
    assert made.to_dict()["means"] == [0.5, 0.5]
    assert made.to_dict()["pairs"] == {"i1": [1, 1], "i2": [0, 1], "i3": [0, 0], "i4": [1, 0]}
    assert json.loads(json.dumps(made.to_dict())) == made.to_dict()
    assert markdown(made, [("p", "a|b")]) == (
        "# a against b\n\n| what | figure |\n|---|---|\n| p | a\\|b |\n\n"
        "| instance | a | b | better |\n|---|---|---|---|\n"
        "| i1 | 1 | 1 |  |\n| i2 | 0 | 1 | second |\n| i3 | 0 | 0 |  |\n| i4 | 1 | 0 | first |\n"
    )


def test_scores_between_have_no_mcnemar() -> None:
    made = compare(Scores("a", "aime", {"x": 0.25, "y": 1.0}), Scores("b", "aime", {"x": 0.5, "y": 1.0}))
    assert made.p_value is None
    assert made.gained == ["x"]
    assert "wilson_95" not in made.to_dict()


def test_each_form_is_read(tmp_path: Path) -> None:
    wanted = {"i1": 1.0, "i2": 0.0, "i3": 0.0}
    write(tmp_path / "run" / "scores.json", {"suite": "swebench", "name": "m", "scores": wanted})
    report = {"resolved_ids": ["i1"], "unresolved_ids": ["i2"], "error_ids": ["i3"], "incomplete_ids": ["i4"]}
    summary = write(tmp_path / "m.run.json", report)
    lines = "".join(json.dumps({name: {"resolved": score == 1.0}}) + "\n" for name, score in wanted.items())
    packed = tmp_path / "reports.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "reports.jsonl").write_text(lines)
    for path in (tmp_path / "run", summary, packed, tmp_path / "reports.jsonl"):
        found = read_scores(path)
        assert (dict(found.scores), found.suite) == (wanted, "swebench")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.json", '{"scores": {"a": 2}}', "score 2 is no number from 0 to 1"),
        ("s.json", '{"scores": {"a": "1"}}', "score '1' is no number"),
        ("s.json", '{"scores": {}}', "holds no scores"),
        ("s.json", "[1]", "holds no results"),
        ("s.json", "{", "no valid JSON"),
        ("s.json", '{"a": 1}', "is no report"),
        ("s.jsonl", '{"a": {"resolved": true}}\n{"a": {"resolved": true}}', "a comes twice"),
        ("s.jsonl", "[]", "expected a report.json object"),
    ],
)
def test_what_is_no_result_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvalError, match=said):
        read_scores(tmp_path / name)


def test_results_that_cannot_be_compared() -> None:
    with pytest.raises(EvalError, match="share no instance"):
        compare(Scores("a", "", {"x": 1.0}), Scores("b", "", {"x": None}))
    with pytest.raises(EvalError, match="compare one suite"):
        compare(Scores("a", "aime", {"x": 1.0}), Scores("b", "swebench", {"x": 1.0}))
    with pytest.raises(EvalError, match="no results at"):
        read_scores("nowhere")
