"""From the log to batches: follow it, hold what waits, admit by staleness, give every draw exactly one fate.

Promises:
* batches are made first in, first out by log order, and what is dropped depends on nothing but that order and the
  count of updates: a trainer that starts again from a checkpoint makes the same batches again;
* infra_error is never trained on: it is a failed attempt, and the draw is dropped only with its last one;
* a second usable trajectory of a draw (its worker was restarted) is passed over, and counted;
* `positions` is where a new intake must begin to miss nothing that has no fate yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.log import LogTail
from data.log_report import LogReport
from data.trajectory import Status, Trajectory
from trainer.ledger import DropReason, Fate, Ledger
from trainer.lengths import Lengths, lengths
from trainer.state import TrainerState
from trainer.unfit import ANY, Limits


@dataclass(frozen=True)
class Waiting:
    trajectory: Trajectory
    log: str
    before: int
    """Position of its record: everything before it in this log may have a fate already, it has none."""

    @property
    def draw(self) -> int:
        return self.trajectory.identity.draw


@dataclass(frozen=True)
class Dropped:
    draw: int
    episode_id: str
    reason: DropReason
    tokens: int
    """Sampled tokens that are lost."""
    why: str = ""


def sampled(trajectory: Trajectory) -> int:
    """Action tokens: what the policy sampled."""
    return int(trajectory.action_mask.sum())


@dataclass
class Intake:
    """Follows `logs` (one directory per rollout worker). `planned`: draws of the whole run."""

    logs: Sequence[Path]
    state: TrainerState
    planned: int
    max_staleness: int
    max_attempts: int
    bootstraps: bool
    """A critic is there to value a trajectory that the system cut."""
    limits: Limits = ANY
    set_aside: Mapping[str, DropReason] = field(default_factory=dict)
    """Episodes that no step takes again: dropped as they are read."""
    report: LogReport = field(default_factory=LogReport)
    repeated: int = 0
    """Trajectories of draws that already had one."""

    def __post_init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._out: list[Waiting] = []
        self._held: set[int] = set()
        self._attempts = dict(self.state.attempts)
        self._failed: list[tuple[str, int, int]] = []  # log, position, draw of failed attempts not behind `positions`
        self._tails = {
            str(path.name): LogTail(path, self.state.positions.get(path.name, 0), self.report) for path in self.logs
        }
        self._seen = {name: tail.position for name, tail in self._tails.items()}

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    @property
    def ledger(self) -> Ledger:
        return self.state.ledger

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def plan_is_in(self) -> bool:
        """Every planned draw waits here or has its fate: nothing more will come."""
        return len(self.ledger) + len(self._waiting) >= self.planned

    def poll(self) -> list[Dropped]:
        """Read what the logs have by now. Returns draws given up as they are read (already in the ledger)."""
        dropped: list[Dropped] = []
        for name, tail in self._tails.items():
            for trajectory, position in tail.poll():
                before, self._seen[name] = self._seen[name], position
                refused = self._sort(trajectory, name, before)
                if refused is not None:
                    dropped.append(self._drop(trajectory, *refused))
        return dropped

    def _sort(self, trajectory: Trajectory, log: str, before: int) -> tuple[DropReason, str] | None:
        """Queue it, pass over it, or say why its draw is given up."""
        draw, status = trajectory.identity.draw, trajectory.outcome.status
        if draw in self.ledger or draw in self._held or draw >= self.planned:
            self.repeated += 1
            return None
        if status is Status.INFRA_ERROR:
            self._attempts[draw] = self._attempts.get(draw, 0) + 1
            self._failed.append((log, before, draw))
            return (DropReason.INFRA_ERROR, "") if self._attempts[draw] >= self.max_attempts else None
        if trajectory.oldest_version is None:
            # Cut before its first token: the draw runs again. Graded without a token: nothing to learn from.
            return None if status is Status.CUT else (DropReason.NO_ACTIONS, "")
        if refusal := self.limits.refusal(trajectory, bootstraps=self.bootstraps):
            return refusal
        if reason := self.set_aside.get(trajectory.identity.episode_id):
            return reason, "set aside"
        self._waiting.append(Waiting(trajectory, log, before))
        self._held.add(draw)
        return None

    def next_batch(self, size: int) -> tuple[list[Trajectory] | None, list[Dropped]]:
        """The next `size` admissible trajectories, fewer only at the plan's end (at least half of it), or None when
        too few wait. Stale ones met on the way are dropped. The batch leaves the queue; `trained` gives it its fate."""
        dropped = self._drop_waiting(self._is_stale, DropReason.STALE)
        if len(self._waiting) < size and self.plan_is_in and self._waiting:
            rest = len(self._waiting)
            if 2 * rest < size and self.ledger.trained:
                return None, dropped + self._drop_waiting(lambda _: True, DropReason.REMAINDER)
            size = rest
        if not self._waiting or len(self._waiting) < size:
            return None, dropped
        self._out = [self._pop() for _ in range(size)]
        return [item.trajectory for item in self._out], dropped

    def lengths(self, batch: Sequence[Trajectory]) -> Lengths:
        """Lengths of what this step trained on beside those of all that came in."""
        trained = {draw: fate.tokens for draw, fate in self.ledger.fates.items() if fate.dropped is None}
        dropped = {draw: fate.tokens for draw, fate in self.ledger.fates.items() if fate.dropped is not None}
        waiting = {item.draw: sampled(item.trajectory) for item in self._waiting}
        return lengths([sampled(trajectory) for trajectory in batch], trained, dropped, waiting)

    def put_back(self) -> None:
        """The batch that was made last was not trained on: it waits again, first in the queue as before."""
        self._waiting.extendleft(reversed(self._out))
        self._out = []

    def _is_stale(self, item: Waiting) -> bool:
        age = self.state.versions.staleness(item.trajectory, self.state.updates)
        return age is not None and age > self.max_staleness

    def _drop_waiting(self, condition: Callable[[Waiting], bool], reason: DropReason) -> list[Dropped]:
        gone = [item for item in self._waiting if condition(item)]
        if not gone:
            return []
        self._waiting = deque(item for item in self._waiting if not condition(item))
        return [self._drop(item.trajectory, reason) for item in gone]

    def _pop(self) -> Waiting:
        item = self._waiting.popleft()
        return item

    def _drop(self, trajectory: Trajectory, reason: DropReason, why: str = "") -> Dropped:
        identity, tokens = trajectory.identity, sampled(trajectory)
        self.ledger.enter(identity.draw, Fate(identity.episode_id, self.state.step, reason, tokens))
        self._held.discard(identity.draw)
        return Dropped(identity.draw, identity.episode_id, reason, tokens, why)

    def trained(self, batch: Sequence[Trajectory]) -> None:
        """The batch was trained on in the state's present step."""
        self._out = []
        for trajectory in batch:
            identity = trajectory.identity
            self.ledger.enter(identity.draw, Fate(identity.episode_id, self.state.step, tokens=sampled(trajectory)))
            self._held.discard(identity.draw)

    def remember(self) -> None:
        """Put positions and attempts into the state: call it before a checkpoint, when no batch is out."""
        positions = dict(self._seen)
        for item in self._waiting:
            positions[item.log] = min(positions[item.log], item.before)
        self.state.positions = positions
        behind = [(log, at, draw) for log, at, draw in self._failed if at < positions[log]]
        self._failed = [entry for entry in self._failed if entry[1] >= positions[entry[0]]]
        for _, _, draw in behind:
            self.state.attempts[draw] = self.state.attempts.get(draw, 0) + 1
        for draw in [draw for draw in self.state.attempts if draw in self.ledger]:
            del self.state.attempts[draw]
