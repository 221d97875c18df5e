"""The one type that flows through every room: an episode as interleaved model and observation tokens.

Invariants, checked when a `Trajectory` is made, never repaired:
* the spans tile [0, T) in order, the first is the prompt, turns never decrease;
* every action token has a finite log-probability <= 0 and a policy version >= 0;
* no other token has either (log-probability NaN, version -1);
* only an episode without a reward may have no tokens at all (its sandbox failed before the prompt);
* its turns are all sampled here (`action`) or all written elsewhere (`quoted`: by an endpoint, in an imported file),
  never both; imported ones are quoted;
* `grade` and `timings` are plain JSON and a copy: what is stored and read back is equal to what was made.
Token ids are only ever appended (`TrajectoryBuilder`): no path leads from text back to ids.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray


class TrajectoryError(ValueError):
    """A trajectory breaks an invariant; the text names the token."""


class SpanKind(enum.StrEnum):
    PROMPT = "prompt"
    ACTION = "action"
    OBSERVATION = "observation"
    QUOTED = "quoted"
    """A turn of a model that another system ran (data/quoted.py): text as ids, no log-probability, never trained on."""


class Status(enum.StrEnum):
    GRADED = "graded"
    """The verifier gave a reward: trained on, whatever ended the episode, unless its turns are quoted."""
    INFRA_ERROR = "infra_error"
    """Sandbox, image or engine failed: no reward, never trained on."""
    CUT = "cut"
    """Stopped by the system (shutdown, drain): no reward, bootstrapped when trained on."""
    IMPORTED = "imported"
    """Read from another system's file, to be looked at: no log-probabilities, no reward of ours, never trained on."""


class ExitReason(enum.StrEnum):
    """Why the episode ended. Closed: a new reason is a new member, never free text."""

    SUBMITTED = "submitted"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_CONTEXT = "max_context"
    WALL_CLOCK = "wall_clock"
    SANDBOX_ENDED = "sandbox_ended"
    """By what the model ran in it, while the machine was well: its own failure (`grade["sandbox_ended"]` says how)."""
    SYSTEM_CUT = "system_cut"
    SANDBOX_ERROR = "sandbox_error"
    ENGINE_ERROR = "engine_error"
    GRADER_ERROR = "grader_error"
    IMPORTED = "imported"
    """As the other system says in its own words: `grade["exit_status"]`."""


