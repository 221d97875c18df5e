"""What cannot be trained on: found at intake by the run's limits, or by a step that failed on it.

Promises: every refusal has a reason of the ledger's closed list; a step that fails on its batch says so by `BatchFault`
and names the trajectories where it can; anything else that goes wrong is not caught here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from data.trajectory import Trajectory
from trainer.ledger import DropReason
from trainer.packing import MicroBatch, untrainable_reason
from trainer.train_config import LimitsConfig


class BatchFault(RuntimeError):
    """A step failed because of its batch. The models may be half updated: go back to the checkpoint."""

    def __init__(self, reason: DropReason, text: str, members: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.reason = reason
        self.members = tuple(members)
        """Places in the batch; empty: it cannot be said which."""


class TooManyUnfit(RuntimeError):
    """More was set aside than the run's limits allow; the text says what and how to go on."""


@dataclass(frozen=True)
class Limits:
    """What intake admits. `max_tokens` 0: any length."""

    max_tokens: int = 0
    max_reward: float = float("inf")

    @classmethod
    def of(cls, config: LimitsConfig, policy: nn.Module) -> Limits:
        return cls(config.max_tokens or positions_of(policy), config.max_reward)

    def __str__(self) -> str:
        length = f"up to {self.max_tokens:,} tokens" if self.max_tokens else "any length"
        return f"trajectories of {length} with rewards within \u00b1{self.max_reward:g} are trained on"

    def refusal(self, trajectory: Trajectory, *, bootstraps: bool) -> tuple[DropReason, str] | None:
        """Why this trajectory is not admitted, for the ledger and in words."""
        if why := untrainable_reason(trajectory, bootstraps=bootstraps):
            return DropReason.UNTRAINABLE, why
        if self.max_tokens and len(trajectory) > self.max_tokens:
            return DropReason.TOO_LONG, f"{len(trajectory)} tokens, the limit is {self.max_tokens}"
        reward = trajectory.outcome.reward
        if reward is not None and abs(reward) > self.max_reward:
            return DropReason.REWARD_OUT_OF_BOUNDS, f"reward {reward:g} is beyond \u00b1{self.max_reward:g}"
        return None


ANY = Limits()
"""Whatever can be trained on at all."""


def positions_of(policy: nn.Module) -> int:
    """Positions that the model was built for; 0 where its configuration does not say."""
    config: Any = getattr(policy, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "max_position_embeddings", None) or 0)


@contextmanager
def blamed_on(part: MicroBatch) -> Iterator[None]:
    """Memory that runs out in the block is the micro-batch's doing."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        rows, longest = part.tokens.shape
        raise BatchFault(
            DropReason.OUT_OF_MEMORY,
            f"a micro-batch of {rows} x {longest} tokens does not fit the memory ({str(error).splitlines()[0][:200]})",
            part.members,
        ) from error


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "can't allocate memory" in str(error)  # torch's CPU allocator raises a plain RuntimeError
