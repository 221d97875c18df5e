"""Reports of maths suites: figures by hand, the same report from any order, what is missing is never wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.task import Task
from data.trajectory import ExitReason, Identity, Outcome, Status, Trajectory, TrajectoryBuilder
from eval.errors import EvalError
from eval.maths.protocol import load_protocol, protocol_names
from eval.maths.report import Samples, figures, markdown, run_report, scores
from eval.statistics import bootstrap_mean, pass_at_k

TASKS = [
    Task(f"aime2025/{n}", "maths", "train", {"problem": f"P{n}", "answer": answer, "grading": "symbolic"})
    for n, answer in enumerate(["1", "2", r"\frac{1}{2}"])
]


def sample(
    draw: int, reward: float | None, *, exit: ExitReason = ExitReason.SUBMITTED, attempt: int = 0, tokens: int = 4
) -> Trajectory:
    builder = TrajectoryBuilder([1, 2])
    builder.append_action([3] * tokens, [-1.0] * tokens, [0] * tokens)
    if reward is None:
        outcome = Outcome(Status.INFRA_ERROR, ExitReason.ENGINE_ERROR, None, {"kind": "x"})
    else:
        why = "equal" if reward else ("no_box" if exit is not ExitReason.SUBMITTED else "different")
        answer = None if why == "no_box" else "7 | 8"
        outcome = Outcome(Status.GRADED, exit, reward, {"why": why, "answer": answer, "calls": 2})
    task = TASKS[draw % len(TASKS)]
    identity = Identity(f"run-{draw:06d}-{attempt}", task.task_id, draw, 100 + draw, "tok")
    return builder.finish(outcome, identity)


def log(*rewards: float | None) -> list[Trajectory]:
    return [sample(draw, reward) for draw, reward in enumerate(rewards)]


def test_figures_by_hand() -> None:
    # Problem 0: 1, 1; problem 1: 0, 1; problem 2: 0, 0.
    samples = Samples.of(log(1, 0, 0, 1, 1, 0), TASKS, 2)
    found = figures(samples, [task.task_id for task in TASKS])
    assert found["avg_at_k"] == pytest.approx(0.5)
    assert found["pass_at_k"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert [(run["correct"], run["graded"]) for run in found["runs"]] == [(1, 3), (2, 3)]
    low, high = found["bootstrap_95"]
    assert 0 <= low < 0.5 < high <= 1
    assert found["coverage"] == 1.0


def test_infrastructure_faults_are_missing_not_wrong() -> None:
    made = [*log(1, None, 0), sample(1, 1.0, attempt=1), *[sample(draw, 1.0) for draw in (3, 4)]]
    report = run_report(Samples.of(made, TASKS, 2), {}, {"suite": "aime2025"})
    assert report["coverage"] == pytest.approx(5 / 6)
    assert report["avg_at_k"] == pytest.approx((1 + 1 + 0) / 3)
    assert report["pass_at_k"]["2"] == pytest.approx(1.0)  # of the two problems with both samples


def test_later_draws_and_other_tasks_are_left_out() -> None:
    report = run_report(Samples.of(log(1, 1, 1, 0, 0, 0), TASKS, 1), {}, {"suite": "aime2025"})
    assert (report["samples"], report["avg_at_k"]) == (3, 1.0)


def test_shares_subset_and_list() -> None:
    made = [sample(0, 1.0), sample(1, 0.0, exit=ExitReason.MAX_TOKENS, tokens=8), sample(2, 0.0)]
    report = run_report(Samples.of(made, TASKS, 1), {"aime2025/9": "why not"}, {"suite": "aime2025", "model": "m"})
    assert report["truncated_share"] == pytest.approx(1 / 3)
    assert report["no_answer_share"] == pytest.approx(1 / 3)
    assert report["verdicts"] == {"different": 1, "equal": 1, "no_box": 1}
    assert report["mean_tokens"] == pytest.approx(16 / 3)
    assert (report["integer_subset"]["problems"], report["integer_subset"]["avg_at_k"]) == (2, 0.5)
    assert report["not_scored"] == {"aime2025/9": "why not"}
    text = markdown(report, "t")
    assert "| not scored | 1 problems: aime2025/9 |" in text
    assert r"`7 \| 8` × 1" in text
    assert "33.3 %" in text
    assert scores(report, "n")["scores"] == {"aime2025/0": 1.0, "aime2025/1": 0.0, "aime2025/2": 0.0}


def test_nothing_graded_is_said() -> None:
    report = run_report(Samples.of(log(None, None, None), TASKS, 1), {}, {"suite": "aime2025"})
    assert report["avg_at_k"] is None
    assert "nothing was graded" in markdown(report, "t")
    assert set(scores(report, "n")["scores"].values()) == {None}


@given(st.permutations(range(6)), st.lists(st.sampled_from([0.0, 1.0]), min_size=6, max_size=6))
def test_the_order_of_the_log_does_not_matter(order: Sequence[int], rewards: list[float]) -> None:
    made = log(*rewards)
    one = run_report(Samples.of(made, TASKS, 2), {}, {"suite": "aime2025"})
    other = run_report(Samples.of([made[index] for index in order], TASKS, 2), {}, {"suite": "aime2025"})
    assert one == other


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 30))
def test_pass_at_k_is_the_share_of_choices_that_hold_a_right_one(samples: int, correct: int, k: int) -> None:
    if correct > samples or k > samples:
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(samples, correct, k)
        return
    found = pass_at_k(samples, correct, k)
    assert 0 <= found <= 1
    assert found == pytest.approx(1 - math.prod((samples - correct - i) / (samples - i) for i in range(k)))
    if k == 1:
        assert found == pytest.approx(correct / samples)


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)
    assert pass_at_k(16, 0, 8) == 0.0
    assert pass_at_k(16, 9, 8) == 1.0


def test_bootstrap_of_equal_values_is_a_point_and_is_the_same_again() -> None:
    assert bootstrap_mean([0.25] * 7) == (0.25, 0.25)
    values = [0.0, 1.0, 0.5, 0.25, 1.0]
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_mean([])


def test_shipped_protocols() -> None:
    assert protocol_names() == ["matharena", "paper"]
    paper = load_protocol("paper")
    assert [paper.samples_for(suite) for suite in ("aime2025", "beyondaime", "imo-answerbench")] == [16, 4, 16]
    assert (paper.temperature, paper.top_p, len(paper.sha256)) == (1.0, 1.0, 64)
    assert load_protocol("matharena").samples_for("aime2025") == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not valid TOML"),
        ('name = "x"\nagent = "maths"\nagent_with_python = "maths-python"\nsamples = 4', "temperature"),
        ('sha256 = "x"', "unknown key sha256"),
        (
            'name = "x"\nagent = "a"\nagent_with_python = "b"\nsamples = 4\ntemperature = 1\ntop_p = 0.9',
            "top_p",
        ),
    ],
)
def test_protocols_with_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(EvalError, match=r"mine\.toml") as caught:
        load_protocol(str(path))
    assert words in str(caught.value)
    with pytest.raises(EvalError, match="Known: matharena, paper"):
        load_protocol("nope")
