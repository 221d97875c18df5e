"""Filters of system calls: the table against the kernel's headers, both filters against the table, their effect in
sandboxes of every kind, and what ordinary tools make of them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.sandbox import SandboxLimits, seccomp
from envs.sandbox.contract import Sandbox
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.seccomp import AUDIT_ARCH, MACHINES, docker_profile, may_watch, seccomp_filter
from envs.sandbox.syscalls import (
    ABSENT,
    ALLOWED,
    ALLOWED_32_BIT,
    ALLOWED_IF,
    NEWEST,
    REFUSED,
    UNKNOWN,
    WATCHES,
    Not,
    Numbers,
)
from tests.envs.sandbox_support import KINDS, in_sandbox, spec

every_kind = pytest.mark.parametrize("kind", KINDS)
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS, EMFILE = (ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EMFILE))
WORD = (1 << 64) - 1


def numbered() -> dict[str, Numbers]:
    conditional = {name: numbers for name, (numbers, _) in ALLOWED_IF.items()}
    return {
        **REFUSED,
        **conditional,
        **UNKNOWN,
        **WATCHES,
        **{k: v for calls in ABSENT.values() for k, v in calls.items()},
    }


def kernels(machine: str) -> dict[str, int]:
    header, pattern = HEADERS[machine]
    if not Path(header).is_file():
        pytest.skip("the kernel's headers are not on this machine")
    no_calls = {"syscalls", "arch_specific_syscall", "fstatat"}  # the last is newfstatat
    found = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    of_32_bit = range(403, 424)
    return {
        n: number for n, number in found.items() if n not in no_calls and number <= NEWEST and number not in of_32_bit
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_the_table_is_the_kernels_and_whole(machine: str) -> None:
    theirs, which = kernels(machine), MACHINES.index(machine)
    for name, pair in numbered().items():
        assert (name, theirs.get(name)) == (name, pair[which])
    lists = [*numbered(), *ALLOWED]
    assert len(lists) == len(set(lists)), "a call stands in two tables"
    assert set(theirs) <= {*lists, *ALLOWED_32_BIT}


def program_says(program: bytes, number: int, arch: int, arguments: tuple[int, ...] = (0,) * 6) -> int:
    """What the kernel's machine of classic BPF answers; the data are number, arch, instruction pointer, arguments."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    steps = list(struct.iter_unpack("=HBBI", program))
    at, held = 0, 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            held = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x54:
            held &= operand
        else:
            at += yes if {0x15: held == operand, 0x35: held >= operand}[code] else no


def profile_says(profile: dict[str, Any], name: str, arguments: tuple[int, ...]) -> int:
    for rule in profile["syscalls"]:
        holds = True
        for test in rule.get("args", ()):
            value = arguments[test["index"]]
            if test["op"] == "SCMP_CMP_EQ":
                holds &= value == test["value"]
            else:
                assert test["op"] == "SCMP_CMP_MASKED_EQ"
                holds &= value & test["value"] == test["valueTwo"]
        if name in rule["names"] and holds:
            return ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else ERRNO | rule["errnoRet"]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    return EPERM


def table_says(name: str, arguments: tuple[int, ...], watches: bool) -> int:
    if name in ALLOWED or (watches and name in WATCHES):
        return ALLOW
    if name in WATCHES:
        return EMFILE
    for code, calls in ABSENT.items():
        if name in calls:
            return ERRNO | code
    for tests in ALLOWED_IF[name][1] if name in ALLOWED_IF else ():
        passed = []
        for test in tests:
            value = arguments[test.argument]
            if isinstance(test, Not):
                passed.append(value & 0xFFFFFFFF != test.value)
            else:
                passed.append((value & test.mask if test.mask else value) == test.value)
        if all(passed):
            return ALLOW
    return EPERM


VALUES = st.sampled_from(
    [0, 1, 2, 8, 10, 16, 17, 40, 0x20008, 0xFFFFFFFF, 0x3D0F00, 1 << 17, 1 << 29, 1 << 32, (1 << 32) + 1, WORD]
)


@pytest.mark.parametrize("watches", [False, True])
@given(arguments=st.tuples(*[VALUES | st.integers(0, WORD)] * 6))
@example(arguments=(40, 0, 0, 0, 0, 0))
@example(arguments=(1 | 1 << 32,) * 6)
def test_both_filters_say_what_the_table_says(watches: bool, arguments: tuple[int, ...]) -> None:
    profile = json.loads(docker_profile(watches=watches))
    for which, machine in enumerate(MACHINES):
        program = seccomp_filter(machine, watches=watches)
        assert program is not None
        for name, pair in numbered().items():
            expected = table_says(name, arguments, watches)
            assert (name, profile_says(profile, name, arguments)) == (name, expected)
            number = pair[which]
            if number is not None and name not in UNKNOWN:
                assert (name, program_says(program, number, AUDIT_ARCH[which], arguments)) == (name, expected)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_allows_the_rest_and_nothing_new_or_foreign(machine: str) -> None:
    which = MACHINES.index(machine)
    program = seccomp_filter(machine)
    assert program is not None
    arch = AUDIT_ARCH[which]
    named = {pair[which] for name, pair in numbered().items() if name not in UNKNOWN}
    for number in range(NEWEST + 200):
        if number not in named:
            assert (number, program_says(program, number, arch)) == (number, ALLOW if number <= NEWEST else ENOSYS)
    assert program_says(program, 0x40000001, arch) == EPERM
    assert program_says(program, 1, 0x40000003) == EPERM, "32 bit"
    assert program_says(program, 1, AUDIT_ARCH[1 - which]) == EPERM


