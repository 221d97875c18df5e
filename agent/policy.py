"""What acts: token ids in, token ids out. Engines implement `Policy`; nothing here knows about text."""

from __future__ import annotations

import abc
import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.trajectory import Sampling


class EngineError(RuntimeError):
    """The engine failed: an infrastructure fault, never a model failure."""


class StopReason(enum.StrEnum):
    STOP = "stop"
    """A stop token was sampled; it is the last of `tokens`."""
    LENGTH = "length"
    """max_new_tokens were sampled without a stop token."""
    ABORTED = "aborted"
    """The engine was told to stop (drain, shutdown); tokens sampled so far are returned."""


@dataclass(frozen=True)
class Generation:
    """Parallel lists: sampled ids, their log-probabilities as sampled (<= 0), the policy version that sampled each."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    stop_reason: StopReason


class Policy(abc.ABC):
    """A policy served by some engine. `lineage` and `version` name the weights that sample the next token."""

    lineage: str
    version: int
    max_context: int | None = None
    """Most tokens (prompt and new ones together) that the engine takes; None where it does not say."""
    sampling: Sampling = Sampling()
    """How this engine draws tokens."""

    @abc.abstractmethod
    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        episode_id: str = "",
    ) -> Generation:
        """Continue `tokens`. Same seed, weights and ids give the same sample whatever else is in the batch, up to
        floating-point ties. `episode_id` lets an engine keep that episode's cache between turns. Raises EngineError."""

    async def forget(self, episode_id: str) -> None:  # noqa: B027 - an engine without a cache has nothing to forget
        """The episode ended: drop its cache."""

    async def abort(self, episode_id: str) -> None:  # noqa: B027 - an engine that cannot is cancelled instead
        """End the episode's running `generate` soon: it returns ABORTED with the tokens sampled so far."""

    def clock(self) -> float:
        """Seconds by which an episode's wall clock is to be measured. An engine that has to leave its device to the
        trainer for a while stops it meanwhile."""
        return time.monotonic()

    @abc.abstractmethod
    async def close(self) -> None: ...


class TrainablePolicy(Policy):
    """A policy whose weights change while it samples."""

    @abc.abstractmethod
    async def update_weights(self, source: str | Path, version: int, *, lineage: str | None = None) -> None:
        """Take the weights of a folder between two tokens, requests in flight going on with them; nothing computed by
        the old ones is used again. `version` must be above the present one of the lineage. Raises EngineError."""

    async def rest(self) -> None:
        """Leave the device to the trainer until `wake`; requests stay and go on afterwards. Raises EngineError."""
        raise EngineError(f"{type(self).__name__} cannot leave its device: only the vLLM engine runs colocated")

    async def wake(self, source: str | Path | None = None, version: int = 0, *, lineage: str | None = None) -> None:
        """Take the device again, under the weights of a folder or the present ones. Raises EngineError."""
        raise EngineError(f"{type(self).__name__} cannot leave its device: only the vLLM engine runs colocated")
