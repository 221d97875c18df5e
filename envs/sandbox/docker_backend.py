"""The Docker backend: one container a sandbox, one attached stream as its channel.

Promises: as the contract. Containers have no network (a spec that asks for one gets the engine's bridge where
there is one, never the machine's own), no capabilities, no new privileges, no swap, no logs on
disk and remove themselves when they end; standard input is open once, so an end of the driver closes it and the channel
ends the container; the channel's lease ends it at the deadline even when the engine has lost the driver. Labels
name run, owner and deadline; `reap` removes what a dead owner or a passed deadline left (a container that was created
and never started, and a kept state, are the two things that do not end by themselves). Volumes that an image declares
go with their container; they are labelled too, since an engine that restarts forgets them. Starts are paced, and wait
for an engine that restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envs.sandbox.altered import looked_at
from envs.sandbox.channelled import BASE_ENV, ChannelledSandbox
from envs.sandbox.contract import (
    NetworkRefused,
    OutOfMemory,
    Sandbox,
    SandboxBackend,
    SandboxDead,
    SandboxError,
    SandboxSpec,
    StartFailed,
)
from envs.sandbox.death import End, container_end
from envs.sandbox.disk_guard import DiskGuard
from envs.sandbox.docker_engine import THREADS, Engine, typed
from envs.sandbox.docker_survey import DEADLINE, OWNER, RUN, SANDBOX, await_removal, remove, remove_container, survey
from envs.sandbox.owner import Found, owner_id
from envs.sandbox.seccomp import docker_profile, may_watch
from envs.sandbox.stream import SandboxStream

log = logging.getLogger(__name__)
T = TypeVar("T")
READY_S = 60.0
_SIGNALS, _QUEUES = 8192, 400_000
DIAGNOSE_S = 15.0
ENDS_S = 3.0
"""How long a container may take to end once its channel is closed, before it is killed."""
START_TRIES = 3
"""For a container that ended before its channel was up (the engine restarted, a start that the kernel killed)."""
REAP_S = 30.0
STATE_S = 7 * 86400.0
"""A kept state is removed after so long, whoever it is of; a run that still needs it makes it again."""
_DELETED = 2
"""The engine's kind of a change."""
_HOSTS = (
    "[ -s /etc/hosts ] || printf '127.0.0.1\\tlocalhost sandbox\\n::1\\tlocalhost\\n' 2>/dev/null >/etc/hosts || true"
)
"""An engine without networks writes no /etc/hosts."""


def container_settings(
    api: Any, spec: SandboxSpec, labels: dict[str, str], runtime: str = "", filters: bool = True, here: bool = False
) -> dict[str, Any]:
    """Arguments of the create call: everything a sandbox may and may not do. `filters`: the engine can filter system
    calls. `here`: its kernel is this machine's."""
    from docker.types import LogConfig, Ulimit

    limits = spec.limits
    profile = [f"seccomp={docker_profile(watches=here and may_watch(limits))}"] if filters else []
    host = api.create_host_config(
        init=False,  # the channel is it: then nothing inside can kill it
        auto_remove=True,
        network_mode=spec.network,
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        mem_swappiness=None,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        ulimits=[
            Ulimit(name="nofile", soft=limits.nofile, hard=limits.nofile),
            Ulimit(name="fsize", soft=limits.disk_bytes, hard=limits.disk_bytes),
            Ulimit(name="core", soft=0, hard=0),
            # Counted by user, which is this machine's root: below what root itself may hold.
            Ulimit(name="sigpending", soft=_SIGNALS, hard=_SIGNALS),
            Ulimit(name="msgqueue", soft=_QUEUES, hard=_QUEUES),
        ],
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true", *profile],
        ipc_mode="private",
        runtime=runtime or None,
        log_config=LogConfig(type=LogConfig.types.NONE) if hasattr(LogConfig.types, "NONE") else {"Type": "none"},
    )
    return {
        "image": spec.state or spec.image,
        "entrypoint": ["/bin/sh"],
        "command": [],
        "user": "0:0",
        "hostname": "sandbox",
        "stdin_open": True,
        "tty": False,
        "working_dir": "/",
        "environment": {**BASE_ENV, **spec.env},
        "labels": labels,
        # Not even the engine's idea of none: a namespace with nothing but loopback. It spares the engine a process of
        # its own for each start, half of what a start costs.
        "network_disabled": spec.network == "none",
        "host_config": host,
        "healthcheck": {"test": ["NONE"]},
    }


