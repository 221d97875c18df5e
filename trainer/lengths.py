"""Which lengths train: a trainer that takes what finishes first takes the short ones first, and loses the long ones.

Promises: read from the draws' numbers and the sampled tokens of what came in, nothing else; undefined is None. The
mean over *dispatched* draws is taken over the longest run of draws from 0 on that are all in, the only ones that no
finishing order has picked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Sampled tokens a trajectory (means), so far in the run."""

    batch: float | None
    """Of this step's batch."""
    dispatched: float | None
    """Of the first draws, all of them in: the true mean."""
    dispatched_draws: int
    """How many those are."""
    finished: float | None
    """Of all that came in."""
    trained: float | None
    dropped: float | None
    dropped_draws: float
    """Share of the draws dealt with."""
    dropped_tokens: float
    """Share of their sampled tokens."""
    overtaken: float
    """Share of the draws up to the newest one in that are not in yet: they run longer than what trains now."""

    @property
    def bias(self) -> float | None:
        """Mean length of the batch over that of what was dispatched; None as long as that is not known."""
        return self.batch / self.dispatched if self.batch is not None and self.dispatched else None


def lengths(
    batch: Iterable[int], trained: Mapping[int, int], dropped: Mapping[int, int], waiting: Mapping[int, int]
) -> Lengths:
    """`batch`: tokens of its trajectories; the others: draw -> tokens. The batch's draws are among the trained."""
    known = {**waiting, **dropped, **trained}
    first = next((draw for draw in range(len(known) + 1) if draw not in known), 0)
    started = max(known, default=-1) + 1
    lost, dealt = sum(dropped.values()), sum(dropped.values()) + sum(trained.values())
    return Lengths(
        batch=_mean(list(batch)),
        dispatched=_mean([known[draw] for draw in range(first)]),
        dispatched_draws=first,
        finished=_mean(known.values()),
        trained=_mean(trained.values()),
        dropped=_mean(dropped.values()),
        dropped_draws=len(dropped) / max(len(dropped) + len(trained), 1),
        dropped_tokens=lost / max(dealt, 1),
        overtaken=(started - len(known)) / max(started, 1),
    )


def _mean(values: Iterable[int]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
