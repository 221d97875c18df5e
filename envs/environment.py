"""What the agent's episode loop sees of an environment: messages out, tool calls in, a grade at the end."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class EnvironmentFault(RuntimeError):
    """The environment itself failed (grader crashed, repository could not be prepared): infra_error, never reward 0."""


class ImageUnfit(EnvironmentFault):
    """An image that no sandbox can serve its task from. Trying again does not help."""

    transient = False


@dataclass(frozen=True)
class ToolCall:
    """One parsed call: `arguments` as decoded from the model's own text."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What one tool call returned. `done` ends the episode (submit). `error` names a failed call, None when fine."""

    text: str
    done: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Grade:
    """`reward` in [0, 1]; `detail` is JSON-able: what the grader saw; `patch` is the driver's diff, byte for byte."""

    reward: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    patch: bytes = b""


class Environment(abc.ABC):
    """One episode's world. Order of calls: reset, step*, answer?, grade, close (close always, and at any time)."""

    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas offered to the model, OpenAI function format."""
    takes_text: bool = False
    """A turn without a tool call is the model's answer: it ends the episode, and `answer` gets it."""

    def answer(self, text: str) -> None:
        """The last turn's text outside of its thoughts, also when a limit cut it. Only called where `takes_text`."""
        raise NotImplementedError

    @abc.abstractmethod
    async def reset(self) -> str:
        """Prepare the world; returns the task's user message. Raises SandboxError or EnvironmentFault."""

    @abc.abstractmethod
    async def step(self, call: ToolCall) -> Observation:
        """Run one call. A model's mistake is an Observation with `error`; infrastructure faults raise."""

    @abc.abstractmethod
    async def grade(self) -> Grade:
        """Score the final state. Raises SandboxError or EnvironmentFault, never returns a reward for a fault."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release everything; may be called twice."""
