"""The channel needs a POSIX shell and POSIX tools, not one shell in particular: the core of the contract on others."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import SandboxSpec
from envs.sandbox.channel_text import Helpers, channel_script
from envs.sandbox.contract import Sandbox
from envs.sandbox.embedded import EmbeddedBackend, EmbeddedSandbox
from tests.envs.busybox import import_busybox
from tests.envs.sandbox_support import make, processes, spec
from tests.envs.test_sandbox_contract import ODD_COMMANDS


async def core(box: Sandbox, *, threads: bool = True) -> None:
    quiet = await processes(box)
    for command, code, output in ODD_COMMANDS:
        result = await box.exec(command, timeout_s=20)
        same = output if output is not None else result.output
        assert (command, result.exit_code, result.output) == (command, code, same)
    big = await box.exec("echo START; yes | head -c 30000000; echo END; exit 9", timeout_s=60)
    assert big.exit_code == 9
    assert big.output.startswith(b"START\ny\n")
    assert big.output.endswith(b"y\nEND\n")
    assert len(big.output) + big.truncated == 30_000_010
    assert (await box.exec("sleep 300 & echo hi")).output == b"hi\n"
    stopped = await box.exec("(trap '' TERM; setsid sleep 1000 & ) ; echo partial; sleep 50", timeout_s=0.5)
    assert (stopped.timed_out, stopped.output) == (True, b"partial\n")
    assert await processes(box, like=quiet) == quiet
    data = bytes(range(256)) * 1500
    await box.put("a/b", data, mode=0o755)
    assert await box.get("a/b") == data
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("x/y")
        info.size = len(data)
        info.uid = 7
        tar.addfile(info, io.BytesIO(data))
    await box.put_tar("t", out.getvalue())
    assert await box.get("t/x/y") == data


@pytest.mark.parametrize("shell", ["bash --posix", "busybox sh"])
def test_other_shells(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both as the init that starts the channel and as the channel."""
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not on this machine")

    class OtherShell(EmbeddedBackend):
        def command(self, spec: SandboxSpec, folder: Path, etc: Path, descriptors: tuple[int, int, int]) -> list[str]:
            return [*super().command(spec, folder, etc, descriptors)[:-1], *words]

    def channel(*args: Any, **named: Any) -> bytes:
        before, below, after = channel_script(*args, **named).partition(b"{\nsh -c '")
        assert below
        return before + below.replace(b"sh", shell.encode()) + after

    monkeypatch.setattr("envs.sandbox.channel.channel_script", channel)

    async def main() -> None:
        backend = OtherShell("shells", launcher="bwrap", helpers=Helpers.NEVER)
        async with await backend.start(spec()) as box:
            await core(box)
        await backend.close()

    asyncio.run(main())


@pytest.mark.docker
def test_an_image_of_busybox_alone() -> None:
    """No GNU tools, no Debian: what small public images have."""
    import docker

    name = f"sao-test-busybox:{time.time_ns()}"
    client = docker.from_env().api
    import_busybox(client, name)

    async def main() -> None:
        backend = make("docker", "busybox")
        async with await backend.start(spec(image=name)) as box:
            await core(box)
        await backend.close()

    try:
        asyncio.run(main())
    finally:
        client.remove_image(name)
        client.close()


def test_one_that_may_not_use_the_helper_teaches_nothing() -> None:
    async def main() -> None:
        for helpers, expected in ((Helpers.NEVER, False), (Helpers.WHERE_PRESENT, shutil.which("perl") is not None)):
            backend = EmbeddedBackend("teaching", helpers=helpers)
            async with await backend.start(spec()) as box:
                assert isinstance(box, EmbeddedSandbox)
                assert box.channel.helper is expected
            async with await backend.start(spec(env={"PERL_UNICODE": "SDA"})) as box:
                assert isinstance(box, EmbeddedSandbox)
                assert not box.channel.helper
                assert (await box.exec("printf '\\377'")).output == b"\xff"
            await backend.close()

    asyncio.run(main())
