"""The live requests of the embedded engine and their one batched decode step. Single-threaded; knows no event loop.

Promises: row i of the slots belongs to `rows[i]`, without holes; after `admit` and `recompute` every token of a row but
the last stands in the slots under the present weights; `step` samples exactly one token for every row.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agent.engines.fused import FusedForward
from agent.engines.sampling import UniformStream, sample
from agent.engines.slots import SavedRow, SlotCache
from agent.policy import EngineError, Generation, StopReason
from data.trajectory import Sampling

_PREFILL_CHUNK = 1024
"""Tokens of one prefill forward: bounds the mask (chunk × context) and the wait of the other requests."""


@dataclass
class EngineStats:
    """Counters since the start. `live` and `waiting` are momentary."""

    sampled_tokens: int = 0
    decode_steps: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    """Prefill caused by weight updates under live requests."""
    live: int = 0
    waiting: int = 0


@dataclass(eq=False)
class Request:
    tokens: list[int]
    """Prompt and what was sampled so far."""
    prompt_length: int
    limit: int
    """len(tokens) at which the request ends by length."""
    stop_ids: frozenset[int]
    uniforms: UniformStream
    episode_id: str
    future: Future[Generation] = field(default_factory=Future)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def answer(self, reason: StopReason) -> None:
        resolve(self.future, Generation(self.tokens[self.prompt_length :], self.logprobs, self.versions, reason))


class PrefixStore:
    """Rows of episodes between their turns, at most `max_bytes`, least recently used first out."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self.rows: OrderedDict[str, tuple[list[int], SavedRow]] = OrderedDict()

    def put(self, episode_id: str, ids: list[int], row: SavedRow) -> None:
        self.take(episode_id)
        self.rows[episode_id] = (ids, row)
        self.nbytes += row.nbytes
        while self.nbytes > self.max_bytes:
            self.take(next(iter(self.rows)))

    def take(self, episode_id: str) -> tuple[list[int], SavedRow] | None:
        saved = self.rows.pop(episode_id, None)
        if saved is not None:
            self.nbytes -= saved[1].nbytes
        return saved

    def clear(self) -> None:
        self.rows.clear()
        self.nbytes = 0


class Batch:
    """`version` marks the tokens sampled from now on; whoever changes the weights sets it and calls `recompute`."""

    def __init__(self, model: Any, sampling: Sampling, version: int, prefix_bytes: int) -> None:
        self.model, self.sampling, self.version = model, sampling, version
        self.fused = FusedForward.for_model(model)
        self.prefixes = PrefixStore(prefix_bytes)
        self.stats = EngineStats()
        self.rows: list[Request] = []
        self._cache = SlotCache(int(model.config.num_hidden_layers))
        self._device = next(model.parameters()).device

    def admit(self, request: Request) -> None:
        self.rows.append(request)
        row, target = len(self.rows) - 1, len(request.tokens) - 1
        start = self._restore(row, request)
        self.stats.live = len(self.rows)
        self.stats.reused_tokens += start
        self.stats.prefill_tokens += target - start
        self._fill(row, start, target)

    def recompute(self) -> None:
        """After new weights: nothing computed by the old ones stays."""
        self.prefixes.clear()
        for row, request in enumerate(self.rows):
            self.stats.recomputed_tokens += len(request.tokens) - 1
            self._fill(row, 0, len(request.tokens) - 1)

    def abort(self, episode_id: str | None) -> None:
        for row in reversed(range(len(self.rows))):
            if episode_id in (None, self.rows[row].episode_id):
                self._leave(row, StopReason.ABORTED)

    def drop_cancelled(self) -> None:
        for row in reversed(range(len(self.rows))):
            if self.rows[row].future.cancelled():
                self._leave(row, None)

    def _restore(self, row: int, request: Request) -> int:
        """Put the episode's saved prefix into the row as far as the ids agree; returns how many positions stand."""
        saved = self.prefixes.take(request.episode_id) if request.episode_id else None
        if saved is None:
            return 0
        ids, kept = saved
        agree = min(kept.length, len(request.tokens) - 1)
        if ids[:agree] != request.tokens[:agree]:
            agree = next(i for i in range(agree) if ids[i] != request.tokens[i])
        if agree:
            self._cache.restore(row, kept, agree)
        return agree

    def _fill(self, row: int, start: int, end: int) -> None:
        """Compute keys and values of positions [start, end) of a row. The last token's come with its decode step."""
        tokens = self.rows[row].tokens
        for low in range(start, end, _PREFILL_CHUNK):
            high = min(low + _PREFILL_CHUNK, end)
            positions = torch.arange(low, high, device=self._device)
            self._cache.aim_row(row, low, high)
            mask = torch.arange(high, device=self._device) <= positions[:, None]
            self._forward(torch.tensor([tokens[low:high]], device=self._device), positions[None], mask[None, None])

    def step(self) -> None:
        """Sample one token for every live request."""
        rows = self.rows
        lengths = [len(request.tokens) for request in rows]
        longest = max(lengths)
        positions = torch.tensor(lengths, device=self._device) - 1
        self._cache.aim_batch(torch.arange(len(rows), device=self._device), positions, longest)
        mask = torch.arange(longest, device=self._device) <= positions[:, None]
        last = torch.tensor([[request.tokens[-1]] for request in rows], device=self._device)
        logits = self._forward(last, positions[:, None], mask[:, None, None])
        tokens, logprobs = sample(logits, [request.uniforms.draw() for request in rows], self.sampling)
        self.stats.decode_steps += 1
        self.stats.sampled_tokens += len(rows)
        self.stats.live = len(rows)
        version = self.version
        ended: list[tuple[int, StopReason | None]] = []
        for row, (request, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
            if not logprob > -float("inf"):
                ended.append((row, None))
                continue
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(version)
            if token in request.stop_ids:
                ended.append((row, StopReason.STOP))
            elif len(request.tokens) >= request.limit:
                ended.append((row, StopReason.LENGTH))
        for row, reason in reversed(ended):
            if reason is None:
                self._fail_row(row)
            else:
                self._leave(row, reason)

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """ids, positions [B, n], mask bool [B, 1, n, L] → logits of the last position [B, V]."""
        if self.fused is not None:
            return self.fused(ids, positions, mask, self._cache)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _leave(self, row: int, reason: StopReason | None) -> None:
        """Take a request out of the batch, keep its prefix for the episode's next turn, answer it (None: cancelled)."""
        request = self.rows[row]
        stands = len(request.tokens) - 1  # the last token's keys and values were never computed
        if request.episode_id and self.prefixes.max_bytes and reason is not None and stands:
            self.prefixes.put(request.episode_id, request.tokens[:stands], self._cache.save(row, stands))
        if reason in (None, StopReason.ABORTED):
            self._cache.wipe(row)  # it may not have had the step that finds non-finite numbers
        self._close_gap(row)
        if reason is not None:
            request.answer(reason)

    def _fail_row(self, row: int) -> None:
        request = self.rows[row]
        self._cache.wipe(row)
        self._close_gap(row)
        fail(
            request.future,
            EngineError(
                f"version {self.version} gave non-finite logits after {len(request.tokens)} tokens: "
                "these weights are broken (look at the update that made them)"
            ),
        )

    def _close_gap(self, row: int) -> None:
        """The last row moves into the gap, so that live rows stay without holes."""
        last = len(self.rows) - 1
        self._cache.move(last, row, len(self.rows[last].tokens))
        self.rows[row] = self.rows[last]
        self.rows.pop()
        self.stats.live = last


def resolve(future: Future, result: object) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        future.set_result(result)


def fail(future: Future, error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
