from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.trajectory import (
    ExitReason,
    Identity,
    Outcome,
    Span,
    SpanKind,
    Status,
    Trajectory,
    TrajectoryBuilder,
    TrajectoryError,
)
from tests.data.trajectories import builders, empty, episode, identity, trajectories

CUT = Outcome(Status.CUT, ExitReason.SYSTEM_CUT)


def make(tokens, logprobs, versions, spans, outcome=CUT):  # type: ignore[no-untyped-def]
    return Trajectory(
        np.asarray(tokens, np.int32),
        np.asarray(logprobs, np.float32),
        np.asarray(versions, np.int32),
        tuple(spans),
        outcome,
        identity(),
    )


PROMPT, ACTION = Span(SpanKind.PROMPT, 0, 1, 0), Span(SpanKind.ACTION, 1, 3, 0)


def test_a_worked_episode() -> None:
    builder = TrajectoryBuilder([5, 6])
    builder.append_action([7, 8], [-0.25, 0.0], [3, 4])
    builder.append_observation([9])
    builder.append_action([10], [-1.5], [4])
    made = builder.finish(Outcome(Status.GRADED, ExitReason.SUBMITTED, 1.0), identity(), {"total": 2}, b"\xff")
    assert made.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert np.isnan(made.logprobs).tolist() == [True, True, False, False, True, False]
    assert made.versions.tolist() == [-1, -1, 3, 4, -1, 4]
    assert [(span.kind, span.start, span.end, span.turn) for span in made.spans] == [
        ("prompt", 0, 2, 0),
        ("action", 2, 4, 0),
        ("observation", 4, 5, 0),
        ("action", 5, 6, 1),
    ]
    assert (made.turns, made.oldest_version, len(made)) == (2, 3, 6)
    assert made.action_mask.tolist() == [False, False, True, True, False, True]


@given(builders())
def test_builder_keeps_every_id_in_order(built) -> None:  # type: ignore[no-untyped-def]
    builder, appended = built
    made = builder.finish(CUT, identity())
    assert made.tokens.tolist() == [token for _, tokens, _, _ in appended for token in tokens] == builder.tokens
    expected = np.array([value for _, _, logprobs, _ in appended for value in logprobs], np.float32)
    assert np.array_equal(made.logprobs, expected, equal_nan=True)
    assert [span.kind.value for span in made.spans] == [kind for kind, *_ in appended]
    assert [span.end for span in made.spans][:-1] == [span.start for span in made.spans][1:]
    assert made.spans[-1].end == len(made)
    assert builder.action_tokens == int(made.action_mask.sum())
    assert made.turns == sum(kind == "action" for kind, *_ in appended)
    actions = [span.turn for span in made.spans if span.kind is SpanKind.ACTION]
    assert actions == list(range(len(actions)))


@given(builders(), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_ids_only_grow(built, more) -> None:  # type: ignore[no-untyped-def]
    builder, _ = built
    before = builder.tokens
    builder.append_observation(more)
    assert builder.tokens[: len(before)] == before


@given(trajectories(), st.data())
def test_any_single_violation_is_refused_and_names_its_token(made: Trajectory, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(made) - 1))
    sampled = bool(made.action_mask[at])
    name, value = data.draw(
        st.sampled_from(
            [("logprobs", math.nan), ("logprobs", 0.5), ("logprobs", -math.inf), ("versions", -1), ("tokens", -1)]
            if sampled
            else [("logprobs", -0.5), ("logprobs", math.inf), ("versions", 0), ("versions", -2), ("tokens", -5)]
        )
    )
    array = getattr(made, name).copy()
    array[at] = value
    with pytest.raises(TrajectoryError, match=rf"token {at}\b"):
        dataclasses.replace(made, **{name: array})


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([PROMPT], "end at token 1 of 3"),
        ([PROMPT, Span(SpanKind.ACTION, 2, 3, 0)], "token 1 comes next"),
        ([PROMPT, Span(SpanKind.ACTION, 0, 3, 0)], "token 1 comes next"),
        ([PROMPT, Span(SpanKind.ACTION, 1, 1, 0), ACTION], "non-empty"),
        ([Span(SpanKind.OBSERVATION, 0, 1, 0), ACTION], "is the prompt"),
        ([PROMPT, Span(SpanKind.PROMPT, 1, 3, 0)], "is the prompt"),
        ([Span(SpanKind.PROMPT, 0, 1, 2), ACTION], "back from turn 2 to 0"),
        ([], "end at token 0 of 3"),
    ],
)
def test_spans_must_tile(spans: list[Span], text: str) -> None:
    with pytest.raises(TrajectoryError, match=text):
        make([1, 2, 3], [math.nan, -1, -1], [-1, 0, 0], spans)


def test_lengths_and_types_are_checked() -> None:
    good = make([1, 2, 3], [math.nan, -1, -1], [-1, 0, 0], [PROMPT, ACTION])
    with pytest.raises(TrajectoryError, match="lengths differ"):
        dataclasses.replace(good, versions=good.versions[:2])
    with pytest.raises(TrajectoryError, match="dtype int64"):
        dataclasses.replace(good, tokens=good.tokens.astype(np.int64))
    with pytest.raises(TrajectoryError, match="shape"):
        dataclasses.replace(good, tokens=good.tokens.reshape(1, 3))
    with pytest.raises(TrajectoryError, match="shape"):
        dataclasses.replace(good, tokens=np.int32(3))


