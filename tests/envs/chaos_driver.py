"""A driver with 16 sandboxes at work on a Docker engine, which SIGKILLs itself at a named moment (or is killed).

    python -m tests.envs.chaos_driver ADDRESS MOMENT COUNT

The moment is hit when its COUNTth occurrence comes: by then the other sandboxes are in every phase. "none": never.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import docker

from envs.sandbox import SandboxSpec
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine
from envs.sandbox.pool import PoolSettings, SandboxPool
from envs.sandbox.stream import SandboxStream
from tests.envs.private_engine import IMAGE, VOLUME_IMAGE

CALLS = ("create_container", "attach_socket", "start", "wait", "commit", "remove_image", "remove_container")
MOMENTS = (
    *(f"{when} {call}" for call in CALLS for when in ("before", "after")),
    *("half of the channel's text", "before the first answer", "sandbox started", "command running"),
    *("half of a file", "pool filling", "closing", "reaping"),
)
AT_ONCE = 16
WORK_S = 4.0
_chosen, _left = "", 0


def moment(name: str) -> None:
    global _left
    if name == _chosen:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def watch_calls() -> None:
    for name in CALLS:
        setattr(docker.APIClient, name, watched(name, getattr(docker.APIClient, name)))
    write = SandboxStream.write

    def writing(self: SandboxStream, data: bytes) -> None:
        if len(data) > 2000:  # the channel's text, or a file
            what = "half of a file" if self._channel.up else "half of the channel's text"
            if what == _chosen:
                write(self, data[: len(data) // 2])
                moment(what)
                data = data[len(data) // 2 :]
        write(self, data)

    SandboxStream.write = writing  # type: ignore[method-assign]


def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def work(*args: Any, **named: Any) -> Any:
        moment(f"before {name}")
        result = call(*args, **named)
        moment(f"after {name}")
        if name == "start":
            moment("before the first answer")
        return result

    return work


async def worker(backend: SandboxBackend, pool: SandboxBackend, number: int) -> None:
    """Start, run, keep a state, fork, stop; over and over."""
    draw = random.Random(number)
    spec = SandboxSpec(image=VOLUME_IMAGE if number % 4 else IMAGE, deadline_s=300)
    while True:
        sandbox = await (pool if draw.random() < 0.5 else backend).start(spec)
        moment("sandbox started")
        async with sandbox:
            # A process that minds no signal, in a session of its own, and a command in the foreground.
            await sandbox.exec("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done' &", timeout_s=60)
            await sandbox.put("f", bytes(200_000))
            asyncio.get_running_loop().call_later(0.05, moment, "command running")
            await sandbox.exec("sleep 0.2; echo hi", timeout_s=60)
            if number % 4 == 0:
                await fork(backend, sandbox, spec)


async def fork(backend: SandboxBackend, sandbox: Sandbox, spec: SandboxSpec) -> None:
    state = await backend.keep_state(sandbox)
    async with await backend.start(SandboxSpec(image=spec.image, state=state, deadline_s=300)) as child:
        await child.exec("test -f f", timeout_s=60)
    await backend.drop_state(state)


async def main() -> None:
    address = sys.argv[1]
    watch_calls()
    backend = DockerBackend("chaos", Engine(address))
    pool = SandboxPool(DockerBackend("chaos", Engine(address)), PoolSettings(ready=4))
    moment("reaping")
    removed = await backend.reap()
    print(f"reaped {len(removed)}", flush=True)
    workers = [asyncio.create_task(worker(backend, pool, number)) for number in range(AT_ONCE)]
    await asyncio.sleep(0.2)
    moment("pool filling")
    await asyncio.wait(workers, timeout=WORK_S, return_when=asyncio.FIRST_EXCEPTION)
    for task in workers:
        task.cancel()
    done = await asyncio.gather(*workers, return_exceptions=True)
    faults = [each for each in done if not isinstance(each, asyncio.CancelledError)]
    closing = asyncio.gather(pool.close(), backend.close())
    await asyncio.sleep(0.05)
    moment("closing")
    await closing
    print(f"faults {faults}" if faults else "ended", flush=True)


if __name__ == "__main__":
    _chosen, _left = sys.argv[2], int(sys.argv[3])
    asyncio.run(main())
