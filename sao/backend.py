"""Which sandboxes a run gets: backend, image store and warm pool from the configuration.

Of its own, so that commands without a model (grading, images) start without loading one's code.
"""

from __future__ import annotations

import asyncio
import logging

from data.installed import run_script
from envs.images import FetchingBackend, ImageSettings, ImageStore
from envs.sandbox import SandboxBackend, make_backend
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.pool import PoolSettings, SandboxPool
from envs.swe.row import BASE_IMAGE
from sao.config import Config

log = logging.getLogger(__name__)


async def backend_of(config: Config, run_id: str, kind: str | None = None) -> SandboxBackend:
    """A backend that answered, behind its warm pool. `auto` without the base image takes the embedded one.

    Raises BackendUnavailable."""
    settings = config.sandbox
    kind = kind or settings.backend
    backend = await asyncio.to_thread(
        make_backend, kind, run_id, starts_at_once=settings.starts_at_once, runtime=settings.runtime
    )
    if kind == "auto" and isinstance(backend, DockerBackend) and not await _has_base_image(backend):
        await backend.close()
        log.warning("a Docker engine answers but %s is missing: `%s` makes it", BASE_IMAGE, run_script("base-image"))
        backend = await asyncio.to_thread(make_backend, "embedded", run_id)
    if isinstance(backend, DockerBackend):
        backend = FetchingBackend(backend, ImageStore(image_settings(config)))
    pool = pool_settings(config, backend)
    return SandboxPool(backend, pool) if pool.ready else backend


def image_settings(config: Config) -> ImageSettings:
    images = config.images
    return ImageSettings(
        mirror=images.mirror,
        budget_bytes=int(images.budget_gib * (1 << 30)),
        keep_free_bytes=int(images.keep_free_gib * (1 << 30)),
        parallel=images.parallel,
        tries=images.tries,
        patience_s=images.patience_s,
    )


def pool_settings(config: Config, backend: SandboxBackend) -> PoolSettings:
    """An embedded sandbox starts about as fast as a ready one is looked after, so there the pool is off by default."""
    pool = config.sandbox.pool
    ready = ready_sandboxes(config, backend.name)
    return PoolSettings(ready=ready, warm_after=pool.warm_after, idle_s=pool.idle_s)


async def _has_base_image(backend: DockerBackend) -> bool:
    return bool(await backend.engine.call(lambda api: api.images(name=BASE_IMAGE)))


def ready_sandboxes(config: Config, kind: str) -> int:
    """How many the pool keeps. With "auto": as with Docker, the most it can be."""
    if config.sandbox.pool.ready >= 0:
        return config.sandbox.pool.ready
    return 0 if kind in ("embedded", "none") else min(16, max(2, config.rollout.concurrency // 2))
