"""Calls to the Docker engine from asyncio, and what its errors mean.

Promises: the `docker` package is imported on first use; every blocking call runs in this module's own few threads, one
client a thread; errors come out typed, with the way out; transient ones (engine busy, connection reset, 5xx) are tried
again with a growing pause.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from envs.sandbox.contract import BackendUnavailable, ImageMissing, SandboxError, StartFailed

T = TypeVar("T")
THREADS = 8
"""Also how many sandboxes are started at once: more only makes the engine slower."""
TRIES = 4
TIMEOUT_S = 120


def engine_address() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def unavailable(error: Exception | str) -> BackendUnavailable:
    return BackendUnavailable(
        f"no Docker engine answers at {engine_address()} ({error}): start it (scripts/docker-engine.sh start as "
        "root, or your system's Docker), or use --sandbox embedded"
    )


class Engine:
    """One for each backend."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    def api(self) -> Any:
        """This thread's client. Call it only from a function given to `call`."""
        client = getattr(self._local, "client", None)
        if client is None:
            import docker

            try:
                settings = docker.utils.kwargs_from_env()
                client = docker.APIClient(**settings, version="auto", timeout=TIMEOUT_S)
            except (docker.errors.DockerException, OSError) as error:
                raise unavailable(_reason(error)) from error
            self._local.client = client
        return client

    def ping(self) -> None:
        """Blocking. Raises BackendUnavailable."""
        try:
            self.api().ping()
        except SandboxError:
            raise
        except Exception as error:
            raise unavailable(_reason(error)) from error

    async def call(self, work: Callable[[Any], T]) -> T:
        """`work(api)` in a thread, once. Cancelling the caller does not stop a call that has begun."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(self.api()))

    def retrying(self, work: Callable[[], T], undo: Callable[[], object]) -> T:
        """In a thread: `work` until it succeeds or fails for good; `undo` after each failure."""
        for left in reversed(range(TRIES)):
            try:
                return work()
            except SandboxError:
                undo()
                raise
            except Exception as error:
                undo()
                if left and is_transient(error):
                    time.sleep(0.2 * 2 ** (TRIES - left) * random.uniform(0.5, 1.0))
                    continue
                raise error
        raise AssertionError("unreachable")

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _reason(error: BaseException) -> str:
    """The innermost reason; docker's own texts wrap it three times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error).strip() or type(error).__name__


def is_transient(error: BaseException) -> bool:
    import docker
    import requests

    if isinstance(error, docker.errors.APIError):
        status = error.response.status_code if error.response is not None else 500
        text = str(error).lower()
        lasting = ("executable file not found", "no such file", "invalid", "unknown or invalid runtime")
        return status == 429 or (status >= 500 and not any(word in text for word in lasting))
    return isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout | ConnectionError)


def typed(error: BaseException, image: str) -> SandboxError:
    """What a failed start means to the user."""
    import docker
    import requests

    if isinstance(error, SandboxError):
        return error
    if isinstance(error, docker.errors.ImageNotFound):
        way = "scripts/base-image.sh makes it" if image.startswith("sao-base:") else f"docker pull {image}"
        return ImageMissing(f"image {image} is not on this machine: {way}")
    if isinstance(error, requests.exceptions.ConnectionError | ConnectionError):
        return unavailable(_reason(error))
    text = getattr(error, "explanation", None) or str(error)
    if "docker-init" in str(text):
        text = f"{text}; the engine lacks its init program (Debian: apt-get install tini, or docker.io's docker-init)"
    return StartFailed(f"the container for image {image} did not start: {text}")
