"""A sandbox goes in bounded time, whatever its processes do: also when its init gets no turn beside busy ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from envs.sandbox import Sandbox
from envs.sandbox.contract import SandboxBackend
from envs.sandbox.docker_backend import DockerBackend, DockerSandbox
from envs.sandbox.docker_survey import remove_container
from envs.sandbox.embedded import EmbeddedSandbox, _children, _kill_stuck
from envs.sandbox.ending import Table
from tests.envs.sandbox_support import make, spec

BUSY = "i=0; while [ $i -lt 40 ]; do (trap '' TERM; while :; do :; done) & i=$((i+1)); done >/dev/null 2>&1"
BOUND_S = 45.0
"""A second on a quiet machine. It stood for two minutes."""
KINDS = ["embedded", "unshare", "shell", pytest.param("docker", marks=pytest.mark.docker)]


async def init_of(box: Sandbox, backend: SandboxBackend) -> int:
    if isinstance(box, DockerSandbox) and isinstance(backend, DockerBackend):
        state = await backend.engine.call(lambda api: api.inspect_container(box.container_id)["State"])
        return int(state["Pid"])
    assert isinstance(box, EmbeddedSandbox)
    assert box._process is not None
    return _children(box._process.pid)[0]


async def starve(box: Sandbox, backend: SandboxBackend) -> Table:
    """Its init at idle priority beside forty loops; its process table. No command can do the first."""
    await box.exec(BUSY)
    init = await init_of(box, backend)
    table = Table.of(init)
    assert table is not None
    try:
        os.sched_setscheduler(init, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        pytest.skip("not this user's processes")
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_a_starved_sandbox_is_closed(kind: str) -> None:
    async def main() -> None:
        backend = make(kind, f"starved-{time.time_ns()}")
        box = await backend.start(spec(deadline_s=300))
        table = await starve(box, backend)
        began = time.monotonic()
        await box.close()
        with table:
            assert table.members() == []
        assert time.monotonic() - began < BOUND_S
        assert [found for found in await backend.survey() if found.run == backend.run_id] == []
        await backend.close()

    asyncio.run(main())


@pytest.mark.docker
@pytest.mark.parametrize("where", ["this machine", "another"])
def test_a_starved_container_is_removed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "another":  # its processes cannot be seen from here
        monkeypatch.setattr("envs.sandbox.docker_survey._is_of", lambda pid, container_id: False)

    async def main() -> None:
        backend = DockerBackend(f"starved-{time.time_ns()}")
        box = await backend.start(spec(deadline_s=300))
        table = await starve(box, backend)
        began = time.monotonic()
        assert await backend.engine.call(lambda api: remove_container(api, box.sandbox_id))
        with table:
            assert table.members() == []
        assert time.monotonic() - began < BOUND_S
        await backend.close()

    asyncio.run(main())


def test_what_a_dead_driver_left_starving_is_collected() -> None:
    async def main() -> None:
        backend = make("unshare", "left")
        box = await backend.start(spec(deadline_s=300))
        assert isinstance(box, EmbeddedSandbox)
        table = await starve(box, backend)
        assert await asyncio.to_thread(_kill_stuck, box.folder.parent)
        with table:
            assert table.members() == []
        await backend.close()

    asyncio.run(main())


@contextlib.contextmanager
def bomb() -> Iterator[Table]:
    """The table of a fork bomb without any limit of processes but that its parts die soon."""
    text = "while :; do (sleep 0.2 &) ; (sleep 0.2 &) ; done"
    process = subprocess.Popen(["unshare", "-Urpf", "--mount-proc", "sh", "-c", text], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not _children(process.pid) or (table := Table.of(_children(process.pid)[0])) is None:
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip("no namespaces here")
            time.sleep(0.02)
        time.sleep(0.5)
        with table:
            yield table
    finally:
        process.kill()
        process.wait()


def test_what_forks_while_it_is_killed_ends() -> None:
    with bomb() as table:
        assert len(table.members()) > 1
        assert table.end()
        assert table.members() == []


def test_this_machines_own_table_is_none() -> None:
    assert Table.of(os.getpid()) is None
    assert Table.of(1 << 22) is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert Table.of(process.pid) is None
        process.kill()
