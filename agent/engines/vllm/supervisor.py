"""Starts vLLM servers, watches them, starts them again, and leaves none behind.

Promises: a server has one address for the supervisor's life; one that ends, or does not answer for `hang_s`, is ended
with its whole process tree and started again, `restarts` times each with growing pauses; when that is used up,
`on_failed` gets the fault with the server's last lines. However this process ends, its servers end too (`guard`).
A server that was started again serves the weights it was first started with: whoever uses it brings it to newer ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.engines.vllm import guard
from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerStartFailed
from agent.engines.vllm.launch import MODEL_NAME, LaunchSettings, command, environment

_GRACE_S = 10.0
_POLL_S = 1.0
_LAST_LINES = 25


@dataclass(frozen=True)
class SuperviseSettings:
    start_timeout_s: float = 900.0
    """How long a server may take until it answers (vLLM's imports alone take 25 s of CPU)."""
    hang_s: float = 300.0
    """How long a started server may leave health checks unanswered."""
    restarts: int = 20
    max_pause_s: float = 30.0


@dataclass(eq=False)
class Managed:
    """One server: its address, its log, its present process (the guard's)."""

    port: int
    host: str
    log: Path
    gpus: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def last_words(self) -> str:
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        # vLLM prints the cause first and then what followed from it.
        telling = [line for line in lines if "Error" in line and "INFO" not in line]
        return "\n".join((telling[-3:] if telling else []) + lines[-_LAST_LINES:])


class Supervisor:
    """`async with Supervisor(...) as supervisor: await supervisor.wait_ready()`."""

    def __init__(
        self,
        launch: LaunchSettings,
        logs: Path,
        *,
        count: int = 1,
        port: int = 0,
        settings: SuperviseSettings | None = None,
        say: Callable[[str], None] = lambda _: None,
        on_failed: Callable[[ServerStartFailed], None] = lambda _: None,
        gpus: Sequence[tuple[str, ...]] = (),
    ) -> None:
        """`port`: the first server's, others follow; 0: free ones. `gpus`: each server's; else as `launch` says."""
        launch.check()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self.launch, self.settings, self.say, self.on_failed = launch, settings or SuperviseSettings(), say, on_failed
        logs.mkdir(parents=True, exist_ok=True)
        ports = [port + index for index in range(count)] if port else _free_ports(launch.host, count)
        shares = list(gpus) or [launch.gpus] * count
        self.servers = [
            Managed(each, launch.host, logs / f"server-{each}.log", share)
            for each, share in zip(ports, shares, strict=True)
        ]
        self.failed: ServerStartFailed | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def hold(self, held: bool) -> None:
        """While held, a server that ended is not started again: another has its device."""
        if held:
            self._may_start.clear()
        else:
            self._may_start.set()

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    async def __aenter__(self) -> Supervisor:
        for server in self.servers:
            if _taken(server.host, server.port):
                raise ServerStartFailed(
                    f"{server.url} is in use by another process. End it, or choose another --port; to use a running "
                    "server, pass its address (--connect, engine.servers)."
                )
        self._tasks = [asyncio.create_task(self._keep_running(server), name=server.url) for server in self.servers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_ready(self) -> None:
        """Until all servers answer. Raises ServerStartFailed when one cannot be started."""
        waits = [asyncio.create_task(server.ready.wait()) for server in self.servers]
        try:
            while not all(wait.done() for wait in waits):
                await asyncio.wait([*waits, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks:
                    if task.done() and not task.cancelled():
                        task.result()
                if self.failed is not None:
                    raise self.failed
        finally:
            for wait in waits:
                wait.cancel()

    async def wait_failed(self) -> None:
        """For ever; raises when a server is given up."""
        await asyncio.gather(*self._tasks)

    async def _keep_running(self, server: Managed) -> None:
        client = VllmClient(server.url, model=MODEL_NAME)
        try:
            while True:
                await self._may_start.wait()
                began = time.monotonic()
                why = await self._run_once(server, client)
                first = server.starts == 1 and not server.ready.is_set()
                server.ready.clear()
                if first or server.starts > self.settings.restarts:
                    self.failed = ServerStartFailed(
                        f"{server.url}: {why}; started {server.starts} times. Its last lines ({server.log}):\n"
                        f"{server.last_words()}"
                    )
                    self.on_failed(self.failed)
                    raise self.failed
                pause = min(2.0 ** (server.starts - 1), self.settings.max_pause_s)
                if time.monotonic() - began > 10 * self.settings.max_pause_s:
                    pause = 0.0
                self.say(f"{server.url}: {why}; started again in {pause:.0f} s (log: {server.log})")
                await asyncio.sleep(pause)
        finally:
            await client.close()

    async def _run_once(self, server: Managed, client: VllmClient) -> str:
        """Start it and stay with it until it is over; returns why."""
        launch = replace(self.launch, gpus=server.gpus)
        server.starts += 1
        began = time.monotonic()
        with server.log.open("ab") as log:
            log.write(f"--- start {server.starts}, {time.strftime('%H:%M:%S')}\n".encode())
            log.flush()
            server.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", guard.__file__, str(_GRACE_S)),
                *command(launch, server.port),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(launch),
                start_new_session=True,
            )
        self.say(f"{server.url}: starting (log: {server.log})")
        process = server.process
        over = asyncio.create_task(process.wait())
        misses, miss_s = 0, min(30.0, self.settings.hang_s / 3)
        try:
            while True:
                await asyncio.wait({over}, timeout=_POLL_S if not server.ready.is_set() else 5 * _POLL_S)
                if over.done():
                    return f"it ended with exit code {over.result()}"
                now = time.monotonic()
                if await client.healthy(miss_s):
                    misses = 0
                    if not server.ready.is_set():
                        server.ready.set()
                        self.say(f"{server.url}: ready after {now - began:.0f} s")
                elif not server.ready.is_set() and now - began > self.settings.start_timeout_s:
                    return f"it did not answer within {self.settings.start_timeout_s:.0f} s"
                elif server.ready.is_set():
                    # Checks are counted, not time: this process may itself have been stopped for a while.
                    misses += 1
                    if misses * miss_s >= self.settings.hang_s:
                        return f"it left {misses} health checks unanswered, {miss_s:.0f} s each"
        finally:
            over.cancel()
            await self._end(process)

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        """A word makes the guard end the tree in peace; the input's end would hurry it."""
        if process.stdin is not None:
            process.stdin.write(b"stop\n")
        try:
            async with asyncio.timeout(_GRACE_S + 10.0):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind((host, 0))
            found.append(int(listener.getsockname()[1]))
        return found


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
