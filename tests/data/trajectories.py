"""Trajectories for tests: worked ones by number, and a hypothesis strategy for any valid one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from data.trajectory import ExitReason, Identity, Outcome, Sampling, Status, Trajectory, TrajectoryBuilder

GRADED = [ExitReason.SUBMITTED, ExitReason.MAX_TURNS, ExitReason.MAX_TOKENS, ExitReason.MAX_CONTEXT]
INFRA = [ExitReason.SANDBOX_ERROR, ExitReason.ENGINE_ERROR, ExitReason.GRADER_ERROR]


def identity(episode_id: str = "ep-0", draw: int = 0) -> Identity:
    return Identity(episode_id, f"task-{draw}", draw, seed=draw, tokenizer="fingerprint", lineage="demo")


def episode(number: int, size: int = 5) -> Trajectory:
    """The same trajectory for the same number, in every process."""
    builder = TrajectoryBuilder([number % 1000, 1, 2])
    builder.append_action(range(size), [-0.5 * step for step in range(size)], [number] * size)
    builder.append_observation([7, 8])
    outcome = Outcome(Status.GRADED, ExitReason.SUBMITTED, float(number % 2), {"passed": [f"test_{number}"]})
    patch = f"diff {number}\r\n".encode() + bytes([0, 255, number % 256])
    return builder.finish(outcome, identity(f"ep-{number}", number), {"total": number / 7}, patch)


def ids(trajectories: object) -> list[str]:
    return [trajectory.identity.episode_id for trajectory in trajectories]  # type: ignore[attr-defined]


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_token = st.integers(0, 2**31 - 1)
_logprob = st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_seconds = st.floats(0, 1e9, allow_nan=False)


@st.composite
def outcomes(draw: st.DrawFn, imported: bool = False) -> Outcome:
    grade = draw(st.dictionaries(st.text(max_size=5), _json, max_size=3))
    if imported:
        return Outcome(Status.IMPORTED, ExitReason.IMPORTED, None, grade)
    status = draw(st.sampled_from([one for one in Status if one is not Status.IMPORTED]))
    if status is Status.GRADED:
        reward = draw(st.floats(-10, 10, allow_nan=False))
        return Outcome(status, draw(st.sampled_from([*GRADED, ExitReason.WALL_CLOCK])), reward, grade)
    reasons = INFRA if status is Status.INFRA_ERROR else [ExitReason.SYSTEM_CUT]
    return Outcome(status, draw(st.sampled_from(reasons)), None, grade)


@st.composite
def builders(
    draw: st.DrawFn, imported: bool = False
) -> tuple[TrajectoryBuilder, list[tuple[str, list[int], list[float], list[int]]]]:
    """A builder and what was appended to it: (kind, tokens, log-probabilities, versions)."""
    prompt = draw(st.lists(_token, min_size=1, max_size=6))
    builder, appended = TrajectoryBuilder(prompt), [("prompt", prompt, [math.nan] * len(prompt), [-1] * len(prompt))]
    for is_action in draw(st.lists(st.booleans(), max_size=6)):
        tokens = draw(st.lists(_token, min_size=1, max_size=6))
        if is_action and imported:
            builder.append_quoted(tokens)
            appended.append(("quoted", tokens, [math.nan] * len(tokens), [-1] * len(tokens)))
        elif is_action:
            logprobs = [draw(_logprob) for _ in tokens]
            versions = [draw(st.integers(0, 2**31 - 1)) for _ in tokens]
            builder.append_action(tokens, logprobs, versions)
            appended.append(("action", tokens, logprobs, versions))
        else:
            builder.append_observation(tokens)
            appended.append(("observation", tokens, [math.nan] * len(tokens), [-1] * len(tokens)))
    return builder, appended


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    imported = draw(st.integers(0, 9)) == 9
    builder, _ = draw(builders(imported))
    number = st.integers(0, 2**63 - 1)
    who = Identity(
        episode_id=draw(_text.filter(bool)),
        task_id=draw(_text),
        draw=draw(number),
        seed=draw(number),
        tokenizer=draw(_text),
        sampling=Sampling(draw(_seconds), draw(st.floats(0, 1))),
        lineage=draw(_text),
        agent=draw(_text),
        sandbox=draw(_text),
    )
    timings = draw(st.dictionaries(_text, _seconds, max_size=3))
    return builder.finish(draw(outcomes(imported)), who, timings, draw(st.binary(max_size=40)))


def empty(number: int) -> Trajectory:
    """An episode whose sandbox failed before the first prompt: no tokens at all."""
    outcome = Outcome(Status.INFRA_ERROR, ExitReason.SANDBOX_ERROR, None, {"kind": "StartFailed"})
    none = np.zeros(0, np.int32)
    return Trajectory(none, np.zeros(0, np.float32), none, (), outcome, identity(f"empty-{number}", number))
