"""Starts on an engine that misbehaves: tried again with back-off, typed when it stays so, nothing left in any case."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import BackendUnavailable, SandboxDead, SandboxError, StartFailed
from envs.sandbox import docker_engine as engine_module
from envs.sandbox.contract import Sandbox
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine, connect, is_transient, typed
from envs.sandbox.docker_survey import survey
from tests.envs.engine_proxy import EngineProxy, engine_proxy
from tests.envs.sandbox_support import spec, wait_for

pytestmark = pytest.mark.docker


@pytest.fixture
def proxy() -> Iterator[EngineProxy]:
    with tempfile.TemporaryDirectory(prefix="sao-proxy-") as folder, engine_proxy(Path(folder)) as made:
        yield made


def left(run_id: str) -> list[str]:
    with connect() as engine:
        return [f"{found.kind} {found.name}" for found in survey(engine.api()) if found.run == run_id]


def start_through(proxy: EngineProxy, run_id: str, patience_s: float = 10.0) -> Any:
    """What a start came to: the first command's output, or the error."""

    async def main() -> Any:
        backend = DockerBackend(run_id, Engine(proxy.address, patience_s=patience_s))
        try:
            async with await backend.start(spec(deadline_s=120)) as box:
                return (await box.exec("echo hi")).output
        except SandboxError as error:
            return error
        finally:
            await backend.close()

    result = asyncio.run(main())
    assert wait_for(lambda: not left(run_id)), left(run_id)
    return result


@pytest.mark.parametrize("fault", ["drop before", "drop after", "500", "429"])
@pytest.mark.parametrize("call", ["containers/create", "/attach", "/start"])
def test_a_fault_that_passes_is_tried_again(proxy: EngineProxy, call: str, fault: str) -> None:
    proxy.faults = [(f"POST .*{call}", fault)]
    assert start_through(proxy, f"faults-{time.time_ns()}") == b"hi\n"
    assert not proxy.faults, "the fault was not met"


def test_several_faults_in_a_row(proxy: EngineProxy) -> None:
    proxy.faults = [
        ("POST .*create", "500"),
        ("POST .*start", "drop after"),
        ("DELETE", "500"),
        ("POST .*create", "429"),
    ]
    assert start_through(proxy, f"row-{time.time_ns()}") == b"hi\n"


def test_a_fault_that_stays_is_a_typed_error(proxy: EngineProxy) -> None:
    proxy.faults = [("POST .*start", "500")] * 50
    began = time.monotonic()
    error = start_through(proxy, f"stays-{time.time_ns()}")
    assert isinstance(error, StartFailed)
    assert "told to fail" in str(error)
    assert sum("/start" in line for line in proxy.seen) == engine_module.TRIES
    assert time.monotonic() - began > 1.0, "tries without a pause"


def test_an_engine_that_hangs_is_a_typed_error(proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "TIMEOUT_S", 0.5)
    proxy.faults = [("POST .*create", "hang")] * 50
    error = start_through(proxy, f"hangs-{time.time_ns()}")
    assert isinstance(error, StartFailed)
    assert "overloaded or stuck" in str(error)


def test_a_start_waits_for_an_engine_that_restarts(proxy: EngineProxy) -> None:
    proxy.deafen()
    back = threading.Timer(2.0, proxy.listen)
    back.start()
    try:
        assert start_through(proxy, f"waits-{time.time_ns()}", patience_s=30) == b"hi\n"
    finally:
        back.join()


def test_an_engine_that_stays_away_is_unavailable(proxy: EngineProxy) -> None:
    proxy.deafen()
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match=rf"no Docker engine answers at unix://{proxy.path}"):
        connect(proxy.address)
    assert time.monotonic() - began < 2, "only a start is patient"

    async def main() -> None:
        backend = DockerBackend("away", Engine(proxy.address, patience_s=1.0))
        with pytest.raises(BackendUnavailable, match=r"docker-engine\.sh start"):
            await backend.start(spec())
        with pytest.raises(BackendUnavailable):
            await backend.survey()
        await backend.close()

    asyncio.run(main())


