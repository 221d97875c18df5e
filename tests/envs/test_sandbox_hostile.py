"""Commands that try to get out, to stay, or to take everything: an attempt to break each limit of the contract."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import tarfile
import time
from pathlib import Path

import pytest

from envs.sandbox import OutOfMemory, PathRefused, Sandbox
from envs.sandbox.contract import OutOfDisk
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
        async def served() -> None:
            """The next command is served, or fails as one would there, and then the table is clear."""
            result = await box.exec("echo alive", timeout_s=10)
            if result.text != "alive\n":
                assert b"process table is full" in result.output
                assert (await box.exec("echo alive", timeout_s=10)).text == "alive\n"

        result = await box.exec("b() { b | b & }; b; echo started; sleep 60", timeout_s=2)
        assert result.timed_out or result.exit_code != 0
        await served()
        for _ in range(3):  # in the background it fills the process table
            await box.exec("(b() { b | b & }; b) >/dev/null 2>&1 &", timeout_s=2)
            await served()
        await box.exec("while :; do sleep 1000 & done 2>/dev/null", timeout_s=5)
        assert (await box.exec("/bin/echo alive", timeout_s=10)).exit_code in (0, 2, 126)
        await box.exec("sleep 100", timeout_s=0.1)
        await served()
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


@every_kind
def test_no_namespace_gives_capabilities_back(kind: str) -> None:
    probe = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, flags in [("user", 0x10000000), ("user and mount", 0x10020000), ("user and network", 0x50000000)]:
    if os.fork() == 0:
        print(name, "MADE" if libc.unshare(flags) == 0 else "refused", flush=True)
        os._exit(0)
    os.wait()
"""

    async def test(box: Sandbox) -> None:
        await box.put("/tmp/probe.py", probe.encode())
        result = await box.exec("python3 /tmp/probe.py")
        assert result.text.count("refused") == 3, result.text

    in_sandbox(kind, test)


@every_kind
def test_nothing_of_the_driver_shows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_SECRET", "hunter-two")

    async def test(box: Sandbox) -> None:
        seen = await box.exec("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env")
        assert "hunter-two" not in seen.text
        assert "PATH=" in seen.text
        # what the sandbox inherited of files outside: it may write there, but not much
        fill = "for f in /proc/[0-9]*/fd/2; do head -c 3000000 /dev/zero >>$f; done 2>/dev/null; true"
        await box.exec(fill)
        await box.exec("for f in /proc/[0-9]*/fd/*; do readlink $f; done | sort -u")
        assert (await box.exec("echo alive")).text == "alive\n"
        if (inside := getattr(box, "messages", None)) is not None:
            assert len(inside()) <= 2000

    in_sandbox(kind, test)


@every_kind
def test_another_sandbox_cannot_be_seen_or_traced(kind: str) -> None:
    async def main() -> None:
        backend = make(kind)
        async with await backend.start(spec()) as victim, await backend.start(spec()) as attacker:
            mark = f"77{time.time_ns() % 10**7}"
            running = asyncio.create_task(victim.exec(f"echo secret >/tmp/{mark}; sleep {mark}", timeout_s=8))
            await asyncio.sleep(0.5)
            outside = _running(["sleep", mark])
            probe = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
inside = [int(name) for name in os.listdir("/proc") if name.isdigit()]
lines = [open(f"/proc/{{pid}}/cmdline").read() for pid in inside if os.path.exists(f"/proc/{{pid}}")]
print("SEEN" if any("{mark}" in line for line in lines) else "unseen")
for pid in {outside}:
    print("TRACED" if pid not in inside and libc.ptrace(16, pid, 0, 0) == 0 else "refused")
    print("KILLED" if pid not in inside and libc.kill(pid, 9) == 0 else "refused")
print("FOUND" if os.path.exists("/tmp/{mark}") else "absent")
"""
            await attacker.put("/probe.py" if kind == "docker" else "/tmp/probe.py", probe.encode())
            place = "/probe.py" if kind == "docker" else "/tmp/probe.py"
            result = await attacker.exec(f"python3 {place}")
            assert result.exit_code == 0, result.text
            assert set(result.text.split()) <= {"unseen", "refused", "absent"}, result.text
            assert outside  # the attack aimed at something
            assert not running.done()
            running.cancel()
        await backend.close()

    asyncio.run(main())


def _running(words: list[str]) -> list[int]:
    """Processes of this machine with this command line."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().decode("utf-8", "replace")
            found += [int(process.name)] if line.split("\0")[:-1] == words else []
    return found


