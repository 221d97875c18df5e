"""The Docker backend: one container a sandbox, one attached stream as its channel.

Promises: as the contract. Containers have init, no network, no capabilities, no new privileges, no swap, no logs on
disk and remove themselves when they end; standard input is open once, so an end of the driver closes it and the channel
ends the container; the channel's lease ends it at the deadline even when the engine has lost the driver. Labels
name run, owner and deadline; `reap` removes what a dead owner or a passed deadline left (a container that was created
and never started is the one case that does not end by itself). Anonymous volumes, should an image declare any, go with
their container.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import time
from typing import Any

from envs.sandbox.channel import channel_script
from envs.sandbox.channelled import BASE_ENV, ChannelledSandbox
from envs.sandbox.contract import (
    OutOfMemory,
    Sandbox,
    SandboxBackend,
    SandboxDead,
    SandboxError,
    SandboxSpec,
    StartFailed,
)
from envs.sandbox.docker_engine import Engine, typed
from envs.sandbox.owner import owner_alive, owner_id
from envs.sandbox.stream import SandboxStream

log = logging.getLogger(__name__)
READY_S = 60.0
GRACE_S = 60.0
"""How long after its deadline a container is left to end by itself."""
RUN, OWNER, DEADLINE = "sao.run", "sao.owner", "sao.deadline"


def container_settings(api: Any, spec: SandboxSpec, labels: dict[str, str]) -> dict[str, Any]:
    """Arguments of the create call: everything a sandbox may and may not do."""
    from docker.types import LogConfig, Ulimit

    limits = spec.limits
    host = api.create_host_config(
        init=True,
        auto_remove=True,
        network_mode="none",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        mem_swappiness=None,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        ulimits=[
            Ulimit(name="nofile", soft=limits.nofile, hard=limits.nofile),
            Ulimit(name="fsize", soft=limits.disk_bytes, hard=limits.disk_bytes),
            Ulimit(name="core", soft=0, hard=0),
        ],
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        ipc_mode="private",
        log_config=LogConfig(type=LogConfig.types.NONE) if hasattr(LogConfig.types, "NONE") else {"Type": "none"},
    )
    return {
        "image": spec.image,
        "entrypoint": ["/bin/sh"],
        "command": [],
        "user": "0:0",
        "hostname": "sandbox",
        "stdin_open": True,
        "tty": False,
        "working_dir": "/",
        "environment": {**BASE_ENV, **spec.env},
        "labels": labels,
        "host_config": host,
        "healthcheck": {"test": ["NONE"]},
    }


class DockerSandbox(ChannelledSandbox):
    def __init__(self, backend: DockerBackend, name: str, spec: SandboxSpec) -> None:
        super().__init__(name, spec)
        self._backend = backend
        self._stream = SandboxStream(self.channel, multiplexed=True)
        self._started = time.time()
        self._closing: asyncio.Task[None] | None = None
        self._unfinished: asyncio.Future[socket.socket] | None = None
        self.container_id = ""

    def _write(self, data: bytes) -> None:
        self._stream.write(data)

    async def _start(self) -> None:
        engine = self._backend.engine
        work = asyncio.ensure_future(engine.call(self._create))
        try:
            sock = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The call goes on in its thread; what it makes must not outlive us.
            self._unfinished = work
            raise
        await self._stream.connect(sock)
        self._write(channel_script(self.spec, self.channel.nonce))
        await self.channel.ready(READY_S)

    def _create(self, api: Any) -> socket.socket:
        labels = {
            **self.spec.labels,
            RUN: self._backend.run_id,
            OWNER: owner_id(),
            DEADLINE: str(int(time.time() + self.spec.deadline_s)),
        }

        def once() -> socket.socket:
            settings = container_settings(api, self.spec, labels)
            self.container_id = api.create_container(name=self.sandbox_id, **settings)["Id"]
            attached = api.attach_socket(self.container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            # A duplicate that asyncio owns; docker's own object closes with its response.
            plain = getattr(attached, "_sock", attached)
            if not isinstance(plain, socket.socket) or hasattr(plain, "cipher"):
                raise StartFailed("the engine's address must be unix:// or tcp:// without TLS")
            sock = plain.dup()
            attached.close()
            try:
                api.start(self.container_id)
            except BaseException:
                sock.close()
                raise
            return sock

        return self._backend.engine.retrying(once, lambda: remove_container(api, self.sandbox_id))

    async def _diagnose(self) -> SandboxError:
        facts: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # an engine that is gone too leaves the plain answer
            facts = await self._backend.engine.call(self._last_events)
        if facts.get("oom"):
            return OutOfMemory(
                f"sandbox {self.sandbox_id} ended when its memory limit of {self.spec.limits.memory_bytes >> 20} MiB "
                "was reached; give it more memory or start a fresh one"
            )
        said = self._stream.said.decode("utf-8", "replace").strip()
        code = facts.get("code")
        return SandboxDead(
            f"sandbox {self.sandbox_id} is gone (closed, past its deadline, its channel killed from inside, or the "
            "engine restarted)"
            + (f"; exit code {code}" if code else "")
            + (f"; it said: {said}" if said else "")
            + "; start a fresh one"
        )

    def _last_events(self, api: Any) -> dict[str, Any]:
        """The engine keeps recent events also for containers that have removed themselves."""
        facts: dict[str, Any] = {}
        for _ in range(10):
            facts.clear()
            events = api.events(
                since=f"{self._started:.9f}", until=f"{time.time():.9f}", filters={"container": self.container_id},
                decode=True,
            )  # fmt: skip
            oom_at = None
            for event in events:
                if event.get("Action") == "oom":
                    oom_at = event["timeNano"]
                elif event.get("Action") == "die":
                    facts["code"] = event["Actor"]["Attributes"].get("exitCode")
                    facts["died"] = event["timeNano"]
            if "died" in facts:
                facts["oom"] = oom_at is not None and abs(facts["died"] - oom_at) < 3e9 and facts["code"] == "137"
                if facts["oom"] or facts["code"] != "137" or time.time() - facts["died"] / 1e9 > 0.5:
                    break
            time.sleep(0.1)
        return facts

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._unfinished is not None:
            with contextlib.suppress(Exception):  # a start that failed has removed what it made
                (await self._unfinished).close()
        self._stream.close()
        self.channel.lost()
        try:
            await self._backend.engine.call(lambda api: remove_container(api, self.sandbox_id))
        except Exception as error:  # the channel has ended it; the sweep and the next start look again
            log.warning("could not remove container %s now (%s); it ends by itself", self.sandbox_id, error)
        self._backend.forget(self)


def remove_container(api: Any, name: str) -> bool:
    """Kill and remove, with anonymous volumes; returns when it is gone. False when there was none."""
    import docker

    try:
        api.remove_container(name, force=True, v=True)
        return True
    except docker.errors.NotFound:
        return False
    except docker.errors.APIError as error:
        if error.response is None or error.response.status_code != 409:
            raise
    for _ in range(200):  # it is removing itself already
        try:
            api.inspect_container(name)
        except docker.errors.NotFound:
            return True
        time.sleep(0.05)
    api.remove_container(name, force=True, v=True)
    return True


class DockerBackend(SandboxBackend):
    name = "docker"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.engine = Engine()
        self._live: set[DockerSandbox] = set()
        self._slug = re.sub(r"[^a-zA-Z0-9_.-]+", "-", run_id).strip("-.")[:40] or "run"

    async def check(self) -> None:
        await asyncio.to_thread(self.engine.ping)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = DockerSandbox(self, f"sao-{self._slug}-{os.urandom(5).hex()}", spec)
        self._live.add(sandbox)
        try:
            await sandbox._start()
        except BaseException as error:
            said = sandbox._stream.said.decode("utf-8", "replace").strip()
            await sandbox.close()
            if isinstance(error, SandboxDead | OutOfMemory):
                raise StartFailed(
                    f"the container for image {spec.image} ended while starting: {said or error}"
                ) from error
            if isinstance(error, Exception):
                raise typed(error, spec.image) from error
            raise
        return sandbox

    def forget(self, sandbox: DockerSandbox) -> None:
        self._live.discard(sandbox)

    async def reap(self) -> list[str]:
        return await self.engine.call(self._reap)

    def _reap(self, api: Any) -> list[str]:
        removed = []
        for container in api.containers(all=True, filters={"label": OWNER}):
            if _abandoned(container["Labels"]) and remove_container(api, container["Id"]):
                removed.append(
                    f"container {container['Names'][0].lstrip('/') if container['Names'] else container['Id']}"
                )
        for volume in api.volumes(filters={"label": OWNER}).get("Volumes") or []:
            if _abandoned(volume.get("Labels") or {}):
                api.remove_volume(volume["Name"], force=True)
                removed.append(f"volume {volume['Name']}")
        return removed

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))

        def sweep(api: Any) -> None:  # what a cancelled or failed start may have left
            mine = {"label": [f"{RUN}={self.run_id}", f"{OWNER}={owner_id()}"]}
            for container in api.containers(all=True, filters=mine):
                remove_container(api, container["Id"])

        try:
            await self.engine.call(sweep)
        except Exception as error:
            log.warning("the last look for leftover containers failed (%s); the next start looks again", error)
        self.engine.close()


def _abandoned(labels: dict[str, str]) -> bool:
    if owner_alive(labels.get(OWNER, "")) is False:
        return True
    deadline = labels.get(DEADLINE, "")
    return deadline.isdigit() and time.time() > int(deadline) + GRACE_S
