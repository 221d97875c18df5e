"""Batches of demonstrations: similar lengths together, the same for ever.

Promises: batch n is a pure function of (make, seed, n), so training resumes anywhere; padding is on the right, outside
every mask; a window's demonstrations are each used once; the parts of a batch hold each of its rows once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent.seeds import derive_seed
from trainer.demonstrations import Demonstration
from trainer.folders import content_hash
from trainer.packing import rows_within

WINDOW = 32
"""Batches drawn together, then cut by length: a window of 256 leaves about 2 % padding where chance leaves 15 %."""


@dataclass(frozen=True)
class Batch:
    """`tokens` [b, L] right-padded with 0; `predicts` [b, L-1] marks positions whose *next* token is trained on;
    `free` [b, L-1] those among them that are a guess."""

    tokens: Tensor
    predicts: Tensor
    free: Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.tokens.to(device), self.predicts.to(device), self.free.to(device), self.lengths)

    @property
    def real_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def learned(self) -> int:
        """Tokens that are trained on: the denominator."""
        return int(self.predicts.sum())

    @property
    def targets(self) -> Tensor:
        """[K], row by row."""
        return self.tokens[:, 1:][self.predicts]

    def parts(self, token_budget: int) -> list[Batch]:
        """Itself where it is within the budget; else rows of similar length, padding included within it each, longest
        first."""
        if self.tokens.numel() <= token_budget:
            return [self]
        return [self._rows(rows) for rows in rows_within(self.lengths, token_budget)]

    def _rows(self, rows: list[int]) -> Batch:
        lengths = tuple(self.lengths[row] for row in rows)
        longest = max(lengths)
        return Batch(
            self.tokens[rows, :longest], self.predicts[rows, : longest - 1], self.free[rows, : longest - 1], lengths
        )


def collate(demonstrations: Sequence[Demonstration]) -> Batch:
    longest = max(len(one) for one in demonstrations)
    tokens = torch.zeros(len(demonstrations), longest, dtype=torch.long)
    action = torch.zeros(len(demonstrations), longest, dtype=torch.bool)
    free = torch.zeros_like(action)
    for row, one in enumerate(demonstrations):
        tokens[row, : len(one)] = torch.from_numpy(one.tokens.astype("int64"))
        action[row, : len(one)] = torch.from_numpy(one.action)
        free[row, : len(one)] = torch.from_numpy(one.free)
    # The first token of an episode has nothing before it; it is prompt in any case.
    return Batch(tokens, action[:, 1:], free[:, 1:], tuple(map(len, demonstrations)))


class BatchStream:
    """`make(number)` gives demonstration `number`. Batches are asked for in order, mostly."""

    def __init__(self, make: Callable[[int], Demonstration], batch_size: int, seed: int) -> None:
        self._make, self._size, self._seed = make, batch_size, seed
        self._window = -1
        self._batches: list[list[Demonstration]] = []

    def __getitem__(self, index: int) -> Batch:
        window, place = divmod(index, WINDOW)
        if window != self._window:
            count = WINDOW * self._size
            drawn = [self._make(window * count + number) for number in range(count)]
            drawn.sort(key=len)
            cut = [drawn[start : start + self._size] for start in range(0, count, self._size)]
            random.Random(derive_seed(self._seed, "window", window)).shuffle(cut)
            self._window, self._batches = window, cut
        return collate(self._batches[place])


def data_hash(make: Callable[[int], Demonstration], count: int) -> str:
    """sha256 over the ids and masks of the first `count` demonstrations: names the data in manifests."""

    def parts() -> Iterator[bytes]:
        for number in range(count):
            one = make(number)
            yield len(one).to_bytes(4, "little")
            yield one.tokens.tobytes() + one.action.tobytes()

    return content_hash(parts())