@every_kind
def test_links_lead_nowhere_but_inside(kind: str) -> None:
    """Links that the agent made catch what the driver writes and reads: inside, never on this machine."""
    marker = Path(f"/tmp/sao-outside-{time.time_ns()}")

    async def test(box: Sandbox) -> None:
        await box.exec(
            f"ln -s /tmp out; ln -s ../../../../../../tmp up; ln -s /proc/1/root/tmp way; ln -s {marker} self"
        )
        for path in ("out", "up", "way"):
            with contextlib.suppress(OSError):
                await box.put(f"{path}/{marker.name}", b"inside")
            with contextlib.suppress(OSError):
                await box.put_tar(path, _tar(marker.name, b"inside"))
        await box.put("self", b"inside")
        assert await box.get(str(marker)) == b"inside"
        linked = io.BytesIO()
        with tarfile.open(fileobj=linked, mode="w") as archive:
            info = tarfile.TarInfo("hard")
            info.type, info.linkname = tarfile.LNKTYPE, "/etc/passwd"
            archive.addfile(info)
        with contextlib.suppress(OSError, PathRefused):
            await box.put_tar(".", linked.getvalue())
        await box.exec("echo changed >>hard; echo changed >>/etc/passwd")

    before = Path("/etc/passwd").read_bytes()
    in_sandbox(kind, test)
    assert Path("/etc/passwd").read_bytes() == before
    assert not marker.exists()


def _tar(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if isinstance(kind, str)])
def test_a_disk_filler_fills_its_own_place_alone(kind: str) -> None:
    filler = "i=0; while head -c 4000000 /dev/zero >fill$i 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || exit 9; done"

    async def test(box: Sandbox) -> None:
        for place in ("/testbed", "/tmp", "/root", "/dev/shm"):
            assert (await box.exec(filler, cwd=place)).exit_code == 0  # it was stopped by an error
            assert int((await box.exec("du -sk . | cut -f1", cwd=place)).text) <= 17_000
            with pytest.raises(OSError, match="No space left"):
                await box.put(f"{place}/more", b"x" * 1_000_000)
            assert (await box.exec("rm -f fill* more; echo again >more && cat more", cwd=place)).text == "again\n"
        for place in ("/", "/usr", "/etc", "/dev", "/run", "/var", "/proc"):
            assert (await box.exec(": >fill", cwd=place)).exit_code != 0, place

    in_sandbox(kind, test, disk_bytes=16 << 20, memory_bytes=256 << 20)


@pytest.mark.docker
def test_a_disk_filler_is_ended_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's layers have no quota on most drivers: what a container holds is watched."""
    monkeypatch.setattr("envs.sandbox.disk_guard.LOOK_EVERY_S", 0.2)
    slowly = "i=0; while head -c 4000000 /dev/zero >/var/fill$i; do i=$((i+1)); sleep 0.02; done"

    async def test(box: Sandbox) -> None:
        result = await box.exec(f"sleep 300 & echo begun; {slowly}", timeout_s=60)
        assert (result.exit_code, result.timed_out) == (137, False)
        assert result.output.startswith(b"begun\n")
        assert b"the disk limit of 16 MiB is passed" in result.output
        assert "sleep" not in await processes(box)
        again = await box.exec(slowly, timeout_s=60)  # still over: it may not add
        assert again.exit_code == 137
        assert (await box.exec("sleep 0.5; rm -f /var/fill*; echo deleted", timeout_s=20)).text == "deleted\n"
        assert (await box.exec("sleep 0.5; echo fine")).text == "fine\n"
        for number in range(200):
            await box.exec(f"head -c 2000000 /dev/zero >/var/short{number}")

    with pytest.raises(OutOfDisk, match="disk limit"):
        in_sandbox("docker", test, disk_bytes=16 << 20)


@every_backend
def test_file_size_and_open_files(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        result = await box.exec("head -c 20000000 /dev/zero > big; stat -c %s big")
        assert int(result.text.split()[-1]) <= 4 << 20
        files = "import os\ntry:\n  while True: os.open('/dev/null', 0)\nexcept OSError as e: print(e.errno)"
        await box.put("/tmp/files.py", files.encode())
        assert (await box.exec("python3 /tmp/files.py")).text == "24\n"  # EMFILE

    in_sandbox(kind, test, disk_bytes=4 << 20, nofile=64)
