"""micro-SWE: the API, the rows, determinism, shape of the texts, the blind rates, the CLI."""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import keyword
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import micro_swe
from data.gitobjects import commit_id
from data.micro_swe import SPLIT_SIZES, words
from data.micro_swe.__main__ import main
from data.micro_swe.kinds import HINT_WORDS
from data.task import TaskError

SPLITS = sorted(SPLIT_SIZES)
COLUMNS = set(
    "instance_id repo base_commit problem_statement hints_text created_at version patch test_patch FAIL_TO_PASS "  # noqa: SIM905
    "PASS_TO_PASS environment_setup_commit log_parser eval_script eval_type image repo_dir files".split()
)
tasks = st.tuples(st.sampled_from(SPLITS), st.integers(0, 999_999))


def test_load_is_a_window_on_task() -> None:
    loaded = micro_swe.load("train", limit=3, offset=122)
    assert [task.task_id for task in loaded] == [f"micro-swe/train/00012{i}" for i in (2, 3, 4)]
    assert loaded[1] == micro_swe.task("train", 123) == micro_swe.task_by_id("micro-swe/train/000123")
    assert len(micro_swe.load("unseen")) == SPLIT_SIZES["unseen"]
    assert micro_swe.load("unseen", offset=SPLIT_SIZES["unseen"]) == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: micro_swe.load("test"), "no split 'test'"),
        (lambda: micro_swe.task("train", -1), "no index -1"),
        (lambda: micro_swe.task("train", 1_000_000), "no index 1000000"),
        (lambda: micro_swe.task_by_id("micro-swe/train/12"), "look like micro-swe/train/000123"),
        (lambda: micro_swe.task_by_id("django__django-1"), "no micro-swe task id"),
        (lambda: micro_swe.load("train", limit=-1), "must not be negative"),
        (lambda: micro_swe.load("train", offset=-1), "must not be negative"),
    ],
)
def test_errors_say_how_to_mend(call: object, text: str) -> None:
    with pytest.raises(TaskError, match=text):
        call()  # type: ignore[operator]


def test_golden() -> None:
    """These texts feed shipped weights: a change here needs a new VERSION and new weights."""
    rows = [micro_swe.task(split, index).row for split in SPLITS for index in (0, 1, 999_999)]
    assert (
        hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        == "2e9f348a029922027f46704a387bc7aca9689c2a043490a962f9d8ce7f8642e6"
    )


@settings(max_examples=150, deadline=None)
@given(tasks)
def test_row_and_site(where: tuple[str, int]) -> None:
    split, index = where
    task = micro_swe.task(split, index)
    site = micro_swe.bug_site(task)
    row, files = task.row, json.loads(task.row["files"])
    assert set(row) == COLUMNS
    assert (task.kind, task.split, task.source) == ("swe", split, "micro-swe")
    assert row["instance_id"] == task.task_id == f"micro-swe/{split}/{index:06d}"
    assert row["base_commit"] == commit_id(files)
    assert sum(path.endswith(".py") and not path.endswith("__init__.py") for path in files) >= 3
    assert row["FAIL_TO_PASS"]
    assert row["PASS_TO_PASS"]
    # The site: one line, unique, its replacement among the candidates, all of them valid Python.
    text = files[site.path]
    assert text.count(site.old_line) == 1
    assert site.old_line in [line.strip() for line in text.splitlines()]
    assert 2 <= len(site.candidates) == len(set(site.candidates)) <= 4
    assert site.fixed_line in site.candidates
    assert site.old_line not in site.candidates
    for candidate in site.candidates:
        ast.parse(text.replace(site.old_line, candidate))
    # The patch is that one line; the hidden test is in no visible file.
    assert [line[1:].strip() for line in row["patch"].splitlines() if re.match(r"[-+] ", line)] == [
        site.old_line,
        site.fixed_line,
    ]
    assert not any(path in row["test_patch"].splitlines()[0] for path in files if path.startswith("tests/"))


@settings(max_examples=150, deadline=None)
@given(tasks)
def test_small_and_silent(where: tuple[str, int]) -> None:
    """Bounds that the demo policy's context is planned with; the issue must not give the fix away."""
    task = micro_swe.task(*where)
    site = micro_swe.bug_site(task)
    text = json.loads(task.row["files"])[site.path]
    assert len(re.findall(r"\w+|[^\w\s]+", text)) <= 120
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 16
    assert max(map(len, text.splitlines())) <= 90
    issue = task.row["problem_statement"]
    assert len(re.findall(r"\w+|[^\w\s]+", issue)) <= 25
    assert f" in {site.path}" in issue
    function = re.search(r"(\w+) in ", issue)
    assert function is not None
    assert f"def {function[1]}(" in text
    assert not HINT_WORDS & set(re.findall(r"\w+", issue))
    assert not re.search(r"\d", issue)


def test_vocabulary() -> None:
    everything = [word for pool in words.ROLES.values() for word in pool]
    assert len(everything) == len(set(everything)) <= 100
    for word in everything:
        assert re.fullmatch("[a-z]{3,8}", word)
        assert not keyword.iskeyword(word)
        assert word not in dir(builtins)
    assert not HINT_WORDS & set(everything)
    assert not set(words.MODULES + words.PACKAGES) & sys.stdlib_module_names


@pytest.mark.parametrize("split", SPLITS)
def test_blind_policies_stay_low(split: str) -> None:
    rates = micro_swe.constant_policy_rates(split, 1000)
    assert rates.constant_action <= 0.01
    assert 1 / 3 <= rates.uniform_guess <= 0.5
    assert rates.choice_per_kind <= rates.uniform_guess + 0.05


def test_blind_rates_of_a_worked_sample() -> None:
    """With one task the best constant action solves it, and one over its candidates is the guess."""
    rates = micro_swe.constant_policy_rates("train", 1)
    assert rates.constant_action == 1.0
    assert rates.uniform_guess == 1 / len(micro_swe.bug_site(micro_swe.task("train", 0)).candidates)
    assert rates.choice_per_kind == 0.0


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--split", "heldout", "--show", "2", "--rates", "--sample", "50"]) == 0
    shown = capsys.readouterr().out
    assert "micro-swe/heldout/000001" in shown
    assert micro_swe.bug_site(micro_swe.task("heldout", 0)).fixed_line in shown
    assert "uniform guess" in shown
    assert main(["--show", "1", "--offset", "-3"]) == 2
