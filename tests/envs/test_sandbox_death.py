"""Who ended a sandbox: its own commands (EndedInside) or something else (SandboxDead); what a grade makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from envs.environment import EnvironmentFault
from envs.sandbox import EndedInside, Sandbox, SandboxDead, SandboxSpec, StartFailed, channel_text
from envs.sandbox.channelled import ChannelledSandbox
from envs.sandbox.contract import SandboxBackend
from envs.sandbox.death import End
from envs.sandbox.docker_backend import DockerBackend, DockerSandbox
from envs.sandbox.embedded import EmbeddedBackend, EmbeddedSandbox, _children
from tests.envs.sandbox_support import make, spec
from tests.envs.swe_support import episode, shell, tiny_task

KILL = "for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || kill -9 ${p#/proc/} 2>/dev/null; done; sleep 2; true"
STOP = KILL.replace("-9", "-STOP")
SHELLS = ["shell", pytest.param("docker", marks=pytest.mark.docker)]
"""Backends whose channel is channel.sh, which commands can kill."""


@pytest.fixture
def without_perl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channel_text._known, SandboxSpec().image, False)


def fault_of(kind: str, work: Callable[[Sandbox, SandboxBackend], Awaitable[object]]) -> SandboxDead:
    """What `exec` raises after `work`, and after that."""

    async def end(box: Sandbox, backend: SandboxBackend) -> None:
        await work(box, backend)
        for _ in range(3):
            await box.exec("echo works", timeout_s=2)

    async def main() -> SandboxDead:
        backend = make(kind, f"death-{time.time_ns()}")
        try:
            async with await backend.start(spec(deadline_s=120)) as box:
                await box.exec("echo used")
                with pytest.raises(SandboxDead) as first:
                    await end(box, backend)
                with pytest.raises(SandboxDead) as second:
                    await box.exec("echo works")
                assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))
                return first.value
        finally:
            await backend.close()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("attack", [KILL, STOP], ids=["killed", "stopped"])
def test_commands_that_end_the_channel(
    kind: str, attack: str, monkeypatch: pytest.MonkeyPatch, without_perl: None
) -> None:
    monkeypatch.setattr("envs.sandbox.channel.ANSWER_S", 2.0)
    monkeypatch.setattr("envs.sandbox.channel.STOP_LIMIT_S", 3.0)

    async def work(box: Sandbox, backend: SandboxBackend) -> None:
        await box.exec(attack, timeout_s=3)

    fault = fault_of(kind, work)
    assert isinstance(fault, EndedInside), fault
    assert "what ran in it" in str(fault)


def test_a_silent_sandbox_is_no_commands_doing_where_no_fresh_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.sandbox.channel.ANSWER_S", 1.0)
    monkeypatch.setattr("envs.sandbox.channel.STOP_LIMIT_S", 2.0)

    async def work(box: Sandbox, backend: SandboxBackend) -> None:
        async def broken(spec: SandboxSpec) -> Sandbox:
            raise StartFailed("the machine is ill")

        monkeypatch.setattr(backend, "start", broken)
        await box.exec(STOP, timeout_s=2)

    assert type(fault_of("shell", work)) is SandboxDead


async def from_outside(box: Sandbox, backend: SandboxBackend, how: str) -> None:
    if isinstance(box, DockerSandbox) and isinstance(backend, DockerBackend):
        await backend.engine.call(lambda api: getattr(api, how)(box.container_id))
        return
    assert isinstance(box, EmbeddedSandbox)
    assert box._process is not None
    if how == "pause":
        os.kill(box._process.pid, signal.SIGSTOP)
    elif how == "kill":
        os.kill(box._process.pid, signal.SIGKILL)
    else:
        os.kill(_children(box._process.pid)[0], signal.SIGKILL)


@pytest.mark.parametrize("kind", ["embedded", "unshare", *SHELLS])
@pytest.mark.parametrize("how", ["kill", "remove_container"])
def test_what_others_kill_is_no_commands_doing(kind: str, how: str) -> None:
    async def work(box: Sandbox, backend: SandboxBackend) -> None:
        if kind == "docker" and how == "remove_container":
            assert isinstance(box, DockerSandbox)
            assert isinstance(backend, DockerBackend)
            await backend.engine.call(lambda api: api.remove_container(box.container_id, force=True))
        else:
            await from_outside(box, backend, how)
        await asyncio.sleep(0.2)

    assert type(fault_of(kind, work)) is SandboxDead


@pytest.mark.docker
def test_a_paused_container_is_no_commands_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.sandbox.channel.ANSWER_S", 1.0)

    async def work(box: Sandbox, backend: SandboxBackend) -> None:
        await from_outside(box, backend, "pause")
        await box.exec("echo paused", timeout_s=0.5)

    assert type(fault_of("docker", work)) is SandboxDead


@pytest.mark.parametrize("kind", ["embedded", *SHELLS])
def test_its_deadline_is_no_commands_doing(kind: str, without_perl: None) -> None:
    async def main() -> None:
        backend = make(kind)
        box = await backend.start(spec(deadline_s=2.0))
        with pytest.raises(SandboxDead) as fault:
            await box.exec("sleep 30", timeout_s=20)
        assert type(fault.value) is SandboxDead
        await backend.close()

    asyncio.run(main())


def test_a_frame_that_nobody_can_read_ends_the_channel_and_not_the_driver() -> None:
    async def main() -> None:
        backend = make("embedded")
        async with await backend.start(spec()) as box:
            assert isinstance(box, ChannelledSandbox)
            running = asyncio.create_task(box.exec("sleep 5", timeout_s=10))
            await asyncio.sleep(0.1)
            seq = box.channel._seq
            box.channel.feed(f"\x1e{box.channel.nonce} {seq} D what\n".encode())
            with pytest.raises(SandboxDead, match="cannot be read"):
                await running
        await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("code", [0, 137, 143, 255, None, -9])
def test_exit_codes_that_prove_nothing(code: int | None) -> None:
    assert not End(code=code).by_itself


# -- what it means to a grade -----------------------------------------------------------------------------------------


def fragile() -> SandboxBackend:
    """Its sandboxes can be killed from inside."""
    return make("shell", "fragile")


def test_an_agent_that_killed_its_sandbox_is_graded_zero_and_told() -> None:
    async def act(box: Sandbox) -> None:
        with contextlib.suppress(SandboxDead):
            await box.exec(KILL, timeout_s=5)
        with pytest.raises(EndedInside):
            await box.exec("echo works", timeout_s=5)

    grade = episode(act, backend=fragile())
    assert grade.reward == 0.0
    assert "ended by what ran in it" in grade.detail["reason"]


def test_what_an_agent_left_running_kills_it_while_it_is_read() -> None:
    async def act(box: Sandbox) -> None:
        await box.exec(f"(sleep 0.1; {KILL}) >/dev/null 2>&1 &")
        await asyncio.sleep(1.0)

    grade = episode(act, backend=fragile())
    assert grade.reward == 0.0
    assert "ended by what ran in it" in grade.detail["reason"]


def test_a_patch_whose_code_kills_the_graders_sandbox_is_graded_zero_and_told() -> None:
    code = f"import subprocess\nsubprocess.run({KILL!r}, shell=True)\n"
    grade = episode(shell(f"cat >shop/cart.py <<'END'\n{code}END"), backend=fragile())
    assert grade.reward == 0.0
    assert "the tests ended their sandbox" in grade.detail["reason"]


def test_a_sandbox_that_others_kill_is_a_fault_and_no_grade() -> None:
    async def act(box: Sandbox) -> None:
        assert isinstance(box, EmbeddedSandbox)
        assert box._process is not None
        os.kill(box._process.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)

    with pytest.raises(SandboxDead):
        episode(act, backend=EmbeddedBackend("killed"))
    with pytest.raises((SandboxDead, EnvironmentFault)):
        episode(act, tiny_task({"large.txt": "line\n" * 150_000}), backend=EmbeddedBackend("killed"))
