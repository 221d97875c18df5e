"""Starting and ending: deadlines, dead drivers, leftovers, errors of a start. Nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import BackendUnavailable, ImageMissing, SandboxDead, SandboxSpec, make_backend
from envs.sandbox.channel_text import Helpers, channel_script, remember
from envs.sandbox.embedded import EmbeddedBackend
from envs.sandbox.owner import owner_alive, owner_id
from envs.sandbox.seccomp import docker_profile
from tests.envs.sandbox_support import KINDS, make, spec, wait_for
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import asyncio, sys
from tests.envs.sandbox_support import make, spec
async def main():
    backend = make(sys.argv[1], sys.argv[2])
    boxes = await asyncio.gather(*(backend.start(spec()) for _ in range(4)))
    for number, box in enumerate(boxes):
        await box.exec(f"setsid sh -c 'trap \\"\\" TERM HUP; while :; do sleep 3{sys.argv[3]}; done' & ")
    running = [asyncio.create_task(box.exec(f"sleep 3{sys.argv[3]}", timeout_s=500)) for box in boxes[:2]]
    # and one that is just starting
    storm = asyncio.create_task(backend.start(spec()))
    await asyncio.sleep(0.05)
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def with_words(*words: str) -> list[int]:
    """Processes of this machine, zombies aside, whose command line has all the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(int(entry.name))
    return found


def containers(run_id: str) -> list[dict[str, Any]]:
    import docker

    client = docker.from_env().api
    try:
        return client.containers(all=True, filters={"label": f"sao.run={run_id}"})
    finally:
        client.close()


