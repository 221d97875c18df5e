"""What the sandbox tests share: the backends to run on, and one sandbox for the length of a test."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from envs.sandbox import BackendUnavailable, SandboxLimits, SandboxSpec
from envs.sandbox.channel_text import Helpers
from envs.sandbox.contract import Sandbox, SandboxBackend
from tests.patience import PATIENCE_S

KINDS = ["embedded", "shell", "unshare", pytest.param("docker", marks=pytest.mark.docker)]
"""shell: the channel without its helper. unshare: the embedded backend where bubblewrap is absent."""
BACKENDS = [KINDS[0], KINDS[1], KINDS[3]]
"""For what does not depend on how the namespaces were made."""


def make(kind: str, run_id: str = "test") -> SandboxBackend:
    if kind == "docker":
        from envs.sandbox.docker_backend import DockerBackend

        return DockerBackend(run_id)
    from envs.sandbox.embedded import EmbeddedBackend

    try:
        helpers = Helpers.NEVER if kind == "shell" else Helpers.WHERE_PRESENT
        return EmbeddedBackend(run_id, launcher="unshare" if kind == "unshare" else "bwrap", helpers=helpers)
    except BackendUnavailable as error:
        pytest.skip(f"EMBEDDED TEST NOT RUN: {error}")


def spec(**changes: Any) -> SandboxSpec:
    limits = {name: changes.pop(name) for name in list(changes) if name in SandboxLimits.__dataclass_fields__}
    return SandboxSpec(limits=SandboxLimits(**limits), **changes)


@contextlib.asynccontextmanager
async def sandbox(kind: str, **changes: Any) -> AsyncIterator[Sandbox]:
    backend = make(kind)
    try:
        async with await backend.start(spec(**changes)) as box:
            yield box
    finally:
        await backend.close()


def in_sandbox(kind: str, test: Callable[[Sandbox], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with sandbox(kind, **changes) as box:
            await test(box)

    asyncio.run(main())


async def processes(box: Sandbox, *, like: list[str] | None = None) -> list[str]:
    """Names of all processes in the sandbox, sorted, by its own process table. The channel's helpers come and go within
    milliseconds: it looks again until it sees `like` (none: twice the same), for at most 2 s."""
    before: list[str] = []
    for _ in range(20):
        result = await box.exec('for p in /proc/[0-9]*; do read -r c <"$p/comm" && echo "$c"; done 2>/dev/null')
        # busybox starts a helper as /proc/self/exe and renames it a moment later. The filter of this very look has a
        # dd that may not be up yet.
        names = sorted("sh" if name == "exe" else name for name in result.text.splitlines() if name != "dd")
        if names == (before if like is None else like):
            break
        before = names
        await asyncio.sleep(0.1)
    return names


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