def test_nobody_can_change_it_afterwards() -> None:
    """Neither through the array, nor through the array that it was made from, nor through a read-only view of one."""
    tokens = np.array([1, 2, 3], np.int32)
    view = tokens.view()
    view.flags.writeable = False
    grade = {"failed": ["a"]}
    made = make(view, [math.nan, -1, -1], [-1, 0, 0], [PROMPT, ACTION], Outcome("cut", "system_cut", grade=grade))
    tokens[0] = 99
    grade["failed"].append("b")
    assert made.tokens.tolist() == [1, 2, 3]
    assert made.outcome.grade == {"failed": ["a"]}
    with pytest.raises(ValueError, match="read-only"):
        made.tokens[0] = 5


def test_plain_strings_become_enum_members() -> None:
    assert Span("action", 0, 1, 0).kind is SpanKind.ACTION
    outcome = Outcome("graded", "submitted", 1)
    assert outcome.status is Status.GRADED
    assert outcome.exit_reason is ExitReason.SUBMITTED
    with pytest.raises(TrajectoryError, match="'thinking' is no SpanKind; known: prompt, action, observation"):
        Span("thinking", 0, 1, 0)
    with pytest.raises(TrajectoryError, match="'bored' is no ExitReason"):
        Outcome("graded", "bored", 1.0)


@pytest.mark.parametrize(
    ("status", "reason", "reward", "text"),
    [
        ("graded", "submitted", None, "graded has one"),
        ("graded", "submitted", math.nan, "not finite"),
        ("infra_error", "sandbox_error", 0.0, "nothing else has"),
        ("cut", "system_cut", 1.0, "nothing else has"),
        ("graded", "sandbox_error", 0.0, "does not go with"),
        ("infra_error", "submitted", None, "does not go with"),
    ],
)
def test_an_infra_error_is_never_a_reward(status: str, reason: str, reward: float | None, text: str) -> None:
    with pytest.raises(TrajectoryError, match=text):
        Outcome(status, reason, reward)  # type: ignore[arg-type]


def test_what_cannot_be_stored_is_refused_where_it_is_made() -> None:
    with pytest.raises(TrajectoryError, match="grade cannot be stored"):
        Outcome("cut", "system_cut", grade={"score": math.nan})
    with pytest.raises(TrajectoryError, match="grade cannot be stored"):
        Outcome("cut", "system_cut", grade={"raw": b"bytes"})
    assert Outcome("cut", "system_cut", grade={"pair": (1, 2)}).grade == {"pair": [1, 2]}
    with pytest.raises(TrajectoryError, match="seed"):
        Identity("e", "t", 0, 2**63, "tok")
    with pytest.raises(TrajectoryError, match="draw"):
        Identity("e", "t", -1, 0, "tok")
    with pytest.raises(TrajectoryError, match="episode_id is empty"):
        Identity("", "t", 0, 0, "tok")
    with pytest.raises(TrajectoryError, match="timings"):
        dataclasses.replace(episode(1), timings={"total": "soon"})


def test_only_an_episode_without_reward_may_have_no_tokens() -> None:
    nothing = empty(0)
    assert (len(nothing), nothing.turns, nothing.oldest_version) == (0, 0, None)
    with pytest.raises(TrajectoryError, match="graded but has no tokens"):
        dataclasses.replace(nothing, outcome=Outcome("graded", "max_context", 0.0))


def test_a_refused_span_leaves_no_trace_in_the_builder() -> None:
    builder = TrajectoryBuilder([1])
    with pytest.raises(TrajectoryError, match="empty action span at token 1"):
        builder.append_action([], [], [])
    with pytest.raises(TrajectoryError, match="2 log-probabilities"):
        builder.append_action([1], [-1.0, -1.0], [0])
    with pytest.raises(TrajectoryError, match="empty observation"):
        builder.append_observation([])
    builder.append_action([2], [-1.0], [0])
    assert builder.finish(CUT, identity()).spans[1] == Span(SpanKind.ACTION, 1, 2, 0)
    with pytest.raises(TrajectoryError, match="empty prompt"):
        TrajectoryBuilder([])


def test_numbers_beyond_32_bits_are_named() -> None:
    builder = TrajectoryBuilder([1, 2**31])
    with pytest.raises(TrajectoryError, match="token 1: id 2147483648 does not fit"):
        builder.finish(CUT, identity())
    builder = TrajectoryBuilder([1])
    builder.append_action([2], [-1.0], [2**40])
    with pytest.raises(TrajectoryError, match="token 1: version"):
        builder.finish(CUT, identity())
    builder = TrajectoryBuilder([1])
    builder.append_action([2], [-1e39], [0])  # finite in 64 bits only
    with pytest.raises(TrajectoryError, match="token 1 is an action with log-probability -inf"):
        builder.finish(CUT, identity())


@given(trajectories())
def test_equality_is_by_content(made: Trajectory) -> None:
    assert made == dataclasses.replace(made)
    assert made != dataclasses.replace(made, patch=made.patch + b"x")
