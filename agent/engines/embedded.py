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
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent.engines.batch import Batch, EngineStats, Request, fail, resolve
from agent.engines.sampling import UniformStream, check_sampling
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
from agent.policy import EngineError, Generation, StopReason, TrainablePolicy
from data.trajectory import Sampling

__all__ = ["ContextOverflow", "EmbeddedPolicy", "EngineStats", "ModelRefused"]


def default_threads() -> int:
    """All cores but one, which is left to the sandboxes; at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 2) - 1)


class EmbeddedPolicy(TrainablePolicy):
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
        self._model = prepare_model(model)
        self._batch = Batch(self._model, sampling, version, prefix_cache_bytes)
        self.stats = self._batch.stats
        own_limit = int(model.config.max_position_embeddings)
        self.max_context: int = min(max_context or own_limit, own_limit)
        self._vocab = int(model.config.vocab_size)
        self._max_batch = max_batch
        self._threads = threads or default_threads()
        # Shared with callers, under the condition:
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._unanswered: set[Request] = set()
        self._controls: deque[tuple[Callable[[], None], Future[None]]] = deque()
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
        request = Request(
            ids, len(ids), len(ids) + max_new_tokens, frozenset(stop_ids), UniformStream(seed), episode_id
        )
        with self._wake:
            self._raise_if_unusable()
            if self._draining:
                return Generation([], [], [], StopReason.ABORTED)
            self._unanswered.add(request)
            self._waiting.append(request)
            self._wake.notify()
        try:
            # Cancelling this task cancels the future; the engine drops the request at its next step.
            return await asyncio.wrap_future(request.future)
        finally:
            with self._wake:
                self._unanswered.discard(request)

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
            self._batch.version = self.version = version
            if lineage is not None:
                self.lineage = lineage
            self._batch.recompute()

        await self._control(apply)

    async def forget(self, episode_id: str) -> None:
        def apply() -> None:
            self._batch.prefixes.take(episode_id)

        if self._broken is None and not self._closing:
            await self._control(apply)

    async def abort(self, episode_id: str | None = None) -> None:
        """End requests now, all or one episode's: their `generate` returns ABORTED with the tokens so far."""

        def apply() -> None:
            self._batch.abort(episode_id)
            with self._wake:
                ended = [request for request in self._waiting if episode_id in (None, request.episode_id)]
                self._waiting = deque(request for request in self._waiting if request not in ended)
            for request in ended:
                request.answer(StopReason.ABORTED)

        if self._broken is None and not self._closing:
            await self._control(apply)

    async def drain(self) -> None:
        """Take no more requests (new ones return ABORTED at once, empty) and wait until those in flight ended."""
        with self._wake:
            self._draining = True
        while True:
            with self._wake:
                if not self._unanswered:
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
                fail(done, error)
            except BaseException as error:
                fail(done, EngineError(f"the engine broke ({type(error).__name__}: {error})"))
                raise
            else:
                resolve(done, None)

        with self._wake:
            self._raise_if_unusable()
            self._controls.append((run, done))
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
                    self._batch.drop_cancelled()
                    if self._batch.rows:
                        self._batch.step()
        except BaseException as error:  # whatever it was, no caller may wait for ever
            self._break(EngineError(f"the engine broke ({type(error).__name__}: {error})"))

    def _next_work(self) -> bool:
        """Wait for work, run the controls; False when closing."""
        while True:
            with self._wake:
                while not (self._controls or self._waiting or self._batch.rows or self._closing):
                    self._wake.wait()
                control = self._controls.popleft() if self._controls else None
                closing = self._closing
            if control is not None:
                control[0]()
            elif closing:
                self._batch.abort(None)
                self._break(None)
                return False
            else:
                return True

    def _break(self, error: EngineError | None) -> None:
        """Answer everybody: with the error, or as aborted when the engine was closed."""
        with self._wake:
            self._broken = error
            unanswered, controls = list(self._unanswered), list(self._controls)
            self._waiting.clear()
            self._controls.clear()
        for request in unanswered:
            if error is None:
                request.answer(StopReason.ABORTED)
            else:
                fail(request.future, error)
        for _, done in controls:
            fail(done, error or EngineError("the engine is closed"))
        self._batch.rows.clear()
        self._batch.prefixes.clear()

    def _admit(self) -> None:
        while len(self._batch.rows) < self._max_batch:
            with self._wake:
                self.stats.waiting = len(self._waiting)
                if not self._waiting:
                    return
                request = self._waiting.popleft()
            if not request.future.cancelled():
                self._batch.admit(request)
