from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.journal import Entry
from data.log import TrajectoryLog
from data.trajectory import Status, Trajectory
from trainer.intake import Intake
from trainer.ledger import DROPPED, RESUMED, TRAINED, DropReason, Fate, Ledger, LedgerError, audit, from_journal
from trainer.state import TrainerState

from .tiny import build

LAYOUT = [("p", 2), ("a", 2)]


def one(
    draw: int, attempt: int = 0, *, status: Status = Status.GRADED, version: int = 0, empty: bool = False
) -> Trajectory:
    made = build(
        [("p", 2)] if empty else LAYOUT,
        seed=draw,
        reward=1.0 if status is Status.GRADED else None,
        status=status,
        versions=(version,),
    )
    return replace(made, identity=replace(made.identity, episode_id=f"e{draw}-{attempt}"))


def fill(folder: Path, trajectories: Sequence[Trajectory]) -> Path:
    with TrajectoryLog(folder / "log") as log:
        for trajectory in trajectories:
            log.append(trajectory)
    return folder / "log"


def intake(log: Path, state: TrainerState | None = None, planned: int = 100, **changes: object) -> Intake:
    base = {"max_staleness": 4, "max_attempts": 2, "bootstraps": True}
    return Intake([log], state or TrainerState("run"), planned, **{**base, **changes})  # type: ignore[arg-type]


def draws(batch: Sequence[Trajectory] | None) -> list[int]:
    return [t.identity.draw for t in batch or []]


def test_first_in_first_out(tmp_path: Path) -> None:
    taken = intake(fill(tmp_path, [one(draw) for draw in (2, 0, 1, 4, 3)]))
    taken.poll()
    assert draws(taken.next_batch(2)[0]) == [2, 0]
    assert draws(taken.next_batch(2)[0]) == [1, 4]
    assert taken.next_batch(2)[0] is None


def test_a_batch_that_was_put_back_is_the_next_one_again(tmp_path: Path) -> None:
    state = TrainerState("run")
    taken = intake(fill(tmp_path, [one(draw) for draw in (2, 0, 1, 4)]), state)
    taken.poll()
    taken.next_batch(2)
    taken.put_back()
    taken.remember()
    assert draws(taken.next_batch(2)[0]) == [2, 0]
    taken.put_back()
    taken.put_back()  # there is nothing out
    assert taken.waiting == 4
    again = intake(tmp_path / "log", state)  # a checkpoint that was written meanwhile misses none
    again.poll()
    assert draws(again.next_batch(4)[0]) == [2, 0, 1, 4]


def test_staleness_counts_from_the_oldest_token(tmp_path: Path) -> None:
    state = TrainerState("run", updates=5)
    mixed = build([("p", 2), ("a", 1), ("o", 1), ("a", 1)], seed=1, versions=(0, 5))
    taken = intake(fill(tmp_path, [one(0, version=1), mixed]), state)
    taken.poll()
    batch, dropped = taken.next_batch(1)
    assert draws(batch) == [0], "five updates minus version 1 is the limit itself"
    assert [(item.draw, item.reason) for item in dropped] == [(1, DropReason.STALE)]


def test_a_failed_attempt_is_not_the_draws_end(tmp_path: Path) -> None:
    failed = [one(0, 0, status=Status.INFRA_ERROR), one(1, 0, status=Status.INFRA_ERROR)]
    taken = intake(fill(tmp_path, [*failed, one(0, 1), one(1, 1, status=Status.INFRA_ERROR)]))
    assert [(item.draw, item.reason) for item in taken.poll()] == [(1, DropReason.INFRA_ERROR)]
    assert draws(taken.next_batch(1)[0]) == [0]


def test_what_cannot_be_trained_on_is_dropped_by_its_reason(tmp_path: Path) -> None:
    hot = build(LAYOUT, seed=0, temperature=0.7)
    cut = one(1, status=Status.CUT)
    unstarted = one(2, status=Status.CUT, empty=True)
    taken = intake(fill(tmp_path, [hot, cut, unstarted, one(3, empty=True)]), bootstraps=False)
    assert [(item.draw, item.reason) for item in taken.poll()] == [
        (0, DropReason.UNTRAINABLE),
        (1, DropReason.UNTRAINABLE),
        (3, DropReason.NO_ACTIONS),
    ]
    assert 2 not in taken.ledger, "cut before its first token: it is played again"