def leftovers(kind: str, run_id: str, pid: int, number: int) -> list[Any]:
    found: list[Any] = list(with_words("sleep", f"3{number}"))
    if kind == "docker":
        return found + containers(run_id)
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/sao/{pid}-*")]
    return found + [str(path) for path in Path("/tmp").glob(f"sao-sandbox-{pid}-*")] + groups


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_driver_leaves_nothing(kind: str) -> None:
    number = 100_000 + time.time_ns() % 899_999
    run_id = f"killed-{number}"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, kind, run_id, str(number)], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"up\n"
        assert len(with_words("sleep", f"3{number}")) >= 6
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        # processes end by themselves
        assert wait_for(lambda: not with_words("sleep", f"3{number}"))
    finally:
        driver.kill()
        driver.wait()

    async def reap() -> None:
        backend = make(kind, "other")
        await backend.reap()
        await backend.close()

    # a container that was being created when its driver died may appear a moment later: the start after next has it
    assert wait_for(lambda: asyncio.run(reap()) is None and not leftovers(kind, run_id, driver.pid, number)), leftovers(
        kind, run_id, driver.pid, number
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_deadline_ends_it_from_inside(kind: str) -> None:
    async def main() -> None:
        backend = make(kind, "deadline")
        box = await backend.start(spec(deadline_s=2.0))
        await box.exec("pkill sleep; setsid sleep 222 & killall sleep 2>/dev/null; true")
        started = time.monotonic()
        with pytest.raises(SandboxDead, match="deadline"):
            await box.exec("sleep 60", timeout_s=20)
        assert time.monotonic() - started < 10
        if kind == "docker":
            assert await asyncio.to_thread(wait_for, lambda: not containers("deadline"))
        await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_closing_the_backend_ends_all(kind: str) -> None:
    number = 100_000 + time.time_ns() % 899_999

    async def main() -> None:
        backend = make(kind, f"close-{number}")
        boxes = [await backend.start(spec()) for _ in range(2)]
        waiting = asyncio.create_task(boxes[0].exec(f"sleep 3{number}"))
        unfinished = asyncio.create_task(backend.start(spec()))
        await asyncio.sleep(0.1)
        unfinished.cancel()
        await backend.close()
        with pytest.raises(SandboxDead):
            await waiting
        await asyncio.gather(unfinished, return_exceptions=True)

    asyncio.run(main())
    assert wait_for(lambda: not leftovers(kind, f"close-{number}", os.getpid(), number))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancellation_is_never_swallowed(kind: str) -> None:
    """Also one that comes together with an answer; asyncio.wait_for swallows that before Python 3.12, and a time limit
    around the command then never takes hold."""

    async def main() -> None:
        backend = make(kind, "cancel")
        box = await backend.start(spec())

        async def work() -> None:
            while True:
                await box.exec("true")

        draw = random.Random(1)
        for _ in range(100):
            working = asyncio.create_task(work())
            await asyncio.sleep(draw.uniform(0, 0.02))
            working.cancel()
            done, _ = await asyncio.wait([working], timeout=PATIENCE_S)
            assert done, "it went on working"
            assert working.cancelled()
        assert (await box.exec("echo hi")).output == b"hi\n"
        await backend.close()

    asyncio.run(main())


def test_owner() -> None:
    me = owner_id()
    assert owner_alive(me) is True
    pid, start, place = me.split("-")
    assert owner_alive(f"{pid}-{int(start) - 1}-{place}") is False  # the number reused by another process
    assert owner_alive(f"999999999-1-{place}") is False
    assert owner_alive(f"{pid}-{start}-elsewhere") is None
    assert owner_alive("nonsense") is None


@pytest.mark.docker
def test_docker_reaps_what_dead_owners_left() -> None:
    import docker

    client = docker.from_env().api
    pid, _, place = owner_id().split("-")
    run_id = f"reap-{time.time_ns()}"

    def left(owner: str, deadline: float) -> str:
        labels = {"sao.run": run_id, "sao.owner": owner, "sao.deadline": str(int(deadline))}
        made = client.create_container("sao-base:latest", ["sleep", "100"], labels=labels)["Id"]
        client.start(made)
        return made

    later = time.time() + 3600
    living = left(owner_id(), later)
    elsewhere = left(f"1-1-{'0' * 16}.1", later)
    dead = left(f"{pid}-1-{place}", later)
    late = left(f"1-1-{'0' * 16}.1", time.time() - 3600)
    volume = client.create_volume(labels={"sao.owner": f"{pid}-1-{place}"})["Name"]

    async def reap() -> list[str]:
        backend = make("docker", "other")
        try:
            return await backend.reap()
        finally:
            await backend.close()

    try:
        assert len(asyncio.run(reap())) >= 3
        assert {found["Id"] for found in containers(run_id)} == {living, elsewhere}
        assert volume not in [found["Name"] for found in client.volumes()["Volumes"] or []]
    finally:
        for name in (living, elsewhere, dead, late):
            with contextlib.suppress(docker.errors.NotFound):
                client.remove_container(name, force=True)
        client.close()


@pytest.mark.docker
def test_docker_settings() -> None:
    import docker

    async def main() -> None:
        backend = make("docker", "settings")
        async with await backend.start(spec(pids=33, cpus=0.5, labels={"mine": "x"}, deadline_s=600)) as box:
            client = docker.from_env().api
            facts = client.inspect_container(box.sandbox_id)
            host = facts["HostConfig"]
            assert (host["NetworkMode"], host["Init"], host["AutoRemove"]) == ("none", False, True)
            assert host["Memory"] == host["MemorySwap"] == 1 << 30
            assert (host["PidsLimit"], host["NanoCpus"], host["CapDrop"]) == (33, 500_000_000, ["ALL"])
            assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={docker_profile()}"]
            limits = {each["Name"]: each["Hard"] for each in host["Ulimits"]}
            assert limits == {"nofile": 1024, "fsize": 2 << 30, "core": 0, "sigpending": 8192, "msgqueue": 400_000}
            assert facts["Config"]["NetworkDisabled"]
            # Loopback alone, and it is of use: the engine, which has no part in it, would have written its name.
            devices = await box.exec("tail -n +3 /proc/net/dev | cut -d: -f1; cat /etc/resolv.conf 2>/dev/null; true")
            assert devices.text.split() == ["lo"]
            server = "import socket; s = socket.create_server(('localhost', 0)); c = socket.create_connection"
            talk = f"{server}(s.getsockname()); print(socket.gethostbyname(socket.gethostname()))"
            assert (await box.exec(f'python3 -c "{talk}"')).output == b"127.0.0.1\n"
            assert host["LogConfig"]["Type"] == "none"
            assert facts["Config"]["StdinOnce"]
            assert facts["Mounts"] == []
            labels = facts["Config"]["Labels"]
            assert labels["sao.owner"] == owner_id()
            assert labels["sao.run"] == "settings"
            assert labels["mine"] == "x"
            assert 500 < int(labels["sao.deadline"]) - time.time() <= 600
            client.close()
        await backend.close()

    asyncio.run(main())


@pytest.mark.docker
def test_docker_missing_image() -> None:
    async def main() -> None:
        backend = make("docker")
        with pytest.raises(ImageMissing, match="docker pull no/such-image:1"):
            await backend.start(SandboxSpec(image="no/such-image:1"))
        await backend.close()

    asyncio.run(main())


@pytest.mark.docker
def test_docker_image_without_a_shell() -> None:
    import docker

    from envs.sandbox import StartFailed

    client = docker.from_env().api
    client.import_image_from_data(b"\0" * 10240, repository="sao-test-empty", tag="latest")

    async def main() -> None:
        backend = make("docker", "no-shell")
        with pytest.raises(StartFailed, match="/bin/sh"):
            await backend.start(SandboxSpec(image="sao-test-empty:latest"))
        await backend.close()

    try:
        asyncio.run(main())
        assert containers("no-shell") == []
    finally:
        client.remove_image("sao-test-empty:latest")
        client.close()


def test_no_engine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(BackendUnavailable, match=r"no Docker engine answers at unix:///nowhere.*--sandbox embedded"):
        make_backend("docker", "x")
    try:
        with caplog.at_level(logging.WARNING):
            backend = make_backend("auto", "x")
    except BackendUnavailable as error:
        pytest.skip(f"EMBEDDED TEST NOT RUN: {error}")
    assert backend.name == "embedded"
    assert "EMBEDDED SANDBOX" in caplog.text
    with pytest.raises(ValueError, match="choose one of auto, docker, embedded"):
        make_backend("podman", "x")


def test_no_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from envs.sandbox import namespaces

    namespaces._fault.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        with pytest.raises(BackendUnavailable, match=r"bwrap is not installed.*apt-get install bubblewrap"):
            namespaces.find_launcher()
    finally:
        namespaces._fault.cache_clear()


@pytest.mark.parametrize("kind", ["embedded", "unshare"])
def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing(kind: str) -> None:
    async def main() -> None:
        backend = make(kind, "cancelled")
        starting = []
        for moment in range(12):
            starting.append(asyncio.create_task(backend.start(spec())))
            await asyncio.sleep(0.003 * moment)
            starting[-1].cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        started = time.monotonic()
        await backend.close()
        assert time.monotonic() - started < 15  # one that nobody ends would be waited for

    asyncio.run(main())
    assert wait_for(lambda: not leftovers(kind, "cancelled", os.getpid(), 10**9))


def test_the_spec_survives_json() -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(SandboxSpec())))["limits"]["pids"] == 256


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not on this machine")
@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("helper", [None, False, True])
def test_a_driver_that_dies_while_the_sandbox_starts_leaves_nothing(shell: str, helper: bool | None) -> None:
    """Wherever the text breaks off, and when nobody hears the first answer: it ends at once, lease and all."""
    deadline = 1_000_000 + time.time_ns() % 8_000_000
    image = f"the driver dies, helper {helper}"
    if helper is not None:
        remember(image, helper)
    what = spec(deadline_s=float(deadline), workdir="/tmp/work")
    text = channel_script(what, "n0nce", "", image=image, helpers=Helpers.WHERE_PRESENT)
    ends = [at + 1 for at in range(len(text)) if text[at : at + 1] == b"\n"]
    cuts = [*ends[:-12:16], *ends[-12:]]
    # A private process table: the text kills everything it sees when its driver is gone. No --die-with-parent: the
    # driver may die before bubblewrap asks for that.
    bare = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    running = []
    for at in cuts:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(text[:at])
            running.append(subprocess.Popen([*bare, shell], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL))
    for process in running:
        process.wait(timeout=PATIENCE_S)
    # The lease sleeps until the deadline, a little less than `deadline` seconds.
    assert wait_for(lambda: not any(with_words("sleep", str(deadline - late)) for late in range(3)))


def test_the_next_start_ends_a_process_that_a_dying_start_left_waiting(tmp_path: Path) -> None:
    """bubblewrap's init can be left waiting for a parent that died; it is known by its standard error's file."""
    dead = subprocess.Popen(["sleep", "0"])
    owner = owner_id().replace(str(os.getpid()), str(dead.pid), 1)
    dead.wait()
    left, mine = tmp_path / f"sao-sandbox-{owner}-abc" / "4", tmp_path / f"sao-sandbox-{owner_id()}-abc" / "4"
    waiting = []
    for folder in (left, mine):
        folder.mkdir(parents=True)
        messages = os.memfd_create(folder.parent.name)
        waiting.append(subprocess.Popen(["sleep", "300"], stderr=messages))
        os.close(messages)
    try:
        removed = asyncio.run(EmbeddedBackend("gc", temp=tmp_path).reap())
        assert waiting[0].wait(5) == -signal.SIGKILL
        assert waiting[1].poll() is None, "a living owner's process was touched"
        assert (left.parent.exists(), mine.parent.exists()) == (False, True)
        assert f"process {waiting[0].pid}" in removed
    finally:
        for process in waiting:
            process.kill()
            process.wait()