_STATUS_OF_EXIT: Mapping[ExitReason, frozenset[Status]] = {
    ExitReason.SUBMITTED: frozenset({Status.GRADED}),
    ExitReason.MAX_TURNS: frozenset({Status.GRADED}),
    ExitReason.MAX_TOKENS: frozenset({Status.GRADED}),
    ExitReason.MAX_CONTEXT: frozenset({Status.GRADED}),
    ExitReason.WALL_CLOCK: frozenset({Status.GRADED}),
    ExitReason.SANDBOX_ENDED: frozenset({Status.GRADED}),
    ExitReason.SYSTEM_CUT: frozenset({Status.CUT}),
    ExitReason.SANDBOX_ERROR: frozenset({Status.INFRA_ERROR}),
    ExitReason.ENGINE_ERROR: frozenset({Status.INFRA_ERROR}),
    ExitReason.GRADER_ERROR: frozenset({Status.INFRA_ERROR}),
    ExitReason.IMPORTED: frozenset({Status.IMPORTED}),
}


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of one kind; `turn` counts from 0, an action (or quoted) and its observation share one."""

    kind: SpanKind
    start: int
    end: int
    turn: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _member(SpanKind, self.kind))

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Outcome:
    """How the episode ended. `reward` is set exactly when `status` is graded; `grade` is what the grader saw."""

    status: Status
    exit_reason: ExitReason
    reward: float | None = None
    grade: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able; for SWE tasks the test ids by outcome and the tail of the log, for errors kind and message."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", _member(Status, self.status))
        object.__setattr__(self, "exit_reason", _member(ExitReason, self.exit_reason))
        object.__setattr__(self, "grade", _plain_json(self.grade, "grade"))
        if self.status not in _STATUS_OF_EXIT[self.exit_reason]:
            raise TrajectoryError(f"status {self.status} does not go with exit reason {self.exit_reason}")
        if (self.status is Status.GRADED) != (self.reward is not None):
            raise TrajectoryError(f"status {self.status} with reward {self.reward!r}: graded has one, nothing else has")
        if self.reward is not None:
            if not math.isfinite(self.reward):
                raise TrajectoryError(f"reward {self.reward!r} is not finite")
            object.__setattr__(self, "reward", float(self.reward))


@dataclass(frozen=True)
class Sampling:
    """How action tokens were drawn. SAO trains only on temperature 1, top-p 1 (the recorded distribution). -1: unknown
    (imported)."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Identity:
    """Where a trajectory comes from. `draw` is its place in the run's plan; a retried draw has a new episode id."""

    episode_id: str
    task_id: str
    draw: int
    seed: int
    tokenizer: str
    """Fingerprint (hash) of the tokenizer that the ids belong to."""
    sampling: Sampling = Sampling()
    lineage: str = ""
    """Names the weights' line of descent: a policy version is (lineage, n)."""
    agent: str = ""
    """Name of the agent preset: which prompt and tools."""
    sandbox: str = ""
    """Backend that ran the actions: docker, embedded."""

    def __post_init__(self) -> None:
        if not self.episode_id:
            raise TrajectoryError("episode_id is empty: readers tell episodes apart by it")
        for name in ("draw", "seed"):
            value = getattr(self, name)
            if not 0 <= value < 2**63:
                raise TrajectoryError(f"episode {self.episode_id}: {name} {value} is not in [0, 2**63)")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode. Arrays share one token axis [T] and are read-only."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    spans: tuple[Span, ...]
    outcome: Outcome
    identity: Identity
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase: reset, generate, step, grade, total; started_at is Unix time."""
    patch: bytes = b""
    """The driver's diff against base_commit, byte for byte."""

    def __post_init__(self) -> None:
        for name, dtype in (("tokens", np.int32), ("logprobs", np.float32), ("versions", np.int32)):
            array = np.asarray(getattr(self, name))
            if array.ndim != 1:
                raise TrajectoryError(f"{name} has shape {array.shape}, expected one token axis")
            if array.dtype != dtype:
                raise TrajectoryError(f"{name} has dtype {array.dtype}, expected {np.dtype(dtype)}")
            if array.flags.writeable or array.base is not None:  # a view can change, or hold a whole file, behind us
                array = array.copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "spans", tuple(self.spans))
        object.__setattr__(self, "timings", _seconds(self.timings))
        object.__setattr__(self, "patch", bytes(self.patch))
        check_tokens(self.tokens, self.logprobs, self.versions, self.spans)
        kinds = {span.kind for span in self.spans}
        if SpanKind.ACTION in kinds and (SpanKind.QUOTED in kinds or self.outcome.status is Status.IMPORTED):
            raise TrajectoryError(
                f"episode {self.identity.episode_id} of status {self.outcome.status} has an action beside what was "
                "written elsewhere: quoted turns and imported trajectories have no action"
            )
        if not len(self.tokens) and self.outcome.status is Status.GRADED:
            raise TrajectoryError(f"episode {self.identity.episode_id} is graded but has no tokens")

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return (
            np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.logprobs, other.logprobs, equal_nan=True)
            and np.array_equal(self.versions, other.versions)
            and (self.spans, self.outcome, self.identity, dict(self.timings), self.patch)
            == (other.spans, other.outcome, other.identity, dict(other.timings), other.patch)
        )

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """[T], true on tokens that the policy sampled."""
        return self.versions >= 0

    @property
    def turns(self) -> int:
        return sum(span.kind in (SpanKind.ACTION, SpanKind.QUOTED) for span in self.spans)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest action token (staleness counts from it); None without action tokens."""
        mask = self.action_mask
        return int(self.versions[mask].min()) if mask.any() else None


def check_tokens(
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    versions: NDArray[np.int32],
    spans: Sequence[Span],
) -> None:
    """Raise `TrajectoryError` naming the first token that breaks an invariant of the module docstring."""
    total = len(tokens)
    if len(logprobs) != total or len(versions) != total:
        raise TrajectoryError(
            f"{total} tokens, {len(logprobs)} log-probabilities, {len(versions)} versions: lengths differ"
        )
    negative = np.flatnonzero(tokens < 0)
    if negative.size:
        raise TrajectoryError(f"token {negative[0]}: id {tokens[negative[0]]} is negative")
    position, turn = 0, 0
    for index, span in enumerate(spans):
        if span.start != position or span.end <= span.start:
            raise TrajectoryError(
                f"span {index} ({span.kind}) covers [{span.start}, {span.end}) but token {position} comes next: "
                "spans must tile the tokens and be non-empty"
            )
        if (span.kind is SpanKind.PROMPT) != (index == 0):
            raise TrajectoryError(
                f"span {index} at token {span.start} is {span.kind}: the first span, and only it, is the prompt"
            )
        if span.turn < turn:
            raise TrajectoryError(f"span {index} at token {span.start} goes back from turn {turn} to {span.turn}")
        position, turn = span.end, span.turn
    if position != total:
        raise TrajectoryError(f"spans end at token {position} of {total}")
    is_action = np.zeros(total, dtype=bool)
    for span in spans:
        if span.kind is SpanKind.ACTION:
            is_action[span.start : span.end] = True
    with np.errstate(invalid="ignore"):
        bad_action = np.flatnonzero(is_action & ~(np.isfinite(logprobs) & (logprobs <= 0) & (versions >= 0)))
    if bad_action.size:
        at = bad_action[0]
        raise TrajectoryError(
            f"token {at} is an action with log-probability {logprobs[at]} and version {versions[at]}: "
            "needs a finite log-probability <= 0 and a version >= 0, recorded when it was sampled"
        )
    bad_other = np.flatnonzero(~is_action & ~(np.isnan(logprobs) & (versions == -1)))
    if bad_other.size:
        at = bad_other[0]
        raise TrajectoryError(
            f"token {at} was not sampled but has log-probability {logprobs[at]} and version {versions[at]}: "
            "needs NaN and -1"
        )


class TrajectoryBuilder:
    """Appends spans; the only way episodes make trajectories.

    >>> builder = TrajectoryBuilder([1, 2, 3])
    >>> builder.append_action([4, 5], [-0.1, -0.2], [0, 0])
    >>> builder.append_observation([6])
    >>> len(builder)
    6
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._spans: list[Span] = []
        self._turn = -1
        self._append(SpanKind.PROMPT, prompt, None, None)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """A copy of all ids so far: exactly what the engine gets next."""
        return list(self._tokens)

    @property
    def action_tokens(self) -> int:
        return sum(len(span) for span in self._spans if span.kind is SpanKind.ACTION)

    def append_action(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append sampled tokens as a new turn. Values above 0 by rounding are the engine's to clamp, not ours."""
        if not len(tokens) == len(logprobs) == len(versions):
            raise TrajectoryError(
                f"action of {len(tokens)} tokens has {len(logprobs)} log-probabilities, {len(versions)} versions"
            )
        self._append(SpanKind.ACTION, tokens, logprobs, versions)

    def append_quoted(self, tokens: Sequence[int]) -> None:
        """Append a turn that another system's model wrote, as a new turn."""
        self._append(SpanKind.QUOTED, tokens, None, None)

    def append_observation(self, tokens: Sequence[int]) -> None:
        self._append(SpanKind.OBSERVATION, tokens, None, None)

    def _append(
        self,
        kind: SpanKind,
        tokens: Sequence[int],
        logprobs: Sequence[float] | None,
        versions: Sequence[int] | None,
    ) -> None:
        if len(tokens) == 0:
            raise TrajectoryError(f"empty {kind} span at token {len(self._tokens)}")
        if kind in (SpanKind.ACTION, SpanKind.QUOTED):  # after the checks: a refused span leaves no trace
            self._turn += 1
        start = len(self._tokens)
        self._tokens.extend(int(token) for token in tokens)
        self._logprobs.extend(logprobs if logprobs is not None else [math.nan] * len(tokens))
        self._versions.extend(versions if versions is not None else [-1] * len(tokens))
        self._spans.append(Span(kind, start, len(self._tokens), max(self._turn, 0)))

    def finish(
        self,
        outcome: Outcome,
        identity: Identity,
        timings: Mapping[str, float] | None = None,
        patch: bytes = b"",
    ) -> Trajectory:
        with np.errstate(over="ignore"):  # too large becomes infinite, which the check below names
            logprobs = np.asarray(self._logprobs, dtype=np.float32)
        return Trajectory(
            tokens=_int32(self._tokens, "id"),
            logprobs=logprobs,
            versions=_int32(self._versions, "version"),
            spans=tuple(self._spans),
            outcome=outcome,
            identity=identity,
            timings=dict(timings or {}),
            patch=patch,
        )


_Member = TypeVar("_Member", bound=enum.StrEnum)


def _member(kind: type[_Member], value: str) -> _Member:
    """The enum's member: plain strings compare equal to members but fail every `is`."""
    try:
        return kind(value)
    except ValueError:
        raise TrajectoryError(f"{value!r} is no {kind.__name__}; known: {', '.join(kind)}") from None


def _plain_json(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrajectoryError(f"{name} cannot be stored as JSON: {error}") from error


def _seconds(timings: Mapping[str, float]) -> dict[str, float]:
    try:
        return {str(phase): float(seconds) for phase, seconds in timings.items()}
    except (TypeError, ValueError) as error:
        raise TrajectoryError(f"timings must map phases to seconds: {error}") from error


def _int32(values: Sequence[int], name: str) -> NDArray[np.int32]:
    array = np.asarray(values, dtype=np.int64)
    limits = np.iinfo(np.int32)
    bad = np.flatnonzero((array < limits.min) | (array > limits.max))
    if bad.size:
        raise TrajectoryError(f"token {bad[0]}: {name} {array[bad[0]]} does not fit 32 bits")
    return array.astype(np.int32)
