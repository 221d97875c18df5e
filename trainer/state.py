"""What a trainer knows besides its models and optimizers: plain values, all of them in every checkpoint.

Version numbers are never used twice, so after a crash that took published versions back, the same weights get a higher
number. `VersionAxis` keeps the count of policy updates behind every number: staleness is a distance in updates, and a
run that was rolled back drops exactly what the undisturbed one would.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from data.trajectory import Trajectory
from trainer.controls import RewardHistory
from trainer.health import HealthState
from trainer.ledger import Ledger
from trainer.publish import Version
from trainer.statistics import StepMetrics


@dataclass(frozen=True)
class VersionAxis:
    """Segments (first number, offset): numbers from `first` on are `updates + offset`."""

    segments: tuple[tuple[int, int], ...] = ((0, 0),)

    def updates(self, number: int) -> int:
        """Policy updates behind the version `number`."""
        index = bisect_right(self.segments, (number, 1 << 62)) - 1
        return number - self.segments[max(index, 0)][1]

    def number(self, updates: int) -> int:
        """The number that the present lineage gives to weights after `updates` updates."""
        return updates + self.segments[-1][1]

    def including(self, segments: Iterable[tuple[int, int]]) -> VersionAxis:
        """With the segments of lineages that were taken back as well: their tokens are still on the way."""
        known = dict(self.segments)
        for first, offset in segments:
            known.setdefault(first, offset)
        kept: list[tuple[int, int]] = []
        for first, offset in sorted(known.items()):
            if not kept or kept[-1][1] != offset:
                kept.append((first, offset))
        return VersionAxis(tuple(kept))

    def renumbered(self, updates: int, first: int) -> VersionAxis:
        """A new lineage whose weights after `updates` updates carry number `first`."""
        return VersionAxis((*self.segments, (first, first - updates)))

    def staleness(self, trajectory: Trajectory, updates: int) -> int | None:
        """Updates since the **oldest** token; None without action tokens. Weights that a rollback took back count as
        new: the trainer is about to make them again."""
        oldest = trajectory.oldest_version
        return None if oldest is None else max(0, updates - self.updates(oldest))

    def corrected(self, metrics: StepMetrics, batch: list[Trajectory], updates: int) -> StepMetrics:
        """The step's numbers with versions counted in updates."""
        ages = [age for t in batch if (age := self.staleness(t, updates)) is not None]
        newest = metrics.newest_version
        return replace(
            metrics,
            version=updates,
            newest_version=None if newest is None else self.updates(newest),
            staleness_mean=sum(ages) / len(ages) if ages else None,
            staleness_max=max(ages, default=None),
        )


@dataclass
class TrainerState:
    lineage: str
    step: int = 0
    """Training steps done, critic-only ones included."""
    updates: int = 0
    """Policy updates done."""
    versions: VersionAxis = VersionAxis()
    history: RewardHistory = field(default_factory=RewardHistory)
    health: HealthState = field(default_factory=HealthState)
    ledger: Ledger = field(default_factory=Ledger)
    positions: dict[str, int] = field(default_factory=dict)
    """Log directory -> a position before which every record is in the ledger."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Draw -> failed attempts (infrastructure) that lie before the positions."""

    @property
    def version(self) -> Version:
        return Version(self.versions.number(self.updates), self.lineage)

    def to_dict(self) -> dict[str, Any]:
        return {
            "lineage": self.lineage,
            "step": self.step,
            "updates": self.updates,
            "versions": [list(segment) for segment in self.versions.segments],
            "history": self.history.to_dict(),
            "health": self.health.to_dict(),
            "ledger": self.ledger.to_rows(),
            "positions": dict(self.positions),
            "attempts": sorted(self.attempts.items()),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TrainerState:
        return cls(
            lineage=saved["lineage"],
            step=saved["step"],
            updates=saved["updates"],
            versions=VersionAxis(tuple((first, offset) for first, offset in saved["versions"])),
            history=RewardHistory.from_dict(saved["history"]),
            health=HealthState.from_dict(saved["health"]),
            ledger=Ledger.from_rows(saved["ledger"]),
            positions=dict(saved["positions"]),
            attempts={int(draw): int(count) for draw, count in saved["attempts"]},
        )
