"""Which server an episode's next turn goes to.

Promises: an episode stays on the server that holds its cache for as long as that server is up (then it moves to the one
with the fewest episodes); no server ever holds more than `in_flight` of our requests, the rest waits here; a
request that no living server can take within `patience_s` is NoServer; while `held`, requests wait and no patience is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import NoServer
from agent.engines.vllm.loading import FileLoader, Loader
from agent.policy import EngineError

_LOOK_S = 0.5


@dataclass(eq=False)
class Server:
    client: VllmClient
    loader: Loader = field(default_factory=FileLoader)
    """How new weights get into it."""
    asleep: bool = False
    """It gave its device's memory back: nothing may run on it before `sync.bring`."""
    up: bool = False
    why: str = "not looked at yet"
    """What speaks against it, while it is not up."""
    load: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it goes down; a new one when it comes up."""
    sync_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    proofs: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """Label of weights → how the proof that this server serves them ended."""

    async def close(self) -> None:
        await self.loader.close()
        await self.client.close()


class Router:
    def __init__(self, servers: list[Server], *, in_flight: int, patience_s: float) -> None:
        self.servers, self.in_flight, self.patience_s = servers, in_flight, patience_s
        self._home: dict[str, Server] = {}
        self._changed = asyncio.Event()
        self.waiting = 0
        self.held = False
        self._over: EngineError | None = None

    def end(self, error: EngineError) -> None:
        """Whoever waits, and whoever comes, gets this."""
        self._over = error
        self._wake()

    def hold(self, held: bool) -> None:
        self.held = held
        self._wake()

    def mark_up(self, server: Server) -> None:
        server.up, server.why, server.lost = True, "", asyncio.Event()
        self._wake()

    def mark_down(self, server: Server, why: str) -> None:
        server.up, server.why = False, why
        server.lost.set()
        self._wake()

    async def take(self, episode_id: str) -> Server:
        """A server with room for one more request; `give_back` it."""
        self.waiting += 1
        without_s, looked = 0.0, time.monotonic()
        try:
            while (server := self._choose(episode_id)) is None:
                if self._over is not None:
                    raise self._over
                if self.held or any(each.up for each in self.servers):
                    without_s = 0.0
                elif without_s > self.patience_s:
                    reasons = "; ".join(f"{each.client.url}: {each.why}" for each in self.servers)
                    raise NoServer(f"no vLLM server for {without_s:.0f} s: {reasons}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                # Not more than a look's worth: this process may itself have been stopped for a while.
                without_s += min(time.monotonic() - looked, 2 * _LOOK_S)
                looked = time.monotonic()
        finally:
            self.waiting -= 1
        server.load += 1
        return server

    def give_back(self, server: Server) -> None:
        server.load -= 1
        self._wake()

    def forget(self, episode_id: str) -> None:
        self._home.pop(episode_id, None)

    def _choose(self, episode_id: str) -> Server | None:
        """None: wait."""
        if self.held or self._over is not None:
            return None
        home = self._home.get(episode_id)
        if home is not None and home.up:
            return home if home.load < self.in_flight else None
        ready = [server for server in self.servers if server.up and server.load < self.in_flight]
        if not ready:
            return None
        homed = list(self._home.values())
        chosen = min(ready, key=lambda server: (homed.count(server), server.load))
        if episode_id:
            self._home[episode_id] = chosen
        return chosen

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
