"""Commands that try to get out, to stay, or to take everything: an attempt to break each limit of the contract."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from envs.sandbox import OutOfMemory, Sandbox, SandboxDead
from tests.envs.sandbox_support import BACKENDS, KINDS, in_sandbox, make, processes, spec

every_kind = pytest.mark.parametrize("kind", KINDS)
every_backend = pytest.mark.parametrize("kind", BACKENDS)

DAEMONS = r"""
cp "$(command -v sleep)" /tmp/innocent
for i in 1 2 3; do
    (trap '' TERM HUP INT; setsid sh -c 'trap "" TERM HUP INT; (setsid /tmp/innocent 1000 &) &' &) &
done
(trap '' TERM; while :; do sleep 0.01; (sleep 1000 &) & done) &
python3 - <<'END' &
import os, signal, time
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
for _ in range(2):
    if os.fork(): os._exit(0)
    os.setsid()
open("/proc/self/comm", "w").write("sh) S 1 (sh")
while True: time.sleep(1)
END
python3 -c '
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60, 0)  # the first thread ends: the process looks like a zombie and runs on
' &
sleep 0.4
echo partial; printf 'no newline'
"""


@every_kind
def test_a_time_out_kills_everything(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        quiet = await processes(box)
        await box.exec("sleep 500 &")  # an earlier command's child dies too
        result = await box.exec(DAEMONS + "sleep 100", timeout_s=1.5)
        assert result.timed_out
        assert result.output == b"partial\nno newline"
        assert result.duration_s < 6
        started = time.monotonic()
        assert (await box.exec("echo next")).text == "next\n"
        assert time.monotonic() - started < 0.5  # 0.1 s on a quiet machine
        assert await processes(box, like=quiet) == quiet
        for _ in range(3):
            assert (await box.exec("while :; do :; done", timeout_s=0.2)).timed_out
        many = await box.exec("yes", timeout_s=0.5)
        assert many.timed_out
        assert many.truncated > 0
        assert len(many.output) == 1 << 20
        stopped = await box.exec("kill -STOP $$", timeout_s=0.3)
        assert stopped.timed_out
        assert await processes(box, like=quiet) == quiet

    in_sandbox(kind, test)


@every_backend
def test_fork_bomb(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        result = await box.exec("b() { b | b & }; b; echo started; sleep 60", timeout_s=2)
        assert result.timed_out or result.exit_code != 0
        assert (await box.exec("echo alive", timeout_s=10)).text == "alive\n"
        for _ in range(3):
            # In the background it fills the process table. The next command is served, or fails as one would there,
            # and then the table is clear.
            await box.exec("(b() { b | b & }; b) >/dev/null 2>&1 &", timeout_s=2)
            result = await box.exec("echo alive", timeout_s=10)
            if result.text != "alive\n":
                assert b"process table is full" in result.output
                assert (await box.exec("echo alive", timeout_s=10)).text == "alive\n"
        await box.exec("while :; do sleep 1000 & done 2>/dev/null", timeout_s=5)
        assert (await box.exec("/bin/echo alive", timeout_s=10)).exit_code in (0, 2, 126)
        await box.exec("sleep 100", timeout_s=0.1)
        assert (await box.exec("/bin/echo alive", timeout_s=10)).text == "alive\n"

    in_sandbox(kind, test, pids=64)


@every_backend
def test_memory_hog(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        hog = "python3 -c 'x = [bytearray(1 << 20) for _ in range(4000)]'"
        result = await box.exec(hog, timeout_s=30)
        assert result.exit_code in (137, 1)  # killed, or MemoryError where only the address space is limited
        assert (await box.exec("echo alive")).text == "alive\n"

    in_sandbox(kind, test, memory_bytes=128 << 20)


@every_backend
def test_out_of_memory_of_the_sandbox_is_said(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        async def fill() -> None:
            for number in range(20):  # files in memory belong to no process: in the end the channel is killed
                for place in ("/dev/shm", "/tmp", "/root", "/testbed"):
                    await box.exec(f"cat /dev/zero > {place}/{number}", timeout_s=20)

        with pytest.raises(OutOfMemory, match="memory limit"):
            await fill()

    in_sandbox(kind, test, memory_bytes=24 << 20)


@every_backend
@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "kill -9 $PPID; sleep 0.2",
        "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do grep -q '^PPid:.1$' $p/status && kill -9 ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || kill -STOP ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do for f in $p/fd/*; do (echo junk >$f) 2>/dev/null & done; done",
    ],
)
def test_commands_that_attack_the_channel(kind: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either SandboxDead, in bounded time, or a sandbox that goes on working; never a hang or a wrong answer."""
    monkeypatch.setattr("envs.sandbox.channel.ANSWER_S", 1.0)

    async def main() -> None:
        backend = make(kind)
        box = await backend.start(spec())
        started = time.monotonic()
        with contextlib.suppress(SandboxDead):
            await box.exec(command, timeout_s=3)
            assert (await box.exec("echo works", timeout_s=3)).output == b"works\n"
        assert time.monotonic() - started < 15
        await box.close()
        async with await backend.start(spec()) as fresh:
            assert (await fresh.exec("echo works")).output == b"works\n"
        await backend.close()

    asyncio.run(main())


