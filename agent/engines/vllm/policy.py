"""The engine contract over vLLM servers: what `EmbeddedPolicy` is in this process, over HTTP.

Promises:
* a turn's tokens come from one whole answer of one server, checked, or not at all: a request that failed is sampled
  again from its start (same seed), so no sampled token is ever duplicated, lost or stitched to another answer's;
* every token carries the version of the weights that sampled it, from the server's own spans, and none is handed on
  before the served-weights proof of that version passed on that server;
* a server that dies, hangs or was started again takes no request until it serves the present weights, proven;
* a turn that was aborted after a server failed is that fault, not a turn that ran out of time.
Use it in one event loop: `await VllmPolicy.connect(...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.engines.vllm.answers import read_generation
from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerFault, ServerGone, ServerRefused, WeightUpdateFailed
from agent.engines.vllm.loading import Deadlines, FileLoader, Loader
from agent.engines.vllm.proof import FP32, Limits
from agent.engines.vllm.published import PublishedWeights, drop_others, keep_weights
from agent.engines.vllm.rest import EngineClock, check_sleepers
from agent.engines.vllm.router import Router, Server
from agent.engines.vllm.sync import bring, is_proven, lay_down, proven
from agent.policy import EngineError, Generation, StopReason, TrainablePolicy
from data.trajectory import Sampling

_ABORT_AGAIN_S = 0.5
_PAUSE_S = 0.2
"""First pause before a turn is sampled again; doubles."""


@dataclass(frozen=True)
class ServingSettings:
    in_flight: int = 64
    """Requests that one server holds at once; more wait here."""
    patience_s: float = 900.0
    """How long a turn waits while no server is up."""
    tries: int = 5
    """How often one turn is sampled when servers fail."""
    health_every_s: float = 2.0
    health_timeout_s: float = 20.0
    health_misses: int = 3
    """Unanswered health checks running after which a server counts as down and its requests go elsewhere."""
    limits: Limits = FP32
    """Of the served-weights proof."""
    sleep_level: int = 0
    """How deep servers sleep while the trainer has the device (`sync.lay_down`); 0: never asked to."""
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(eq=False)
class _Call:
    """One `generate` under way."""

    episode_id: str
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    faults: list[ServerFault] = field(default_factory=list)


@dataclass
class ServingStats:
    sampled_tokens: int = 0
    requests: int = 0
    sampled_again: int = 0
    """Turns sampled again because a server failed."""
    updates: int = 0
    proof_mean: float = 0.0
    """Largest mean difference that a passed proof has seen, nats a token."""
    proof_worst: float = 0.0
    """Largest difference of one token that a passed proof has seen."""


class VllmPolicy(TrainablePolicy):
    def __init__(
        self, servers: Sequence[Server], work: Path, sampling: Sampling, max_context: int, settings: ServingSettings
    ) -> None:
        self.lineage, self.version, self.sampling, self.max_context = "", -1, sampling, max_context
        self.stats = ServingStats()
        self.settings = settings
        self._servers, self._work = list(servers), work
        self._router = Router(self._servers, in_flight=settings.in_flight, patience_s=settings.patience_s)
        self._calls: dict[str, list[_Call]] = {}
        self._numbers = itertools.count()
        self._tag = f"sao{os.getpid()}-{os.urandom(3).hex()}"
        self._weights: PublishedWeights | None = None
        self._versions: dict[str, int] = {}
        self._broken: EngineError | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._clock = EngineClock()
        self.on_rest: Callable[[bool], None] = lambda resting: None
        """Told when the servers are about to lie down (true) and when they are back."""

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        folder: Path,
        work: Path,
        *,
        version: int = 0,
        lineage: str = "",
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        loader: Callable[[int], Loader] = lambda number: FileLoader(),
        settings: ServingSettings = ServingSettings(),
    ) -> VllmPolicy:
        """Connect to running servers, all of which must answer, and bring them to the weights of `folder`.

        `work`: a directory of ours, which servers that read files see under the same path; `loader`: how weights get
        into the server of that number. Raises EngineErrors."""
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)  # what a killed process left there
        servers = [
            Server(VllmClient(url, connections=2 * settings.in_flight + 16), loader(number))
            for number, url in enumerate(urls)
        ]
        try:
            if settings.sleep_level:
                await check_sleepers([server.client for server in servers], settings.deadlines.reload_s)
            contexts = await asyncio.gather(
                *(server.client.max_context(settings.deadlines.verb_s) for server in servers)
            )
            policy = cls(servers, work, sampling, min(contexts), settings)
            for server in servers:
                policy._router.mark_up(server)
            await policy.update_weights(folder, version, lineage=lineage)
        except BaseException:
            await asyncio.gather(*(server.close() for server in servers))
            raise
        policy._watchers = [asyncio.create_task(policy._watch(server), name=server.client.url) for server in servers]
        return policy

    # ---- the engine contract ----

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        episode_id: str = "",
    ) -> Generation:
        self._check(tokens, max_new_tokens)
        call = _Call(episode_id)
        self._calls.setdefault(episode_id, []).append(call)
        asked: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop_ids": tuple(stop_ids), "seed": seed}
        try:
            while True:
                if self._broken is not None:
                    raise self._broken
                server = await self._take(call)
                if server is None:
                    if call.faults:
                        raise call.faults[-1]
                    return Generation([], [], [], StopReason.ABORTED)
                try:
                    return await self._sample(server, call, tokens, asked)
                except ServerFault as fault:
                    call.faults.append(fault)
                    await self._judge(server, fault)
                    if len(call.faults) >= self.settings.tries:
                        raise
                    self.stats.sampled_again += 1
                finally:
                    self._router.give_back(server)
                await asyncio.sleep(_PAUSE_S * 2 ** (len(call.faults) - 1))
        finally:
            self._calls[episode_id].remove(call)
            if not self._calls[episode_id]:
                del self._calls[episode_id]

    async def forget(self, episode_id: str) -> None:
        self._router.forget(episode_id)

    async def abort(self, episode_id: str | None = None) -> None:
        for key in [episode_id] if episode_id is not None else list(self._calls):
            for call in self._calls.get(key, ()):
                call.aborted.set()

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        self._broken = self._broken or EngineError("the engine is closed")
        self._router.end(self._broken)
        await self.abort()
        await asyncio.gather(*(server.close() for server in self._servers))
        await asyncio.to_thread(shutil.rmtree, self._work, ignore_errors=True)

    def fail(self, error: EngineError) -> None:
        """From outside: no request will be served any more, for this reason."""
        self._broken = self._broken or error
        self._router.end(self._broken)
        for server in self._servers:
            self._router.mark_down(server, str(error))

    # ---- weights ----

    async def update_weights(self, source: str | Path, version: int, *, lineage: str | None = None) -> None:
        """All servers take the weights of a folder, requests in flight going on with them, and prove it.

        A server that is down takes them when it is back. Raises WeightUpdateFailed, ServedWeightsWrong (then this
        policy serves no more)."""
        lineage = self.lineage if lineage is None else lineage
        if lineage == self.lineage and version <= self.version:
            raise WeightUpdateFailed(f"version {version} does not follow version {self.version}: versions only grow")
        weights = await asyncio.to_thread(keep_weights, Path(source), self._work, version, lineage)
        self._weights = weights
        self._versions[weights.label] = version
        results = await asyncio.gather(
            *(self._sync(server) for server in self._servers if server.up), return_exceptions=True
        )
        for error in results:
            if isinstance(error, BaseException):
                raise error
        self.version, self.lineage = version, lineage
        self.stats.updates += 1
        if not any(server.sync_lock.locked() for server in self._servers):  # one that comes back may read an older one
            await asyncio.to_thread(drop_others, weights)

    def clock(self) -> float:
        return self._clock.now()

    async def rest(self) -> None:
        """Give the servers' device away until `wake`: requests stay in their queues and are computed again after it.

        A server that does not answer counts as down; one that cannot sleep is a WeightUpdateFailed."""
        self._router.hold(True)
        self._clock.stop()
        self.on_rest(True)
        # One that is being brought back has the device, too: it lies down when it is through.
        there = [server for server in self._servers if server.up or server.sync_lock.locked()]
        await asyncio.gather(*map(self._lay_down, there))

    async def wake(self, source: str | Path | None = None, version: int = 0, *, lineage: str | None = None) -> None:
        """Take the device again, with the weights of `source` or else the present ones; proven in either case."""
        if source is not None:
            await self.update_weights(source, version, lineage=lineage)
        elif self._weights is not None:
            for server in self._servers:
                server.proofs.pop(self._weights.label, None)  # what they hold now was not looked at yet
            await asyncio.gather(*(self._sync(server) for server in self._servers if server.up))
        self.on_rest(False)
        self._clock.go()
        self._router.hold(False)

    async def _lay_down(self, server: Server) -> None:
        try:
            async with server.sync_lock:
                await lay_down(server, self.settings.sleep_level, self.settings.deadlines)
        except ServerFault as fault:
            self._router.mark_down(server, str(fault))
        except EngineError as error:
            self.fail(error)
            raise

    async def _sync(self, server: Server) -> None:
        """To the present weights. A ServerFault only marks it down; what would come again is raised."""
        try:
            async with server.sync_lock:
                while (weights := self._weights) is not None and not is_proven(server, weights.label):
                    seen = await bring(server, weights, self.settings.deadlines, self.settings.limits)
                    self.stats.proof_mean = max(self.stats.proof_mean, seen.mean)
                    self.stats.proof_worst = max(self.stats.proof_worst, seen.worst)
        except ServerFault as fault:
            self._router.mark_down(server, str(fault))
        except EngineError as error:  # its weights are undefined now, and the same would come again
            self.fail(error)
            raise

    async def _watch(self, server: Server) -> None:
        """Health of one server, for as long as the policy lives; brings it back when it answers again."""
        misses = 0
        while True:
            if server.up:
                with contextlib.suppress(TimeoutError):  # sooner when a request finds it dead
                    async with asyncio.timeout(self.settings.health_every_s):
                        await server.lost.wait()
            else:
                await asyncio.sleep(self.settings.health_every_s / 4)
            if self._broken is not None:
                return
            well = await server.client.healthy(self.settings.health_timeout_s)
            misses = 0 if well else misses + 1
            if server.up and misses >= self.settings.health_misses:
                self._router.mark_down(server, f"{misses} health checks unanswered")
            elif well and not server.up and not self._router.held:
                try:
                    await self._bring_back(server)
                except EngineError as error:
                    self.fail(error)
                    return

    async def _bring_back(self, server: Server) -> None:
        assert self._weights is not None
        try:
            label = await server.client.label(self.settings.deadlines.verb_s)
        except (ServerFault, ServerRefused) as error:
            server.why = str(error)
            return
        if label != self._weights.label:
            server.proofs.clear()
        if label not in self._versions:  # none of ours: another process than the one that lay down and was proven
            server.asleep = False
            await server.loader.close()  # its group was with the other process
        if self._router.held:
            return
        await self._sync(server)
        if is_proven(server, self._weights.label):
            self._router.mark_up(server)

    async def _judge(self, server: Server, fault: ServerFault) -> None:
        """After a failed request: is it the server, or only this request? The others on it go on in the second case."""
        if not server.up or server.sync_lock.locked():
            return
        try:
            label = await server.client.label(self.settings.health_timeout_s)
        except (ServerFault, ServerRefused):
            self._router.mark_down(server, str(fault))
            return
        if not server.sync_lock.locked() and self._weights is not None and label != self._weights.label:
            self._router.mark_down(server, f"it serves {label!r}: it was started again, or is not ours alone")

    # ---- one turn ----

    async def _take(self, call: _Call) -> Server | None:
        """A server with room; None when the call was aborted first."""
        taking = asyncio.ensure_future(self._router.take(call.episode_id))
        aborted = asyncio.ensure_future(call.aborted.wait())
        kept = False
        try:
            await asyncio.wait({taking, aborted}, return_when=asyncio.FIRST_COMPLETED)
            kept = taking.done() and not call.aborted.is_set()
            return taking.result() if kept else None
        finally:
            await _end(aborted)
            await _end(taking)
            if not kept and not taking.cancelled() and taking.exception() is None:
                self._router.give_back(taking.result())

    async def _sample(self, server: Server, call: _Call, tokens: Sequence[int], asked: dict[str, Any]) -> Generation:
        request_id = f"{self._tag}-{next(self._numbers)}"
        self.stats.requests += 1
        request = asyncio.ensure_future(
            server.client.generate(tokens, **asked, sampling=self.sampling, request_id=request_id)
        )
        lost = asyncio.ensure_future(server.lost.wait())
        aborted = asyncio.ensure_future(call.aborted.wait())
        try:
            await asyncio.wait({request, lost, aborted}, return_when=asyncio.FIRST_COMPLETED)
            while not request.done() and not lost.done():
                # Again and again: the server may not have had the request yet.
                await server.client.abort(request_id, timeout_s=self.settings.health_timeout_s)
                await asyncio.wait({request, lost}, timeout=_ABORT_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ServerGone(f"{server.client.url} went down under the request: {server.why}")
            answer = request.result()
        finally:
            for task in (request, lost, aborted):
                await _end(task)
        made, labels = read_generation(
            answer,
            max_new_tokens=asked["max_new_tokens"],
            stop_ids=frozenset(asked["stop_ids"]),
            versions=self._versions,
        )
        if made.stop_reason is StopReason.ABORTED and not call.aborted.is_set():
            raise ServerFault(f"{server.client.url} ended the request after {len(made.tokens)} tokens, unasked")
        await proven(server, labels)
        self.stats.sampled_tokens += len(made.tokens)
        return made

    def _check(self, tokens: Sequence[int], max_new_tokens: int) -> None:
        if not tokens:
            raise EngineError("generate was given no tokens: a prompt needs at least one")
        if max_new_tokens < 1:
            raise EngineError(f"max_new_tokens {max_new_tokens}: ask for at least one token")
        if self.max_context is not None and len(tokens) + max_new_tokens > self.max_context:
            raise ServerRefused(
                f"{len(tokens)} tokens + {max_new_tokens} new ones exceed the servers' context of {self.max_context}. "
                "Lower max_new_tokens, or the preset's max_context."
            )


async def _end(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieved: whoever cared has seen it