def test_a_second_trajectory_of_a_draw_is_passed_over(tmp_path: Path) -> None:
    taken = intake(fill(tmp_path, [one(0), one(0, 1), one(1)]))
    taken.poll()
    batch, _ = taken.next_batch(2)
    assert [t.identity.episode_id for t in batch or []] == ["e0-0", "e1-0"]
    assert taken.repeated == 1


@pytest.mark.parametrize(("planned", "expected"), [(7, [4, 5, 6]), (5, None)])
def test_the_plans_end(tmp_path: Path, planned: int, expected: list[int] | None) -> None:
    taken = intake(fill(tmp_path, [one(draw) for draw in range(planned)]), planned=planned)
    taken.poll()
    batch, _ = taken.next_batch(4)
    taken.trained(batch or [])
    rest, dropped = taken.next_batch(4)
    assert (draws(rest) or None) == expected
    if expected is None:
        assert [(item.draw, item.reason) for item in dropped] == [(4, DropReason.REMAINDER)]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_going_on_from_any_checkpoint_makes_the_same_batches(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the mixture of outcomes and wherever the checkpoint lies, every draw gets one and the same fate."""
    kinds = data.draw(
        st.lists(st.sampled_from(["good", "old", "fails", "fails twice", "empty"]), min_size=6, max_size=20)
    )
    order: list[Trajectory] = []
    for draw, kind in enumerate(kinds):
        if kind.startswith("fails"):
            order.append(one(draw, 0, status=Status.INFRA_ERROR))
        if kind == "fails twice":
            order.append(one(draw, 1, status=Status.INFRA_ERROR))
        else:
            order.append(one(draw, 1, version=0 if kind == "old" else 3, empty=kind == "empty"))
    order = data.draw(st.permutations(order))
    log = fill(tmp_path_factory.mktemp("log"), order)

    def play(state: TrainerState, steps: int | None = None) -> TrainerState:
        taken = intake(log, state, planned=len(kinds), max_staleness=2)
        while steps is None or state.step < steps:
            taken.poll()
            batch, _ = taken.next_batch(3)
            if batch is None:
                break
            taken.trained(batch)
            state.step, state.updates = state.step + 1, state.updates + 1
        taken.remember()
        taken.close()
        return state

    undisturbed = play(TrainerState("run"))
    stop = data.draw(st.integers(0, undisturbed.step))
    resumed = play(TrainerState.from_dict(play(TrainerState("run"), stop).to_dict()))
    assert {d: f.dropped for d, f in resumed.ledger.fates.items()} == {
        d: f.dropped for d, f in undisturbed.ledger.fates.items()
    }
    trained = {d: f.step for d, f in undisturbed.ledger.fates.items() if f.dropped is None}
    assert {d: f.step for d, f in resumed.ledger.fates.items() if f.dropped is None} == trained


def _entry(event: str, draw: int | None = None, episode_id: str | None = None, **fields: object) -> Entry:
    return Entry(event, 0.0, draw, episode_id, fields)


class TestLedger:
    def test_a_draw_is_entered_once(self) -> None:
        ledger = Ledger()
        ledger.enter(0, Fate("e", 0))
        with pytest.raises(LedgerError, match="already"):
            ledger.enter(0, Fate("f", 1))

    def test_later_lines_roll_back(self) -> None:
        entries = [
            _entry(RESUMED, step=0, kept=[]),
            _entry(TRAINED, step=0, draws=[0, 1], episodes=["a", "b"]),
            _entry(DROPPED, 2, "c", step=1, reason="stale"),
            _entry(DROPPED, 5, "f", step=1, reason="infra_error"),
            _entry(TRAINED, step=1, draws=[3, 4], episodes=["d", "e"]),
            _entry(RESUMED, step=1, kept=[2]),
            _entry(TRAINED, step=1, draws=[4, 5], episodes=["e", "g"]),
        ]
        ledger = from_journal(entries)
        assert sorted(ledger.fates) == [0, 1, 2, 4, 5]
        assert ledger.fates[5] == Fate("g", 1)
        assert (ledger.trained, ledger.dropped()) == (4, {"stale": 1})

    def test_audit_names_every_kind_of_fault(self) -> None:
        ledger = Ledger.from_rows([[0, "a", 0, None], [2, "a", 0, None], [9, "x", 0, "stale"]])
        faults = "\n".join(audit(ledger, 3, {"a": 0}))
        for words in (
            "1 of 3 planned draws are neither",
            "not of the plan",
            "under more than one draw",
            "not in the log",
        ):
            assert words in faults
        good = Ledger.from_rows([[0, "a", 0, None], [1, "b", 1, "infra_error"]])
        assert audit(good, 2, {"a": 0, "b": 1}) == []
