"""What the episode loop sees of whoever acts: a conversation that grows turn by turn, counted in tokens.

Two kinds: `token_dialogue` (a Policy, exact ids, trainable) and `endpoint.dialogue` (text over HTTP, never trainable).
Limits, tools, observations, grading and faults are the loop's, the same for both.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agent.parsers import Parsed, Tools
from agent.policy import StopReason
from agent.presets import Limits, Preset
from agent.renderers import Message, Renderer
from data.trajectory import Identity, Outcome, Sampling, Trajectory, TrajectoryBuilder
from envs.tools.text import cap

T = TypeVar("T")
SHORTEST_CHARS = 120
"""An observation is not shortened below this; the episode ends instead."""


class ContextFull(Exception):
    """Whoever acts takes no more: the context is used up before the loop's own count says so."""


class Dialogue(abc.ABC):
    """One episode's conversation. Order: begin, (generate, parse or said, observe)*, finish."""

    builder: TrajectoryBuilder | None = None
    """None until `begin`."""
    max_context: int | None = None
    """Most tokens that whoever acts takes; None where nobody says."""
    turn_tokens: int = 0
    """Of the newest turn."""
    turn_logprob: float = float("nan")
    """Mean log-probability of the newest turn's tokens, where there are any."""

    def clock(self) -> float:
        """Seconds by which the episode's wall clock is measured. It stands still while whoever acts cannot."""
        return time.monotonic()

    @abc.abstractmethod
    def begin(self, messages: Sequence[Message], tools: Tools, *, listed: bool) -> None:
        """The first prompt. `tools` are what may be called; they stand in the prompt where `listed`."""

    @property
    @abc.abstractmethod
    def sampled(self) -> int:
        """Tokens of all turns so far."""

    @property
    @abc.abstractmethod
    def used(self) -> int:
        """Tokens of the whole conversation so far."""

    @abc.abstractmethod
    async def generate(self, room: int, seed: int) -> StopReason:
        """The next turn, of at most `room` tokens: part of the conversation when this returns, cancelled nothing of it
        is. Raises EngineError, ContextFull."""

    async def overdue(self) -> None:  # noqa: B027
        """The episode's time ran out while `generate` was at it. Raises EngineError where that says nothing of the
        model, since whoever acts cannot be reached any more."""

    @abc.abstractmethod
    async def abort(self) -> None:
        """End the running `generate` soon: it returns ABORTED, and what was made so far is kept where it can be."""

    @abc.abstractmethod
    def parse(self, *, cut: bool) -> Parsed:
        """The calls of the newest turn. `cut`: it was ended by its limit."""

    @abc.abstractmethod
    def said(self) -> str:
        """The newest turn's text outside of its thoughts."""

    @abc.abstractmethod
    def observe(self, texts: list[str], names: Sequence[str | None], room: int) -> int | None:
        """Append the results of the newest turn's calls, shortened alike to at most `room` tokens; how many it took.
        None when not even the shortest form fits: then nothing is appended. `names`: the tool that each text answers.
        """

    def detail(self) -> Mapping[str, Any]:
        """For the outcome, beside what the grader saw."""
        return {}

    def finish(
        self, outcome: Outcome, identity: Identity, timings: Mapping[str, float], patch: bytes
    ) -> Trajectory | None:
        """None when there was no first prompt."""
        return None if self.builder is None else self.builder.finish(outcome, identity, timings, patch)


class TextActor(Protocol):
    """What acts in text; a `Policy` acts in ids."""

    lineage: str
    sampling: Sampling

    def dialogue(self, renderer: Renderer, preset: Preset, limits: Limits) -> Dialogue: ...

    async def forget(self, episode_id: str) -> None: ...


def fitted(texts: list[str], room: int, make: Callable[[list[str]], T], size: Callable[[T], int]) -> T | None:
    """What `make` makes of the texts, at most `room` large: all get the same, largest possible number of characters.
    None when not even the shortest form fits."""
    made = make(texts)
    if size(made) <= room:
        return made
    best: T | None = None
    low, high = SHORTEST_CHARS, max(len(text) for text in texts) - 1
    while low <= high:
        middle = (low + high) // 2
        made = make([cap(text, middle) for text in texts])
        if size(made) <= room:
            best, low = made, middle + 1
        else:
            high = middle - 1
    return best
