"""A part of the attacks in each run: all kinds, both graders, embedded sandboxes. `make attacks`: all."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from benchmarks.attacks import ATTACKS
from benchmarks.attacks.__main__ import run, trials
from benchmarks.attacks.judge import Outcome, Trial
from benchmarks.attacks.layouts import EMBEDDED, micro, unit

pytest.importorskip("swebench", reason="ATTACKS NOT RUN: the extra `eval` is not installed")
EACH = 10
"""Every tenth trial of a kind; all are run by the benchmark."""


def done(todo: list[Trial]) -> list[Outcome]:
    outcomes, _ = asyncio.run(run(todo, [EMBEDDED], 2))
    return outcomes


def test_a_part_of_all_kinds_fools_nobody() -> None:
    todo = [each for each in trials([micro(), unit()], [EMBEDDED], quick=True) if each.attack.make is not None]
    kinds = dict.fromkeys(each.attack.kind for each in todo)
    assert len(kinds) >= 8
    some = [trial for kind in kinds for trial in [each for each in todo if each.attack.kind == kind][::EACH]]
    outcomes = done(some)
    assert [each.trial.attack.name for each in outcomes if each.fooled or each.paid_when_flagged or each.fault] == []
    assert [each.trial.attack.name for each in outcomes if each.refused] == []
    assert any(each.paid for each in outcomes if each.trial.attack.fixes)


def test_a_grader_that_pays_is_seen() -> None:
    """The fix itself, called an attack: else the count could not rise."""
    [fix] = [each for each in ATTACKS if each.name == "the fix alone"]
    lie = dataclasses.replace(fix, fixes=False)
    site = unit()
    outcomes = done([Trial(lie, site, EMBEDDED, judge) for judge in ("train", "eval")])
    assert [each.fooled for each in outcomes] == [True, True]


def test_names_are_their_own() -> None:
    names = [(each.kind, each.name) for each in ATTACKS]
    assert len(names) == len(set(names)) >= 250