@every_kind
def test_network_is_cut(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
            name = f"sao-test-{time.time_ns()}"
            local.bind("\0" + name)
            local.listen()
            probe = f"""
import socket
for family, address in [(2, ("127.0.0.1", {server.getsockname()[1]})), (2, ("1.1.1.1", 53)), (2, ("172.17.0.1", 22)),
                        (10, ("::1", {server.getsockname()[1]})), (1, "\\0{name}"), (1, "/var/run/docker.sock")]:
    try:
        s = socket.socket(family); s.settimeout(2); s.connect(address); print("REACHED", address)
    except OSError as error:
        print("cut", type(error).__name__)
try: socket.getaddrinfo("deb.debian.org", 80); print("RESOLVED")
except OSError: print("cut")
"""
            await box.put("/tmp/probe.py", probe.encode())
            result = await box.exec("python3 /tmp/probe.py; grep -c : /proc/net/dev", timeout_s=30)
        assert result.text.count("cut") == 7, result.text
        assert "REACHED" not in result.text
        assert result.text.split()[-1] == "1"  # loopback alone

    in_sandbox(kind, test)


@every_kind
def test_nothing_of_the_machine_can_be_written_or_mounted(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        for command in (
            "mount -t tmpfs none /mnt",
            "mount --bind /tmp /usr",
            "mount -o remount,rw /usr && touch /usr/x",
            "chroot / true",
            "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
            ": >> /proc/sys/kernel/panic",  # opening is enough to know, and harmless
            ": >> /proc/sysrq-trigger",
            "find /proc/sys /proc/irq -type f -writable 2>/dev/null | grep .",
            "hostname other",
            "unshare -m true",
            "nsenter -t 1 -m true",
            "date -s 2001-01-01",
            "chown 1:1 /etc/passwd",
        ):
            result = await box.exec(command)
            assert result.exit_code != 0, command
        caps = await box.exec("grep -E 'CapEff|CapPrm|CapBnd|NoNewPrivs' /proc/self/status")
        assert caps.text.split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
        marker = Path("/tmp") / f"sao-outside-{time.time_ns()}"
        await box.put(str(marker), b"inside only")
        assert not marker.exists()
        await box.exec("ln -s /etc etc; ln -s / root")
        assert b"root:x:0:0" in await box.get("etc/passwd")
        assert (await box.exec(f"ls root/proc/{os.getpid()}")).exit_code != 0

    in_sandbox(kind, test)


@every_backend
def test_file_size_and_open_files(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        result = await box.exec("head -c 20000000 /dev/zero > big; stat -c %s big")
        assert int(result.text.split()[-1]) <= 4 << 20
        files = "import os\ntry:\n  while True: os.open('/dev/null', 0)\nexcept OSError as e: print(e.errno)"
        await box.put("/tmp/files.py", files.encode())
        assert (await box.exec("python3 /tmp/files.py")).text == "24\n"  # EMFILE

    in_sandbox(kind, test, disk_bytes=4 << 20, nofile=64)