def test_a_lost_engine_ends_what_runs_typed(proxy: EngineProxy) -> None:
    async def main() -> None:
        backend = DockerBackend(run_id, Engine(proxy.address, patience_s=20))
        box = await backend.start(spec(deadline_s=120))
        running = asyncio.create_task(box.exec("sleep 60", timeout_s=100))
        await asyncio.sleep(0.2)
        proxy.deafen()
        with pytest.raises(SandboxDead, match="engine restarted"):
            await running
        assert not box.alive
        await box.close()
        proxy.listen()
        async with await backend.start(spec(deadline_s=120)) as again:
            assert (await again.exec("echo hi")).output == b"hi\n"
        await backend.close()

    run_id = f"lost-{time.time_ns()}"
    asyncio.run(main())
    assert wait_for(lambda: not left(run_id)), left(run_id)


def test_a_start_that_is_given_up_while_it_is_tried_again_leaves_nothing(proxy: EngineProxy) -> None:
    proxy.faults = [("POST .*start", "500")] * 3

    async def main() -> None:
        backend = DockerBackend(run_id, Engine(proxy.address))
        start = asyncio.create_task(backend.start(spec()))
        await asyncio.sleep(0.4)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        await backend.close()

    run_id = f"given-up-{time.time_ns()}"
    asyncio.run(main())
    assert wait_for(lambda: not left(run_id)), left(run_id)


def test_a_container_that_ends_while_it_starts_is_started_again() -> None:
    async def main() -> None:
        backend = DockerBackend("ends")
        real, tries = backend.engine.insist, 0

        async def insist(work: Any, undo: Any) -> Any:
            nonlocal tries
            sock = await real(work, undo)
            tries += 1
            if tries == 1:
                await backend.engine.call(lambda api: api.kill(backend._prefix + "0"))
            return sock

        backend.engine.insist = insist  # type: ignore[method-assign]
        async with await backend.start(spec()) as box:
            assert (await box.exec("echo hi")).output == b"hi\n"
        assert tries == 2
        await backend.close()

    asyncio.run(main())


def test_a_storm_of_starts_is_paced() -> None:
    async def main() -> None:
        backend = DockerBackend("paced", starts_at_once=2)
        now, most, real = 0, 0, backend.engine.insist

        async def counted(work: Any, undo: Any) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                return await real(work, undo)
            finally:
                now -= 1

        backend.engine.insist = counted  # type: ignore[method-assign]
        boxes: list[Sandbox] = await asyncio.gather(*(backend.start(spec()) for _ in range(8)))
        assert most == 2
        await asyncio.gather(*(box.close() for box in boxes))
        await backend.close()

    asyncio.run(main())


def test_what_an_error_means() -> None:
    import docker
    import requests

    engine = Engine("unix:///nowhere")

    def api_error(status: int, text: str) -> Exception:
        response = requests.Response()
        response.status_code = status
        return docker.errors.APIError("x", response, explanation=text)

    for error, again in [
        (api_error(500, "OCI runtime create failed: context deadline exceeded"), True),
        (api_error(503, "busy"), True),
        (api_error(429, "slow down"), True),
        (api_error(409, 'Conflict. The container name "/a" is already in use'), True),
        (api_error(500, 'exec: "/bin/sh": stat /bin/sh: no such file or directory'), False),
        (api_error(500, "no space left on device"), False),
        (api_error(400, "invalid reference format"), False),
        (requests.exceptions.ReadTimeout("slow"), True),
        (requests.exceptions.ConnectionError("reset"), True),
        (ConnectionResetError(), True),
        (ValueError("a bug"), False),
    ]:
        assert is_transient(error) is again, error
    assert "disk is full" in str(typed(api_error(500, "no space left on device"), "i", engine))
    assert isinstance(typed(requests.exceptions.ConnectionError("reset"), "i", engine), BackendUnavailable)
    known = SandboxDead("x")
    assert typed(known, "i", engine) is known
    engine.close()
