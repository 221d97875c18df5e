"""`ImageStore`: the images of one engine, fetched when needed, removed when the disk is full.

Promises: `ensure` returns when the engine holds the image, or raises an ImageFault that says why not; one image is
pulled once however many ask for it, and goes on when the asker is cancelled; at most `parallel` pulls at once; a
registry that says "too many requests" is left alone by all pulls until the time it named. Room is made before a pull
and checked after it. `using` keeps an image from being removed between `ensure` and the start of its container.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from envs.images import disk
from envs.images.disk import Image, Usage, gib
from envs.images.faults import ImageFault, NoSpace, RegistryBusy
from envs.images.ledger import Ledger
from envs.images.names import ImageName
from envs.images.pull import Listener, held, pull_once
from envs.images.registry import Asked, Layer, Registries
from envs.images.settings import ImageSettings
from envs.sandbox.contract import ImageMissing
from envs.sandbox.docker_engine import Engine

log = logging.getLogger(__name__)
T = TypeVar("T")
UNPACKED = 3
"""Bytes on disk for one byte over the network: between 2 and 3 for images with a Python environment. An estimate."""
MAX_PAUSE_S = 60.0
_GUESS_BYTES = 2 << 30
"""Room made when the disk ran full during a pull of unknown size."""


class ImageStore:
    """`state`: where the ledger lies (default: SAO_STATE, else the XDG state folder). Closes its `engine`."""

    def __init__(
        self,
        settings: ImageSettings | None = None,
        *,
        engine: Engine | None = None,
        state: Path | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.settings = settings or ImageSettings()
        self.listener = listener
        self._state = state
        self.engine = engine or Engine()
        self._opened: tuple[Ledger, Registries, str] | None = None
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(self.settings.parallel)
        self._room = asyncio.Lock()
        self._coming: dict[str, int] = {}
        """Expected bytes of pulls under way."""
        self._not_before: dict[str, float] = {}
        self._stop = threading.Event()

    async def open(self) -> tuple[Ledger, Registries, str]:
        """Ledger, registries and the engine's root folder. Raises BackendUnavailable."""
        if self._opened is None:
            await asyncio.to_thread(self.engine.ping)
            info: dict[str, Any] = await self._call(lambda api: api.info())
            root = str(info.get("DockerRootDir") or "")
            self._opened = Ledger(str(info.get("ID") or ""), self._state), Registries(info), root
        return self._opened

    async def _call(self, work: Callable[[Any], T]) -> T:
        return await self._typed(self.engine.call(work))

    async def _typed(self, result: Awaitable[T]) -> T:
        """An engine that is gone comes out typed."""
        import requests

        try:
            return await result
        except (requests.exceptions.RequestException, ConnectionError) as error:
            raise self.engine.unavailable(error) from error

    async def has(self, name: str) -> bool:
        parsed = ImageName.parse(name)
        return await self._call(lambda api: held(api, parsed)) is not None

    async def ensure(self, name: str) -> None:
        """Raises ImageFault (ImageMissing for an image that is made here and was not), BackendUnavailable."""
        parsed = ImageName.parse(name)
        ledger, _, _ = await self.open()
        if await self.has(name):
            ledger.used(str(parsed))
            return
        if parsed.home_made:
            raise ImageMissing(f"image {name} is not on this machine: {parsed.home_made}")
        key = str(parsed)
        if key not in self._pulls:
            task = asyncio.create_task(self._fetch(parsed), name=f"pull {key}")
            self._pulls[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        await asyncio.shield(self._pulls[key])

    def used(self, name: str) -> None:
        """A container was started from it: among those that may go it goes last."""
        if self._opened is not None:
            with contextlib.suppress(ImageFault):  # the engine knows it by a name that no registry would
                self._opened[0].used(str(ImageName.parse(name)))

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[None]:
        """Ensure the image and hold it until the block ends; by then a container should use it."""
        ledger, _, _ = await self.open()
        with ledger.lease(str(ImageName.parse(name))):
            await self.ensure(name)
            yield

    def _finished(self, key: str, task: asyncio.Task[None]) -> None:
        self._pulls.pop(key, None)
        if not task.cancelled() and task.exception() is not None:
            log.debug("pull of %s failed: %s", key, task.exception())  # also marks it as seen when nobody waits

    async def _fetch(self, name: ImageName) -> None:
        ledger, _, _ = await self.open()
        key = str(name)
        async with self._gate:
            with ledger.lease(key):
                needed = await self._expected(name)
                self._coming[key] = needed
                try:
                    await self._require_room(name)
                    try:
                        source = await self._from_sources(name)
                    except NoSpace:
                        self._coming[key] = max(2 * needed, _GUESS_BYTES)
                        await self._require_room(name)
                        source = await self._from_sources(name)
                finally:
                    del self._coming[key]
                record = await self._call(lambda api: self._rename(api, source, name))
                await asyncio.to_thread(ledger.pulled, key, record["Id"])
                usage = await self._make_room(0)  # the estimate may have been too low
                if (over := usage.lacking(0, self.settings)) > 0:
                    log.warning("images are %s over their limits after %s, and no other may be removed", gib(over), key)

    async def _expected(self, name: ImageName) -> int:
        """Bytes on disk, as far as they can be known without spending a pull."""
        try:
            layers = await self.layers(name, spend=False)
        except ImageFault:  # the pull itself will tell, with its tries
            layers = None
        return UNPACKED * sum(layer.size for layer in layers) if layers else 0

    async def layers(self, name: ImageName, *, spend: bool) -> list[Layer] | None:
        """The image's layers: from an earlier look at the same digest, else from the registry. Reading them counts as
        a pull on Docker Hub: without `spend` that is not done, and the answer may be None. Raises ImageFault."""
        ledger, registries, _ = await self.open()
        source = name.under(self.settings.mirror) or name
        asked = await self.ask(source)
        known = ledger.recall("layers", asked.digest) if asked.digest else None
        if known is not None:
            return [Layer(*layer) for layer in known["layers"]]
        if source.registry == "docker.io" and not spend:
            return None
        layers = await self._call(lambda api: registries.measure(source))
        if asked.digest:
            ledger.remember("layers", asked.digest, {"layers": [dataclasses.astuple(layer) for layer in layers]})
        return layers

    async def ask(self, name: ImageName) -> Asked:
        """What the registry says without a pull. Raises ImageFault."""
        _, registries, _ = await self.open()
        return await self._call(lambda api: registries.ask(name))

    async def known_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Image id -> ids of its unpacked layers, for every image on the engine."""
        return await self._call(disk.known_layers)

    async def _require_room(self, name: ImageName) -> None:
        usage = await self._make_room(sum(self._coming.values()))
        # On disk it takes at least what travels; UNPACKED times as much is a guess, and no reason to fail.
        lacking = usage.lacking(sum(self._coming.values()) // UNPACKED, self.settings)
        if lacking > 0:
            budget = f", budget {gib(self.settings.budget_bytes)}" if self.settings.budget_bytes else ""
            raise NoSpace(
                f"there is no room for image {name} (about {gib(self._coming[str(name)])}): images take "
                f"{gib(usage.layers_bytes)}{budget}, {gib(usage.free_bytes)} are free on the engine's disk of which "
                f"{gib(self.settings.keep_free_bytes)} stay free, and no image is left that may be removed "
                f"(`sao images ls` says why). Lacking: {gib(lacking)}. Raise images.budget_gib, lower "
                "images.keep_free_gib, or remove images of others"
            )

    async def _make_room(self, needed: int) -> Usage:
        ledger, _, root = await self.open()
        async with self._room:
            removed, usage = await self._call(lambda api: disk.make_room(api, ledger, root, self.settings, needed))
        if removed:
            log.info("made room: removed %d images not used lately", len(removed))
        return usage

    async def _from_sources(self, name: ImageName) -> ImageName:
        """Pull from the mirror, else from where the name says; which of them it was."""
        sources = [source for source in (name.under(self.settings.mirror), name) if source is not None]
        for number, source in enumerate(sources):
            try:
                await self._with_tries(source, name)
                return source
            except NoSpace:
                raise
            except ImageFault as fault:
                if number == len(sources) - 1:
                    raise
                log.warning("the mirror did not give %s (%s); asking its own registry", name, fault)
        raise AssertionError("unreachable")

    async def _pull(self, source: ImageName, name: ImageName, registries: Registries) -> None:
        """One attempt, in a thread that does not hold up the end of this process: a stalled pull takes minutes to
        notice that nobody waits."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def work() -> None:
            error: Exception | None = None
            try:
                pull_once(
                    self.engine.api(),
                    source,
                    registries,
                    stall_s=self.settings.stall_s,
                    listener=self.listener,
                    shown_as=str(name),
                    stop=self._stop,
                )
            except Exception as caught:  # handed to the one who waits
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(settle, error)

        threading.Thread(target=work, name=f"pull {source}", daemon=True).start()
        await self._typed(done)

    async def _with_tries(self, source: ImageName, name: ImageName) -> None:
        _, registries, _ = await self.open()
        settings, waited = self.settings, 0.0
        for attempt in range(1, settings.tries + 1):
            if (pause := self._not_before.get(source.registry, 0.0) - time.monotonic()) > 0:
                waited += pause
                await asyncio.sleep(pause + random.uniform(0, settings.backoff_s))  # not all at the same moment
            try:
                await self._pull(source, name, registries)
                return
            except ImageFault as fault:
                pause = min(MAX_PAUSE_S, settings.backoff_s * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
                if fault.retry_after_s is not None:
                    pause += fault.retry_after_s
                if not fault.transient or attempt == settings.tries or waited + pause > settings.patience_s:
                    raise
                log.info("pull of %s, try %d: %s; again in %.1f s", name, attempt, fault, pause)
                if isinstance(fault, RegistryBusy):
                    self._not_before[source.registry] = time.monotonic() + pause
                else:
                    waited += pause
                    await asyncio.sleep(pause)

    @staticmethod
    def _rename(api: Any, source: ImageName, name: ImageName) -> dict[str, Any]:
        """Tasks look for the image under its own name."""
        if source != name:
            path, _, tag = str(name).rpartition(":")
            api.tag(str(source), path, tag)
            api.remove_image(str(source))
        record = held(api, name)
        if record is None:
            raise ImageFault(f"image {name} was pulled, but the engine does not list it: look at the engine's log")
        return record

    async def usage(self) -> Usage:
        ledger, _, root = await self.open()
        return await self._call(lambda api: disk.usage(api, ledger, root))

    async def prune(
        self, *, everything: bool = False, dry_run: bool = False, made: bool = False, names: Collection[str] = ()
    ) -> tuple[list[Image], Usage]:
        """Remove images until budget and free space hold, or (`everything`) all that may go, or (`made`) those made
        here, of `names` where some are given. Returns them and the usage before (`dry_run`) or after."""
        ledger, _, root = await self.open()
        if made and dry_run:
            now = await self.usage()
            return [image for image in now.images if image.made and disk.named(image, names)], now
        if made:
            async with self._room:
                return await self._call(lambda api: disk.remove_made(api, ledger, root, names))
        settings = dataclasses.replace(self.settings, budget_bytes=1) if everything else self.settings
        if not dry_run:
            async with self._room:
                return await self._call(lambda api: disk.make_room(api, ledger, root, settings, 0))
        now = await self.usage()
        lacking, chosen = now.lacking(0, settings), []
        for image in now.images:
            if lacking > 0 and not image.kept:
                chosen.append(image)
                lacking -= image.unique_bytes
        return chosen, now

    async def close(self) -> None:
        """Ends pulls under way; what they fetched stays with the engine."""
        self._stop.set()
        pulls = list(self._pulls.values())
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        self.engine.close()