def test_a_machine_whose_numbers_are_not_known_gets_none() -> None:
    assert seccomp_filter("riscv64") is None


def test_watches_are_given_where_they_cannot_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "max_user_instances"
    monkeypatch.setattr(seccomp, "_INSTANCES", limit)
    limits = SandboxLimits(pids=256, nofile=1024)
    assert not may_watch(limits)
    for text, enough in (("128\n", False), (f"{64 * 256 * 1024 - 1}\n", False), (f"{64 * 256 * 1024}\n", True)):
        limit.write_text(text)
        assert may_watch(limits) is enough


ASK = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
answers, rooms = [], []
def room():
    rooms.append(ctypes.create_string_buffer(4096))
    return ctypes.addressof(rooms[-1])
for number, arguments in json.load(open("/tmp/asked.json")):
    words = [ctypes.c_long(room() if each == "room" else each) for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    answers.append("done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
print(json.dumps(answers))
"""
PID = 1
ASKED: dict[str, tuple[str, list[object], str]] = {
    "a socket to the host": ("socket", [40, 1, 0], "EPERM"),
    "the same with odd upper bits": ("socket", [40 | 1 << 32, 1, 0], "EPERM"),
    "the kernel's ciphers": ("socket", [38, 5, 0], "EPERM"),
    "a plain socket": ("socket", [1, 1, 0], "done"),
    "another's limits": ("prlimit64", [PID, 9, "room", 0], "EPERM"),
    "asking for another's limits": ("prlimit64", [PID, 9, 0, "room"], "done"),
    "another's scheduler": ("sched_setscheduler", [PID, 5, "room"], "EPERM"),
    "the own scheduler": ("sched_setscheduler", [0, 3, "room"], "done"),
    "another's parameters": ("sched_setparam", [PID, "room"], "EPERM"),
    "another's attributes": ("sched_setattr", [PID, "room", 0], "EPERM"),
    "the channel's processors": ("sched_setaffinity", [PID, 8, "room"], "EPERM"),
    "another's priority": ("setpriority", [0, PID, 19], "EPERM"),
    "everybody's priority": ("setpriority", [2, 0, 19], "EPERM"),
    "the own priority": ("setpriority", [0, 0, 19], "done"),
    "another's turn at the disk": ("ioprio_set", [1, PID, 3 << 13], "EPERM"),
    "the own turn at the disk": ("ioprio_set", [1, 0, 2 << 13], "done"),
    "the channel's memory": ("process_vm_writev", [PID, "room", 1, "room", 1, 0], "EPERM"),
    "tracing the channel": ("ptrace", [16, PID, 0, 0], "EPERM"),
    "watches": ("inotify_init1", [0], "EMFILE"),
    "AIO": ("io_setup", [1, "room"], "ENOSYS"),
    "io_uring": ("io_uring_setup", [1, "room"], "EPERM"),
    "comparing processes": ("kcmp", [PID, PID, 0, 0, 0], "EPERM"),
    "a namespace": ("unshare", [0x10000000], "EPERM"),
    "keys": ("add_key", ["room", "room", 0, 0, 0], "EPERM"),
    "BPF": ("bpf", [0, "room", 0], "EPERM"),
    "clone3": ("clone3", ["room", 0], "ENOSYS"),
}


@every_kind
def test_in_a_sandbox(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if seccomp_filter() is None:
        pytest.skip("no filter for this machine")
    which = MACHINES.index(os.uname().machine)
    monkeypatch.setattr(seccomp, "_INSTANCES", Path("/dev/null"))
    contexts = Path("/proc/sys/fs/aio-nr").read_text()
    asked = []
    for name, arguments, _ in ASKED.values():
        number = numbered()[name][which]
        asked.append([number, arguments])

    async def test(box: Sandbox) -> None:
        await box.put("/tmp/asked.json", json.dumps(asked).encode())
        await box.put("/tmp/ask.py", ASK.encode())
        answers = json.loads((await box.exec("python3 /tmp/ask.py")).text)
        assert dict(zip(ASKED, answers, strict=True)) == {what: answer for what, (_, _, answer) in ASKED.items()}
        assert "Seccomp:\t2" in (await box.exec("cat /proc/self/status")).text
        many = "import ctypes; libc = ctypes.CDLL(None); print(sum(libc.inotify_init1(0) >= 0 for _ in range(300)))"
        assert (await box.exec(f"python3 -c '{many}'")).text == "0\n"
        one = ctypes.CDLL(None).inotify_init1(0)
        assert one >= 0, "this machine has none left"
        os.close(one)

    in_sandbox(kind, test)
    assert Path("/proc/sys/fs/aio-nr").read_text() == contexts


TOOLS = {
    "threads, processes, queues": (
        "import multiprocessing as m, threading, subprocess, asyncio, concurrent.futures as c\n"
        "def f(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        with m.get_context(how).Pool(2) as pool: assert pool.map(f, range(5)) == [0, 1, 4, 9, 16]\n"
        "    with c.ThreadPoolExecutor(4) as pool: assert list(pool.map(f, range(3))) == [0, 1, 4]\n"
        "    async def g():\n"
        "        p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n"
        "        return (await p.communicate())[0]\n"
        "    assert asyncio.run(g()) == b'hi\\n'\n"
        "    from multiprocessing.shared_memory import SharedMemory\n"
        "    shared = SharedMemory(create=True, size=10); shared.close(); shared.unlink(); m.Queue(); m.Lock()\n"
        "    print('fine')\n"
    ),
    "sockets, timers, files": (
        "import mmap, os, resource, signal, socket, sqlite3, tempfile, time, select, fcntl\n"
        "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'\n"
        "s = socket.create_server(('127.0.0.1', 0)); u = socket.socket(socket.AF_UNIX); u.bind('/tmp/u'); u.listen()\n"
        "signal.setitimer(signal.ITIMER_REAL, 100); signal.alarm(0)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); os.nice(1); os.sched_yield()\n"
        "os.sched_setaffinity(0, os.sched_getaffinity(0)); os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))\n"
        "os.memfd_create('x'); os.pidfd_open(os.getpid()); os.getrandom(8); mmap.mmap(-1, 4096)\n"
        "e = select.epoll(); e.close(); os.eventfd(0) if hasattr(os, 'eventfd') else 0\n"
        "f = tempfile.NamedTemporaryFile(); fcntl.flock(f, fcntl.LOCK_EX); os.setxattr\n"
        "d = sqlite3.connect(':memory:'); d.execute('create table t (a)'); time.sleep(0.001)\n"
        "print('fine')\n"
    ),
}
SHELL = """
set -e
cd /testbed && git init -q . && git config user.email a@b && git config user.name a && echo x >f && git add f
git commit -qm one && git gc -q && git clone -q . /tmp/clone && git -C /tmp/clone log --oneline | grep -q one
mkdir t && printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test_x(self): pass\\n' >t/test_t.py
python3 -m unittest discover -s t 2>&1 | grep -q OK
nice true; timeout 5 true; setsid true; (ulimit -n 64; true); tar -cf - . | tar -tf - >/dev/null
yes | head -n 1 >/dev/null
tail -n 1 f >/dev/null; find . -name f | xargs -P 2 cat >/dev/null; date >/dev/null
if command -v node; then node -e 'setTimeout(() => 0, 1); require("fs").readdirSync(".")'; fi
if command -v gcc; then echo 'int main(void){return 0;}' >m.c && gcc m.c -o m && ./m; fi
if command -v strace; then strace -o /dev/null true; fi
echo fine
"""


@every_kind
def test_ordinary_tools_work(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        for name, text in TOOLS.items():
            await box.put("/tmp/tool.py", text.encode())
            result = await box.exec("python3 /tmp/tool.py", timeout_s=120)
            assert result.text == "fine\n", (name, result.text)
        result = await box.exec(SHELL, timeout_s=120)
        assert result.text.endswith("fine\n"), result.text

    in_sandbox(kind, test)


EVERY = """
import ctypes, errno, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for value in (-1, 0):
    for number in range(int(sys.argv[1])):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(1)
            result = libc.syscall(*[ctypes.c_long(each) for each in (number, *[value] * 6)])
            said = "done" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
            os.write(write, said.encode())
            os.kill(os.getpid(), 9)
        os.close(write)
        os.waitpid(pid, 0)
        answers[f"{number}({value})"] = os.read(read, 99).decode() or "nothing"
        os.close(read)
print(json.dumps(answers))
"""


@pytest.mark.docker
def test_the_profile_refuses_all_that_the_engines_own_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(filters: bool) -> dict[str, str]:
        found: dict[str, str] = {}

        async def main() -> None:
            backend = DockerBackend("default-profile")
            backend._engine_can = filters, True
            async with await backend.start(spec()) as box:
                await box.put("/tmp/every.py", EVERY.encode())
                result = await box.exec(f"python3 /tmp/every.py {NEWEST + 20} 2>/dev/null", timeout_s=300)
                found.update(json.loads(result.text.splitlines()[-1]))
            await backend.close()

        asyncio.run(main())
        return found

    ours, theirs = answers(True), answers(False)
    assert sum(answer == "EPERM" for answer in theirs.values()) > 50
    refusals = ("EPERM", "ENOSYS", "EMFILE")
    weaker = {call: ours[call] for call, answer in theirs.items() if answer == "EPERM" and ours[call] not in refusals}
    assert weaker == {}
