"""Processes of the vLLM engine, with a small script in vLLM's place: started, restarted, given up, all ended.

The script stands for the part that is tested elsewhere (test_vllm_real.py): what is real here are the processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.engines.vllm import guard
from agent.engines.vllm.faults import ServerStartFailed
from agent.engines.vllm.guard import descendants
from agent.engines.vllm.launch import LaunchSettings, command, environment
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
from tests.agent.processes import alive, gone

SERVER = """
import http.server, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(__file__).parent
if (here / "refuses").exists():
    print("ValueError: no such model shape"); sys.exit(7)
# An engine as vLLM's: a session of its own, deaf to SIGTERM.
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
                 start_new_session=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while (here / "hangs").exists():
            time.sleep(0.05)
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
QUICK = SuperviseSettings(start_timeout_s=60.0, hang_s=1.0, restarts=3, max_pause_s=0.1)


@pytest.fixture
def launch(tmp_path: Path) -> LaunchSettings:
    """An environment whose python runs the script above whatever it is asked to run."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py "$@"\n')
    python.chmod(0o755)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 4096}')
    return LaunchSettings(model=tmp_path / "model", environment=tmp_path / "env")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test()

    asyncio.run(limited())


async def tree_of(supervisor: Supervisor, at_least: int = 3) -> list[int]:
    """Guard, server and engine."""
    process = supervisor.servers[0].process
    assert process is not None
    for _ in range(500):
        if len(found := [process.pid, *descendants(process.pid)]) >= at_least:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"only {found}")


def test_a_server_that_dies_or_hangs_is_started_again_and_its_engine_goes_with_it(
    launch: LaunchSettings, tmp_path: Path
) -> None:
    async def test() -> None:
        said: list[str] = []
        async with Supervisor(launch, tmp_path / "logs", settings=QUICK, say=said.append) as supervisor:
            await supervisor.wait_ready()
            first = await tree_of(supervisor)
            url = supervisor.urls[0]
            os.kill(first[1], signal.SIGKILL)
            while supervisor.servers[0].starts < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert gone(first)
            await supervisor.wait_ready()
            second = await tree_of(supervisor)
            (tmp_path / "hangs").touch()
            while supervisor.servers[0].starts < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            (tmp_path / "hangs").unlink()
            assert gone(second)
            await supervisor.wait_ready()
            assert supervisor.urls == [url]
            third = await tree_of(supervisor)
        assert gone(third)
        assert any("exit code" in line for line in said)
        assert any("unanswered" in line for line in said)

    run(test)


def test_a_server_that_cannot_start_is_an_error_with_its_last_words(launch: LaunchSettings, tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "refuses").touch()
        async with Supervisor(launch, tmp_path / "logs", settings=QUICK) as supervisor:
            with pytest.raises(ServerStartFailed, match="no such model shape"):
                await supervisor.wait_ready()

    run(test)


def test_a_server_that_dies_too_often_is_given_up(launch: LaunchSettings, tmp_path: Path) -> None:
    async def test() -> None:
        given_up: list[ServerStartFailed] = []
        async with Supervisor(launch, tmp_path / "logs", settings=QUICK, on_failed=given_up.append) as supervisor:
            await supervisor.wait_ready()
            (tmp_path / "refuses").touch()
            os.kill((await tree_of(supervisor))[1], signal.SIGKILL)
            with pytest.raises(ServerStartFailed, match="started 4 times"):
                await supervisor.wait_failed()
        assert len(given_up) == 1

    run(test)


def test_no_environment_and_a_taken_port_are_said_before_anything_starts(
    launch: LaunchSettings, tmp_path: Path
) -> None:
    with pytest.raises(ServerStartFailed, match=r"scripts/vllm-env\.sh"):
        Supervisor(LaunchSettings(model=launch.model, environment=tmp_path / "none"), tmp_path)

    async def test() -> None:
        async with Supervisor(launch, tmp_path / "logs", settings=QUICK) as supervisor:
            await supervisor.wait_ready()
            with pytest.raises(ServerStartFailed, match="in use by another process"):
                async with Supervisor(launch, tmp_path / "logs", port=supervisor.servers[0].port):
                    pass

    run(test)


def supervising(launch: LaunchSettings, tmp_path: Path, hang_s: float = 300.0) -> subprocess.Popen[bytes]:
    """A process of its own with a supervisor whose server is ready."""
    program = f"""
import asyncio
from pathlib import Path
from agent.engines.vllm.launch import LaunchSettings
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
async def main():
    launch = LaunchSettings(model=Path({str(launch.model)!r}), environment=Path({str(launch.environment)!r}))
    settings = SuperviseSettings(hang_s={hang_s})
    async with Supervisor(launch, Path({str(tmp_path)!r}) / "logs", settings=settings) as supervisor:
        await supervisor.wait_ready()
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    return parent


def test_killing_the_supervising_process_ends_the_tree(launch: LaunchSettings, tmp_path: Path) -> None:
    parent = supervising(launch, tmp_path)
    found = descendants(parent.pid)
    assert len(found) >= 3
    parent.kill()
    parent.wait()
    assert gone(found)


def test_a_supervisor_that_was_itself_stopped_does_not_take_its_server_for_hung(
    launch: LaunchSettings, tmp_path: Path
) -> None:
    parent = supervising(launch, tmp_path, hang_s=3.0)
    try:
        found = descendants(parent.pid)
        time.sleep(1.0)
        parent.send_signal(signal.SIGSTOP)
        time.sleep(8.0)
        parent.send_signal(signal.SIGCONT)
        time.sleep(8.0)
        assert all(alive(pid) for pid in found)
    finally:
        parent.kill()
        parent.wait()
    assert gone(found)


@pytest.mark.parametrize("how", ["input", "word", "SIGTERM", "by_itself"])
def test_the_guard_leaves_nothing(tmp_path: Path, how: str) -> None:
    """A child in another session that ignores SIGTERM, and an orphan of it. The grace is for who asks: not when the
    parent is gone."""
    grace = "600" if how == "input" else "0.2"
    deaf = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 600' &) ; setsid sleep 600 & echo up; "
    process = subprocess.Popen(
        [sys.executable, "-I", guard.__file__, grace, "sh", "-c", deaf + ("exit 5" if how == "by_itself" else "wait")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"up\n"
    time.sleep(0.1 if how != "by_itself" else 0.0)
    found = descendants(process.pid)
    if how == "input":
        process.stdin.close()
    elif how == "word":
        process.stdin.write(b"stop\n")
        process.stdin.flush()
    elif how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    code = process.wait(30)
    assert gone(found)
    if how == "by_itself":
        assert code == 5
    else:
        assert len(found) >= 3


def test_command_and_environment(launch: LaunchSettings) -> None:
    words = command(launch, 8321)
    for flag, value in (("--host", "127.0.0.1"), ("--generation-config", "vllm"), ("--dtype", "float32")):
        assert words[words.index(flag) + 1] == value
    assert words[words.index("--max-num-batched-tokens") + 1] == "4096"  # a whole prompt: chunks kill a CPU engine
    variables = environment(launch, base={"PATH": "/bin", "PYTHONPATH": "/rooms", "PYTHONDONTWRITEBYTECODE": "1"})
    assert variables["PATH"] == "/bin"
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    inside = Path(variables["PYTHONPATH"])
    assert all(file.name.startswith("sao_vllm_") for file in inside.iterdir() if file.suffix == ".py")
