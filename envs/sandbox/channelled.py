"""What both backends' sandboxes share: commands and files through the channel, paths checked before anything is sent.

Promises: relative paths and cwds are below the workdir; PathRefused comes before the sandbox hears of the path; a
command's environment is the sandbox's plus its own and dies with it.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence

from envs.sandbox.channel import Channel
from envs.sandbox.contract import (
    EndedInside,
    ExecResult,
    OutOfMemory,
    Sandbox,
    SandboxBackend,
    SandboxDead,
    SandboxError,
    SandboxSpec,
)
from envs.sandbox.death import End
from envs.sandbox.disk_guard import DiskGuard
from envs.sandbox.paths import check_archive, inside

log = logging.getLogger(__name__)
WELL_S = 30.0
"""How long a fresh sandbox may take to answer on a machine that is well."""

BASE_ENV = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Programs that would page or prompt do not; git works in repositories that an image's other user owns."""


class ChannelledSandbox(Sandbox):
    """A started sandbox reached through its channel; backends add start, close and what is known of its end.

    Nothing of a command outlives it but files and background processes: each command starts in `cwd` (default: the
    workdir) with the sandbox's environment; `cd` and `export` end with their command. A background child does not hold
    up its command's return; what it writes afterwards is dropped, and it lives until the sandbox ends or a command
    times out, which kills everything.
    """

    _backend: SandboxBackend

    def __init__(self, sandbox_id: str, spec: SandboxSpec) -> None:
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.channel = Channel(spec, self._write, self._diagnose)
        self._ends_at = time.monotonic() + spec.deadline_s
        self._closing: asyncio.Task[None] | None = None
        self._guard: DiskGuard | None = None
        """Where the sandbox's file system has no limit of its own."""

    @abc.abstractmethod
    def _write(self, data: bytes) -> None:
        """Send bytes to the sandbox's main process; a broken connection is reported through channel.lost()."""

    @abc.abstractmethod
    async def _end(self, silent: bool) -> End:
        """What is known of its end; `silent`: perhaps it has not ended, but does not answer."""

    async def _diagnose(self, silent: str) -> SandboxError:
        """Why the channel broke (see envs.sandbox.death); `silent`: what was seen of it, when it has not ended."""
        over = self._closing is not None or time.monotonic() >= self._ends_at - 1.0
        end = await self._end(bool(silent))
        name = f"sandbox {self.sandbox_id}"
        if end.oom:
            return OutOfMemory(
                f"{name} ended when its memory limit of {self.spec.limits.memory_bytes >> 20} MiB was reached; give it "
                "more memory or start a fresh one"
            )
        said = f"; it said: {end.said}" if end.said else ""
        code = f" (exit code {end.code})" if end.code else ""
        if self.channel.used and not over and not end.outside:
            if end.running and silent and await self._well():
                return EndedInside(f"{name}: {silent}, while a fresh one answers: what ran in it is the cause{said}")
            if not end.running and end.by_itself:
                what = silent or f"its channel was killed from inside{code}"
                return EndedInside(f"{name} was ended by what ran in it: {what}{said}; start a fresh one")
        why = silent or "closed, past its deadline, killed from outside, or the engine restarted"
        return SandboxDead(f"{name} is gone ({why}){code}{said}; start a fresh one")

    async def _well(self) -> bool:
        """A fresh sandbox of the same kind answers: engine and machine are not what is wrong."""
        spec = dataclasses.replace(self.spec, labels={}, network="none")
        try:
            async with asyncio.timeout(WELL_S):
                async with await self._backend.start(spec) as fresh:
                    return (await fresh.exec(":", timeout_s=WELL_S)).exit_code == 0
        except (SandboxError, TimeoutError) as error:
            log.warning("no fresh sandbox answers beside %s either: %s", self.sandbox_id, error)
            return False

    @property
    def alive(self) -> bool:
        return not self.channel.dead

    def adopt(self, spec: SandboxSpec) -> None:
        self.spec = self.channel.spec = spec

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        last: bool = False,
    ) -> ExecResult:
        where = inside(cwd, self.spec.workdir) if cwd else self.spec.workdir
        run = self.channel.run(command, timeout_s=timeout_s, cwd=where, env=env or {}, last=last)
        return await (run if self._guard is None else self._guard.run(run, self.channel.cut))

    async def put(self, path: str, data: bytes, *, mode: int | None = 0o644) -> None:
        await self.channel.put(inside(path, self.spec.workdir), data, mode)

    async def put_tar(self, directory: str, archive: bytes) -> None:
        check_archive(archive)
        await self.channel.untar(inside(directory, self.spec.workdir), archive)

    async def get(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        return await self.channel.get(inside(path, self.spec.workdir), max_bytes)

    async def altered(self, rules: Sequence[str]) -> tuple[str, ...] | None:
        return await self.channel.look(rules)