class DockerSandbox(ChannelledSandbox):
    def __init__(self, backend: DockerBackend, name: str, spec: SandboxSpec) -> None:
        super().__init__(name, spec)
        self._backend: DockerBackend = backend
        self._stream = SandboxStream(self.channel, multiplexed=True)
        self._started = time.time()
        self._unfinished: asyncio.Future[socket.socket] | None = None
        self._given_up = threading.Event()
        self.container_id = ""
        self._guard = DiskGuard(self._disk_used, lambda: self.spec.limits.disk_bytes)

    def _write(self, data: bytes) -> None:
        self._stream.write(data)

    async def _disk_used(self) -> int | None:
        """Most storage drivers know no limit for a container's own layer, but all know its size."""

        def ask(api: Any) -> int | None:
            found = api.containers(all=True, size=True, filters={"id": self.container_id})
            return int(found[0].get("SizeRw") or 0) if found else None

        return await self._backend.engine.call(ask)

    async def _start(self) -> None:
        work = asyncio.ensure_future(self._backend.engine.insist(self._create, self._remove))
        try:
            sock = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The call goes on in its thread; what it makes must not outlive us.
            self._unfinished = work
            raise
        await self._stream.connect(sock)
        self._write(self.channel.script(_HOSTS, image=self.spec.image))
        await self.channel.ready(READY_S)

    def _create(self, api: Any) -> socket.socket:
        """In a thread, perhaps several times, always under the same name: a try that the engine carried out although
        its answer was lost is found by it."""
        if self._given_up.is_set():
            raise SandboxDead(f"sandbox {self.sandbox_id} was closed while it started")
        labels = {**self.spec.labels, **self._backend.labels(self.sandbox_id, self.spec.deadline_s)}
        filters, here = self._backend.engine_can(api)
        settings = container_settings(api, self.spec, labels, self._backend.runtime, filters, here)
        settings["host_config"]["Mounts"] = [
            {"Type": "volume", "Target": target, "VolumeOptions": {"Labels": labels}}
            for target in self._backend.volumes_of(api, settings["image"])
        ]
        self.container_id = api.create_container(name=self.sandbox_id, **settings)["Id"]
        attached = api.attach_socket(self.container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        # A duplicate that asyncio owns. docker's response holds the original open, and with it the sandbox, until it
        # happens to be collected: it is closed here.
        plain = getattr(attached, "_sock", attached)
        if not isinstance(plain, socket.socket) or hasattr(plain, "cipher"):
            raise StartFailed("the engine's address must be unix:// or tcp:// without TLS")
        sock = plain.dup()
        getattr(attached, "_response", attached).close()
        try:
            api.start(self.container_id)
        except BaseException:
            sock.close()
            raise
        return sock

    def _remove(self, api: Any) -> None:
        # A container that had its channel ends with it, which costs the engine less than a kill.
        if not (self.channel.up and await_removal(api, self.container_id, ENDS_S)):
            remove_container(api, self.sandbox_id)

    async def _end(self, silent: bool) -> End:
        end = End(outside=True)
        with contextlib.suppress(Exception):  # an engine that is gone too leaves the plain answer
            async with asyncio.timeout(DIAGNOSE_S):
                end = await self._backend.engine.call(
                    lambda api: container_end(api, self.container_id, self._started, silent)
                )
        return dataclasses.replace(end, said=self._stream.said.decode("utf-8", "replace").strip())

    async def altered(self, rules: Sequence[str]) -> tuple[str, ...] | None:
        """Where the channel cannot look, the engine compares all of the container's files with the image's (half a
        second and more), by size and time."""
        found = await super().altered(rules)
        if found is None:
            changes = await self._backend._typed(lambda api: api.diff(self.container_id))
            found = looked_at((each["Path"] for each in changes or () if each["Kind"] != _DELETED), rules)
        return found

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._given_up.set()
        if self._unfinished is not None:
            with contextlib.suppress(Exception):  # a start that failed has removed what it made
                (await self._unfinished).close()
        self._stream.close()
        self.channel.lost()
        try:
            await self._backend.engine.call(self._remove)
        except Exception as error:  # the channel has ended it; the sweep and the next start look again
            log.warning("could not remove container %s now (%s); it ends by itself", self.sandbox_id, error)
        self._backend.forget(self)


class DockerBackend(SandboxBackend):
    """`starts_at_once` 0: as many as suit this machine. `runtime`: one of the engine's OCI runtimes; empty: its own."""

    name = "docker"

    def __init__(
        self, run_id: str, engine: Engine | None = None, *, starts_at_once: int = 0, runtime: str = ""
    ) -> None:
        self.run_id = run_id
        self.engine = engine or Engine()
        self.runtime = runtime
        slug = re.sub(r"[^a-zA-Z0-9_.-]+", "-", run_id).strip("-.")[:40] or "run"
        self._prefix = f"sao-{slug}-{os.urandom(4).hex()}-"
        self._serial = itertools.count()
        self._live: set[DockerSandbox] = set()
        self._states: set[str] = set()
        self._engine_can: tuple[bool, bool] | None = None
        self._volumes: dict[str, tuple[str, ...]] = {}
        self._pace = asyncio.Semaphore(starts_at_once or starts_that_suit())

    def labels(self, sandbox: str, seconds: float) -> dict[str, str]:
        """What everything we make on the engine carries."""
        deadline = str(int(time.time() + seconds))
        return {RUN: self.run_id, OWNER: owner_id(), DEADLINE: deadline, SANDBOX: sandbox}

    def volumes_of(self, api: Any, image: str) -> tuple[str, ...]:
        """Paths that `image` declares as volumes; asked once."""
        if image not in self._volumes:
            self._volumes[image] = tuple(api.inspect_image(image)["Config"].get("Volumes") or ())
        return self._volumes[image]

    def engine_can(self, api: Any) -> tuple[bool, bool]:
        """Whether the engine can filter system calls, and whether its kernel is this machine's; asked once. One that
        cannot filter runs without, and the log says so."""
        if self._engine_can is None:
            info, own = api.info(), os.uname()
            filters = any("name=seccomp" in each for each in info.get("SecurityOptions") or [])
            if not filters:
                log.warning("the engine at %s cannot filter system calls: sandboxes run without", self.engine.address)
            self._engine_can = filters, (info.get("Name"), info.get("KernelVersion")) == (own.nodename, own.release)
        return self._engine_can

    async def check(self) -> None:
        await asyncio.to_thread(self.engine.ping)

    async def check_network(self) -> None:
        found = await self._typed(lambda api: api.networks(names=["bridge"]))
        if not any(each["Name"] == each["Driver"] == "bridge" for each in found):
            raise NetworkRefused(
                f"a sandbox with a network was asked for, and the engine at {self.engine.address} has no bridge "
                "network (it was started with --bridge=none, as by our script docker-engine): leave --network away, or "
                "use an engine with Docker's default bridge. No sandbox is ever given the machine's own network"
            )

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if spec.network != "none":
            await self.check_network()
        for tried in itertools.count(1):
            async with self._pace:
                began = time.monotonic()
                sandbox = DockerSandbox(self, f"{self._prefix}{next(self._serial)}", spec)
                self._live.add(sandbox)
                try:
                    await sandbox._start()
                    return sandbox
                except BaseException as error:
                    said = sandbox._stream.said.decode("utf-8", "replace").strip()
                    await sandbox.close()
                    if not isinstance(error, Exception):
                        raise
                    if not isinstance(error, SandboxDead | OutOfMemory):
                        raise typed(error, spec.image, self.engine) from error
                    if isinstance(error, OutOfMemory) or tried == START_TRIES or time.monotonic() - began > READY_S:
                        text = f"the container for image {spec.image} ended while starting: {said or error}"
                        raise StartFailed(text) from error
            await asyncio.sleep(random.uniform(0.5, 1.0) * tried)
        raise AssertionError("unreachable")

    def forget(self, sandbox: DockerSandbox) -> None:
        self._live.discard(sandbox)

    async def keep_state(self, sandbox: Sandbox) -> str:
        if not isinstance(sandbox, DockerSandbox):
            raise TypeError(f"{type(sandbox).__name__} is no sandbox of the Docker backend")
        if volumes := self._volumes.get(sandbox.spec.state or sandbox.spec.image):
            raise SandboxError(
                f"the state of sandbox {sandbox.sandbox_id} cannot be kept: its image declares volumes "
                f"({', '.join(volumes)}), and what they hold belongs to no image"
            )
        name = f"sao-state:{os.urandom(8).hex()}"
        self._states.add(name)
        conf = {"Labels": self.labels(sandbox.sandbox_id, STATE_S)}

        def commit(api: Any) -> None:
            repository, _, tag = name.partition(":")
            api.commit(sandbox.container_id, repository=repository, tag=tag, conf=conf)

        try:
            await self.engine.call(commit)
        except Exception as error:
            raise SandboxError(f"the state of sandbox {sandbox.sandbox_id} could not be kept: {error}") from error
        return name

    async def drop_state(self, state: str) -> None:
        def drop(api: Any) -> bool:
            return remove(api, Found("image", state, "in use"))

        if await self.engine.call(drop):
            self._states.discard(state)

    async def survey(self) -> list[Found]:
        return await self._typed(survey)

    async def reap(self) -> list[str]:
        abandoned = [found for found in await self.survey() if found.standing == "abandoned"]
        return await self._remove_all(abandoned)

    async def _remove_all(self, found: Sequence[Found]) -> list[str]:
        """At once, but images last: containers stand on them. What does not go in time is left for the next look."""

        async def one(each: Found) -> str | None:
            try:
                async with asyncio.timeout(REAP_S):
                    gone = await self.engine.call(lambda api: remove(api, each))
            except Exception as error:
                log.warning("could not remove %s %s now (%s)", each.kind, each.name, error or type(error).__name__)
                return None
            return f"{each.kind} {each.name}" if gone else None

        first = [each for each in found if each.kind != "image"]
        then = [each for each in found if each.kind == "image"]
        return [name for part in (first, then) for name in await asyncio.gather(*map(one, part)) if name]

    async def _typed(self, work: Callable[[Any], T]) -> T:
        try:
            return await self.engine.call(work)
        except Exception as error:
            raise (error if isinstance(error, SandboxError) else self.engine.unavailable(error)) from error

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        try:  # what a cancelled or failed start may have left, and our own states
            found = [
                each
                for each in await self.survey()
                if (each.sandbox.startswith(self._prefix) and each.kind != "image") or each.name in self._states
            ]
            await self._remove_all(found)
        except SandboxError as error:
            log.warning("the last look for leftover containers failed (%s); the next start looks again", error)
        self.engine.close()


def starts_that_suit() -> int:
    """Containers to start at once: more only makes the engine slower, and must leave threads for the rest."""
    return max(4, min(THREADS - 4, 2 * (os.cpu_count() or 1)))
