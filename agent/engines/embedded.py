"""The embedded engine: a Hugging Face causal LM in this process, one batched decode over all live requests.

Promises:
* requests join and leave between decode steps; results do not depend on what else is in the batch beyond
  floating-point noise (own positions, own mask row, own random numbers for each request);
* every sampled token carries its log-probability under the weights that sampled it, given exactly the ids before it,
  and the version of those weights. Keys and values computed by older weights are never used: a weight update drops
  every saved prefix and recomputes the live requests before their next token;
* an episode's keys and values are kept between its turns and reused as far as the ids really agree;
* a request that does not fit is refused before anything is sampled; when the engine breaks, every waiting request and
  every later one gets an EngineError with the cause.
The model lives in one thread of its own; `generate` only waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent.engines.fused import FusedForward
from agent.engines.sampling import UniformStream, check_sampling, sample
from agent.engines.slots import SavedRow, SlotCache
from agent.engines.weights import (
    ContextOverflow,
    ModelRefused,
    check_weights,
    choose_device,
    choose_dtype,
    load_model,
    prepare_model,
    read_weights,
)
from agent.policy import EngineError, Generation, Policy, StopReason
from data.trajectory import Sampling

__all__ = ["ContextOverflow", "EmbeddedPolicy", "EngineStats", "ModelRefused"]

_PREFILL_CHUNK = 1024
"""Tokens of one prefill forward: bounds the mask (chunk × context) and the wait of the other requests."""


def default_threads() -> int:
    """All cores but one, which is left to the sandboxes; at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 2) - 1)


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
class _Request:
    tokens: list[int]
    """Prompt and what was sampled so far. All but the last stand in the slots once prefilled."""
    prompt_length: int
    limit: int
    """len(tokens) at which the request ends by length."""
    stop_ids: frozenset[int]
    uniforms: UniformStream
    episode_id: str
    future: Future[Generation] = field(default_factory=Future)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class EmbeddedPolicy(Policy):
    """See the module. Make one with `load`; the constructor takes a model that is already in memory (and owns it)."""

    def __init__(
        self,
        model: Any,
        *,
        lineage: str = "",
        version: int = 0,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        max_batch: int = 64,
        max_context: int | None = None,
        threads: int | None = None,
        prefix_cache_bytes: int = 256 << 20,
    ) -> None:
        """`max_context` defaults to the model's own limit, in tokens. `prefix_cache_bytes` bounds what is kept for
        episodes between turns (least recently used first out; 0 keeps nothing). `threads` are torch's intra-op
        threads, a setting of the whole process."""
        check_sampling(sampling)
        if max_batch < 1:
            raise ValueError(f"max_batch {max_batch}: at least 1 request must fit")
        self.lineage, self.version, self.sampling = lineage, version, sampling
        self.stats = EngineStats()
        self._model = prepare_model(model)
        self._fused = FusedForward.for_model(model)
        own_limit = int(model.config.max_position_embeddings)
        self.max_context: int = min(max_context or own_limit, own_limit)
        self._vocab = int(model.config.vocab_size)
        self._device = next(model.parameters()).device
        self._max_batch = max_batch
        self._threads = threads or default_threads()
        self._cache = SlotCache(int(model.config.num_hidden_layers))
        self._rows: list[_Request] = []
        self._saved: OrderedDict[str, tuple[list[int], SavedRow]] = OrderedDict()
        self._saved_bytes, self._saved_limit = 0, prefix_cache_bytes
        # Shared with callers, under the condition:
        self._wake = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._controls: deque[Callable[[], None]] = deque()
        self._closing = self._draining = False
        self._broken: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        lineage: str = "",
        version: int = 0,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        max_batch: int = 64,
        max_context: int | None = None,
        threads: int | None = None,
        prefix_cache_bytes: int = 256 << 20,
    ) -> EmbeddedPolicy:
        """Device: a GPU where there is one, else the CPU. dtype: bf16 on a GPU, fp32 on a CPU. Raises ModelRefused."""
        chosen = choose_device(device)
        return cls(
            load_model(folder, chosen, choose_dtype(dtype, chosen)),
            lineage=lineage,
            version=version,
            sampling=sampling,
            max_batch=max_batch,
            max_context=max_context,
            threads=threads,
            prefix_cache_bytes=prefix_cache_bytes,
        )

    # ---- what callers use, from any event loop ----

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        episode_id: str = "",
    ) -> Generation:
        ids = [int(token) for token in tokens]
        self._check(ids, max_new_tokens)
        request = _Request(
            ids, len(ids), len(ids) + max_new_tokens, frozenset(stop_ids), UniformStream(seed), episode_id
        )
        with self._wake:
            self._raise_if_unusable()
            if self._draining:
                return Generation([], [], [], StopReason.ABORTED)
            self._waiting.append(request)
            self._wake.notify()
        # Cancelling this task cancels the future; the loop drops the request at its next step.
        return await asyncio.wrap_future(request.future)

    async def update_weights(
        self, source: str | Path | Mapping[str, Tensor], version: int, *, lineage: str | None = None
    ) -> None:
        """Take new weights between two decode steps, requests in flight going on with them.

        Live requests are recomputed under the new weights (their next token is exactly the new policy's) and saved
        prefixes are dropped. `version` must be above the present one: a version is never used twice. Raises
        ModelRefused, the old weights staying, when the source does not fit. A state dict must not change until this
        returns."""
        tensors = await asyncio.to_thread(read_weights, source)

        def apply() -> None:
            if lineage in (None, self.lineage) and version <= self.version:
                raise ModelRefused(f"version {version} does not follow version {self.version}: versions only grow")
            for parameter, value in check_weights(self._model, tensors):
                parameter.copy_(value)
            self._drop_saved()
            self.version = version
            if lineage is not None:
                self.lineage = lineage
            for row, request in enumerate(self._rows):
                self.stats.recomputed_tokens += len(request.tokens) - 1
                self._fill(row, 0, len(request.tokens) - 1)

        await self._control(apply)

    async def forget(self, episode_id: str) -> None:
        def apply() -> None:
            self._take_saved(episode_id)

        if self._broken is None and not self._closing:
            await self._control(apply)

    async def abort(self, episode_id: str | None = None) -> None:
        """End requests now, all or one episode's: their `generate` returns ABORTED with the tokens so far."""

        def apply() -> None:
            for row in reversed(range(len(self._rows))):
                if episode_id in (None, self._rows[row].episode_id):
                    self._leave(row, StopReason.ABORTED)
            with self._wake:
                ended = [request for request in self._waiting if episode_id in (None, request.episode_id)]
                self._waiting = deque(request for request in self._waiting if request not in ended)
            for request in ended:
                _resolve(request.future, Generation([], [], [], StopReason.ABORTED))

        if self._broken is None and not self._closing:
            await self._control(apply)

    async def drain(self) -> None:
        """Take no more requests (new ones return ABORTED at once, empty) and wait until those in flight ended."""
        with self._wake:
            self._draining = True
        while True:
            with self._wake:
                if not self._rows and not self._waiting:
                    return
            await asyncio.sleep(0.01)

    def resume(self) -> None:
        """Take requests again after `drain`."""
        with self._wake:
            self._draining = False

    async def close(self) -> None:
        """Abort what is live and end the thread. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _check(self, ids: list[int], max_new_tokens: int) -> None:
        if not ids:
            raise EngineError("generate was given no tokens: a prompt needs at least one")
        if max_new_tokens < 1:
            raise EngineError(f"max_new_tokens {max_new_tokens}: ask for at least one token")
        if len(ids) + max_new_tokens > self.max_context:
            raise ContextOverflow(
                f"{len(ids)} tokens + {max_new_tokens} new ones exceed the engine's context of {self.max_context}. "
                "Lower max_new_tokens, or the preset's max_context."
            )
        if min(ids) < 0 or max(ids) >= self._vocab:
            raise EngineError(
                f"token id {min(ids) if min(ids) < 0 else max(ids)} is outside the model's vocabulary of "
                f"{self._vocab}: the tokenizer does not belong to this model"
            )

    def _raise_if_unusable(self) -> None:
        if self._broken is not None:
            raise EngineError(str(self._broken)) from self._broken
        if self._closing:
            raise EngineError("the engine is closed")

    async def _control(self, apply: Callable[[], None]) -> None:
        """Run `apply` in the engine's thread between two steps."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                apply()
            except ModelRefused as error:
                _fail(done, error)
            except BaseException as error:
                _fail(done, EngineError(f"the engine broke ({type(error).__name__}: {error})"))
                raise
            else:
                _resolve(done, None)

        with self._wake:
            self._raise_if_unusable()
            self._controls.append(run)
            self._wake.notify()
        # Shielded: a half-awaited weight update must still be applied as a whole.
        await asyncio.shield(asyncio.wrap_future(done))

    # ---- the engine's thread ----

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                while self._next_work():
                    self._admit()
                    if self._rows:
                        self._step()
        except BaseException as error:  # whatever it was, no caller may wait for ever
            self._break(EngineError(f"the engine broke ({type(error).__name__}: {error})"))

    def _next_work(self) -> bool:
        """Wait for work, run the controls; False when closing."""
        while True:
            with self._wake:
                while not (self._controls or self._waiting or self._rows or self._closing):
                    self._wake.wait()
                control = self._controls.popleft() if self._controls else None
                closing = self._closing
            if control is not None:
                control()
            elif closing:
                for row in reversed(range(len(self._rows))):
                    self._leave(row, StopReason.ABORTED)
                self._break(None)
                return False
            else:
                return True

    def _break(self, error: EngineError | None) -> None:
        with self._wake:
            self._broken = error
            waiting, self._waiting = [*self._rows, *self._waiting], deque()
            controls, self._controls = self._controls, deque()
            self._rows = []
        for request in waiting:
            if error is None:
                _resolve(request.future, Generation([], [], [], StopReason.ABORTED))
            else:
                _fail(request.future, error)
        for control in controls:
            with contextlib.suppress(BaseException):  # it reports to its own caller
                control()
        self._drop_saved()

    def _admit(self) -> None:
        while len(self._rows) < self._max_batch:
            with self._wake:
                self.stats.waiting = len(self._waiting)
                if not self._waiting:
                    return
                request = self._waiting.popleft()
                if request.future.cancelled():
                    continue
                self._rows.append(request)
            row, target = len(self._rows) - 1, len(request.tokens) - 1
            start = self._restore(row, request)
            self.stats.reused_tokens += start
            self.stats.prefill_tokens += target - start
            self._fill(row, start, target)

    def _restore(self, row: int, request: _Request) -> int:
        """Put the episode's saved prefix into the row as far as the ids agree; returns how many positions stand."""
        saved = self._take_saved(request.episode_id) if request.episode_id else None
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
        tokens = self._rows[row].tokens
        for low in range(start, end, _PREFILL_CHUNK):
            high = min(low + _PREFILL_CHUNK, end)
            positions = torch.arange(low, high, device=self._device)
            self._cache.aim_row(row, low, high)
            mask = torch.arange(high, device=self._device) <= positions[:, None]
            self._forward(torch.tensor([tokens[low:high]], device=self._device), positions[None], mask[None, None])

    def _step(self) -> None:
        """Sample one token for every live request."""
        for row in reversed(range(len(self._rows))):
            if self._rows[row].future.cancelled():
                self._leave(row, None)
        rows = self._rows
        if not rows:
            return
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
        if self._fused is not None:
            return self._fused(ids, positions, mask, self._cache)
        output = self._model(
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
        request = self._rows[row]
        stands = len(request.tokens) - 1  # the last token's keys and values were never computed
        if request.episode_id and self._saved_limit and reason is not None and stands:
            self._save(request.episode_id, request.tokens[:stands], self._cache.save(row, stands))
        if reason in (None, StopReason.ABORTED):
            self._cache.wipe(row)  # it may not have had the step that finds non-finite numbers
        self._close_gap(row)
        if reason is not None:
            _resolve(
                request.future,
                Generation(request.tokens[request.prompt_length :], request.logprobs, request.versions, reason),
            )

    def _fail_row(self, row: int) -> None:
        request = self._rows[row]
        self._cache.wipe(row)
        self._close_gap(row)
        _fail(
            request.future,
            EngineError(
                f"version {self.version} gave non-finite logits after {len(request.tokens)} tokens: "
                "these weights are broken (look at the update that made them)"
            ),
        )

    def _close_gap(self, row: int) -> None:
        """The last row moves into the gap, so that live rows stay without holes."""
        last = len(self._rows) - 1
        self._cache.move(last, row, len(self._rows[last].tokens))
        with self._wake:
            self._rows[row] = self._rows[last]
            self._rows.pop()
            self.stats.live = last

    def _save(self, episode_id: str, ids: list[int], row: SavedRow) -> None:
        self._take_saved(episode_id)
        self._saved[episode_id] = (ids, row)
        self._saved_bytes += row.nbytes
        while self._saved_bytes > self._saved_limit:
            self._take_saved(next(iter(self._saved)))

    def _take_saved(self, episode_id: str) -> tuple[list[int], SavedRow] | None:
        saved = self._saved.pop(episode_id, None)
        if saved is not None:
            self._saved_bytes -= saved[1].nbytes
        return saved

    def _drop_saved(self) -> None:
        self._saved.clear()
        self._saved_bytes = 0


def _resolve(future: Future, result: object) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        future.set_result(result)


def _fail(future: Future, error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
