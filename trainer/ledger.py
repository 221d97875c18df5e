"""Where every draw of the plan went: trained on at a step, or dropped for a reason. Exactly one of them, once.

Promises: a draw is entered at most once (a second entry is an error, not an update); the ledger in a checkpoint is the
truth, the journal's lines about later steps are rolled back with it (`from_journal` does the same by reading
`resumed` lines); `audit` says in words what is missing or twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from data.journal import Entry

TRAINED = "trained"
DROPPED = "dropped"
RESUMED = "resumed"
BEGAN = "began"
"""A step is about to train on these episodes."""
SET_ASIDE = "set_aside"
"""These episodes are not tried again; never taken back."""


class LedgerError(RuntimeError):
    """A draw would be entered twice, or the ledger and the journal disagree."""


class DropReason(StrEnum):
    """Why a planned draw is never trained on. Closed."""

    STALE = "stale"
    """Older than the limit when its turn came."""
    INFRA_ERROR = "infra_error"
    """Every attempt failed in the sandbox, engine or grader: says nothing about the policy."""
    UNTRAINABLE = "untrainable"
    """Sampled from a transformed distribution, or cut by the system where no critic can bootstrap."""
    NO_ACTIONS = "no_actions"
    """No token was sampled."""
    REMAINDER = "remainder"
    """The plan's end left too few for a batch."""
    TOO_LONG = "too_long"
    """More tokens than train.limits.max_tokens."""
    REWARD_OUT_OF_BOUNDS = "reward_out_of_bounds"
    """A reward beyond train.limits.max_reward."""
    OUT_OF_MEMORY = "out_of_memory"
    """The step that held it ran out of memory."""
    NON_FINITE = "non_finite"
    """The step that held it had a loss or gradient that is no number."""
    KILLED_TRAINER = "killed_trainer"
    """The trainer's process died in the step that held it, again and again."""

    @property
    def unfit(self) -> bool:
        """The trajectory itself could not be trained: counted against train.limits.unfit_share."""
        return self in _UNFIT


_UNFIT = frozenset(
    (
        DropReason.TOO_LONG,
        DropReason.REWARD_OUT_OF_BOUNDS,
        DropReason.OUT_OF_MEMORY,
        DropReason.NON_FINITE,
        DropReason.KILLED_TRAINER,
    )
)


@dataclass(frozen=True)
class Fate:
    episode_id: str
    step: int
    """The training step it was trained in, or that was next when it was dropped."""
    dropped: DropReason | None = None
    tokens: int = 0
    """Sampled tokens of the trajectory."""


@dataclass
class Ledger:
    fates: dict[int, Fate] = field(default_factory=dict)
    """By draw."""

    def __contains__(self, draw: int) -> bool:
        return draw in self.fates

    def __len__(self) -> int:
        return len(self.fates)

    def enter(self, draw: int, fate: Fate) -> None:
        if draw in self.fates:
            raise LedgerError(f"draw {draw} (episode {fate.episode_id}) is in the ledger already: {self.fates[draw]}")
        self.fates[draw] = fate

    @property
    def trained(self) -> int:
        return sum(fate.dropped is None for fate in self.fates.values())

    def dropped(self) -> Counter[str]:
        """Count by reason."""
        return Counter(str(fate.dropped) for fate in self.fates.values() if fate.dropped is not None)

    def to_rows(self) -> list[list[Any]]:
        return [
            [draw, fate.episode_id, fate.step, None if fate.dropped is None else str(fate.dropped), fate.tokens]
            for draw, fate in sorted(self.fates.items())
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[list[Any]]) -> Ledger:
        ledger = cls()
        for draw, episode_id, step, reason, *tokens in rows:  # rows of older checkpoints have no tokens
            dropped = None if reason is None else DropReason(reason)
            ledger.enter(int(draw), Fate(episode_id, int(step), dropped, int(tokens[0]) if tokens else 0))
        return ledger


def from_journal(entries: Iterable[Entry]) -> Ledger:
    """The final lineage as the trainer's journal tells it: a `resumed` line takes back all that is not in the
    checkpoint it resumed from: entries of its step and later, but for `kept` (drops between step and checkpoint)."""
    ledger = Ledger()
    for entry in entries:
        if entry.event == RESUMED:
            step, kept = int(entry.fields["step"]), set(entry.fields["kept"])
            ledger.fates = {draw: fate for draw, fate in ledger.fates.items() if fate.step < step or draw in kept}
        elif entry.event == TRAINED:
            draws, episodes = entry.fields["draws"], entry.fields["episodes"]
            tokens = entry.fields.get("tokens") or [0] * len(draws)
            for draw, episode_id, count in zip(draws, episodes, tokens, strict=True):
                ledger.enter(int(draw), Fate(episode_id, int(entry.fields["step"]), tokens=int(count)))
        elif entry.event == DROPPED:
            if entry.draw is None:
                raise LedgerError(f"a {DROPPED} line at {entry.time} names no draw")
            fields = entry.fields
            reason, tokens = DropReason(fields["reason"]), int(fields.get("tokens", 0))
            fate = Fate(entry.episode_id or "", int(fields["step"]), reason, tokens)
            ledger.enter(entry.draw, fate)
    return ledger


def set_aside(entries: Iterable[Entry]) -> dict[str, DropReason]:
    """Episode id -> why no step takes it again."""
    return {
        str(episode): DropReason(entry.fields["reason"])
        for entry in entries
        if entry.event == SET_ASIDE
        for episode in entry.fields["episodes"]
    }


def fatal_batches(entries: Iterable[Entry], deaths: int) -> list[tuple[int, tuple[str, ...]]]:
    """(step, episodes) of batches in whose step the process died at least `deaths` times, and never came through."""
    died: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for entry in entries:
        if entry.event in (BEGAN, TRAINED):
            batch = (int(entry.fields["step"]), tuple(entry.fields["episodes"]))
            died[batch] = died[batch] + 1 if entry.event == BEGAN else 0
        elif entry.event == SET_ASIDE:
            gone = set(entry.fields["episodes"])
            died = Counter({batch: count for batch, count in died.items() if not gone.intersection(batch[1])})
    return [batch for batch, count in died.items() if count >= deaths]


def audit(ledger: Ledger, planned: int, logged: Mapping[str, int]) -> list[str]:
    """What is wrong, in words; empty when every draw of range(planned) is there once and every trained episode is in
    the log under that draw. `logged`: episode id -> draw."""
    faults = []
    missing = [draw for draw in range(planned) if draw not in ledger]
    if missing:
        faults.append(f"{len(missing)} of {planned} planned draws are neither trained nor dropped, first {missing[:5]}")
    beyond = sorted(draw for draw in ledger.fates if not 0 <= draw < planned)
    if beyond:
        faults.append(f"{len(beyond)} draws are not of the plan, first {beyond[:5]}")
    twice = [name for name, count in Counter(f.episode_id for f in ledger.fates.values()).items() if count > 1 and name]
    if twice:
        faults.append(f"{len(twice)} episodes stand under more than one draw, first {twice[:3]}")
    for draw, fate in ledger.fates.items():
        if fate.dropped is None and logged.get(fate.episode_id) != draw:
            faults.append(f"draw {draw}: trained episode {fate.episode_id} is not in the log under this draw")
    return faults
