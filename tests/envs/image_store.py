"""For tests of images on the real engine: a registry made here, and a store on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.images import ImageSettings, ImageStore
from envs.sandbox.docker_engine import Engine
from tests.envs.fake_registry import FakeRegistry

MIB = 1 << 20


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """What was pulled from it, and what was tagged after it, is removed from the engine afterwards."""
    fake = FakeRegistry()
    try:
        yield fake
    finally:
        fake.close()
        with Engine() as engine:
            api = engine.api()
            for record in api.images():
                names = [*(record.get("RepoTags") or []), *(record.get("RepoDigests") or [])]
                if any(name.startswith((fake.address, f"sao-test-{fake.port}")) for name in names):
                    api.remove_image(record["Id"], force=True)


def with_store(
    tmp_path: Path, work: Callable[[ImageStore], Awaitable[None]], *, listener: Any = None, **settings: Any
) -> None:
    async def main() -> None:
        quick = {"backoff_s": 0.02, "keep_free_bytes": 0, **settings}
        store = ImageStore(ImageSettings(**quick), state=tmp_path / "state", listener=listener)
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(main())


def files(mib: float = 0.01) -> dict[str, bytes]:
    return {"data": os.urandom(int(mib * MIB))}
