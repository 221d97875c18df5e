"""Calls to the Docker engine from asyncio, and what its errors mean.

Promises: `connect` is the one way to an engine that answers; the `docker` package is imported on first use; every
blocking call runs in this module's own few threads, one client a thread; errors come out typed, with the way out;
transient ones (engine busy, connection reset, 5xx) are tried again with a growing pause, and while no engine answers at
all (it restarts) a start waits for it for PATIENCE_S before it fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from data.installed import run_script
from envs.sandbox.contract import BackendUnavailable, ImageMissing, SandboxError, StartFailed
from envs.sandbox.docker_address import DEFAULT, find_engine, refusal

log = logging.getLogger(__name__)
T = TypeVar("T")
THREADS = 12
TRIES = 5
TIMEOUT_S = 60
PATIENCE_S = 90.0
"""How long a start waits for an engine that does not answer: its restart takes seconds, a busy one's half a minute."""
_LONGEST_PAUSE_S = 5.0
_PULL_IT = "docker pull {image}"
_LASTING = ("executable file not found", "no such file", "invalid", "unknown or invalid runtime", "no space left")


def engine_address() -> str:
    """For people: also of one that cannot be used."""
    try:
        return find_engine()
    except BackendUnavailable:
        return os.environ.get("DOCKER_HOST") or DEFAULT


def connect(address: str | None = None) -> Engine:
    """An engine that answers, at `address` or where the environment says. Blocking. Raises BackendUnavailable."""
    engine = Engine(address)
    try:
        engine.ping()
    except BaseException:
        engine.close()
        raise
    return engine


class Engine:
    """One for each backend. Context manager: leaving the block closes it."""

    def __init__(self, address: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._patience_s = patience_s
        self._closed = threading.Event()
        self._local = threading.local()
        self._clients: list[Any] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return self._address or engine_address()

    def api(self) -> Any:
        """This thread's client. Call it only from a function given to `call`, or where blocking is fine."""
        client = getattr(self._local, "client", None)
        if client is None:
            import docker

            where = self._address or find_engine()
            try:
                client = docker.APIClient(base_url=where, version="auto", timeout=TIMEOUT_S)
            except (docker.errors.DockerException, OSError) as error:
                raise self.unavailable(error) from error
            self._local.client = client
            self._clients.append(client)
        return client

    def ping(self) -> None:
        """Blocking. Raises BackendUnavailable."""
        try:
            self.api().ping()
        except SandboxError:
            raise
        except Exception as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException) -> BackendUnavailable:
        why = refusal(self.address)
        if why.startswith("the engine runs"):
            return BackendUnavailable(f"no Docker engine for this user: {why}; or use --sandbox embedded")
        return BackendUnavailable(
            f"no Docker engine answers at {self.address} ({_reason(error)}{f'; {why}' if why else ''}): start it "
            f"({run_script('docker-engine', 'start')} as root, or your system's Docker), or use --sandbox embedded"
        )

    async def call(self, work: Callable[[Any], T]) -> T:
        """`work(api)` in a thread, once. Cancelling the caller does not stop a call that has begun."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(self.api()))

    async def insist(self, work: Callable[[Any], T], undo: Callable[[Any], object]) -> T:
        """`work(api)` in a thread until it succeeds or fails for good; `undo(api)` after each failure."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: self._insist(work, undo))

    def _insist(self, work: Callable[[Any], T], undo: Callable[[Any], object]) -> T:
        tries, pause, give_up_at = 0, 0.2, time.monotonic() + self._patience_s
        while True:
            try:
                return work(self.api())
            except Exception as error:
                self._undo(undo)
                if _nobody_there(error):
                    if time.monotonic() > give_up_at or self._closed.is_set():
                        raise
                else:
                    tries += 1
                    if tries >= TRIES or self._closed.is_set() or not is_transient(error):
                        raise
                log.info("trying again in %.1f s: %s", pause, _reason(error))
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _undo(self, undo: Callable[[Any], object]) -> None:
        try:
            undo(self.api())
        except Exception as error:  # the first failure is the one to tell; a name that stays taken is undone again
            log.info("undoing a failed call failed too: %s", _reason(error))

    def close(self) -> None:
        """Calls that run go on to their end in their threads; none is tried again."""
        self._closed.set()
        self._pool.shutdown(wait=False)
        for client in self._clients:
            client.close()


def _reason(error: BaseException) -> str:
    """The innermost reason; docker's own texts wrap it three times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error).strip() or type(error).__name__


def _nobody_there(error: BaseException) -> bool:
    """No engine took the call, as while it restarts; unlike one that took it and was slow."""
    import requests

    slow = isinstance(error, requests.exceptions.Timeout)
    return not slow and isinstance(error, BackendUnavailable | requests.exceptions.ConnectionError | ConnectionError)


def is_transient(error: BaseException) -> bool:
    import docker
    import requests

    if isinstance(error, docker.errors.APIError):
        status = error.response.status_code if error.response is not None else 500
        text = str(error).lower()
        # A name in use is our own earlier try, which got through although its answer did not.
        taken = status == 409 and "already in use" in text
        return taken or status == 429 or (status >= 500 and not any(word in text for word in _LASTING))
    return _nobody_there(error) or isinstance(error, requests.exceptions.Timeout)


def typed(error: BaseException, image: str, engine: Engine) -> SandboxError:
    """What a failed start means to the user."""
    import docker
    import requests

    if isinstance(error, SandboxError):
        return error
    if isinstance(error, docker.errors.ImageNotFound):
        way = f"{run_script('base-image')} makes it" if image.startswith("sao-base:") else _PULL_IT.format(image=image)
        return ImageMissing(f"image {image} is not on this machine: {way}")
    if isinstance(error, requests.exceptions.Timeout):
        return StartFailed(
            f"the engine at {engine.address} did not start a container for image {image} within {TIMEOUT_S} s, {TRIES} "
            "times over: it is overloaded or stuck (docker ps, and the engine's log); start fewer at once "
            "(sandbox.starts_at_once)"
        )
    if isinstance(error, requests.exceptions.ConnectionError | ConnectionError):
        return engine.unavailable(error)
    text = str(getattr(error, "explanation", None) or error)
    if "no space left" in text.lower():
        text += "; the engine's disk is full: remove images that no run needs (docker image prune), or old runs"
    return StartFailed(f"the container for image {image} did not start: {text}")
