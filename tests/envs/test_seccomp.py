"""The embedded sandbox's system-call filter: its numbers, its program on both machines, and its effect in a sandbox."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from envs.sandbox.contract import Sandbox
from envs.sandbox.seccomp import AUDIT_ARCH, CLONE, CLONE3, REFUSED, seccomp_filter
from tests.envs.sandbox_support import in_sandbox

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
MACHINES = list(HEADERS)
ALLOWED, EPERM, ENOSYS = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_the_kernels(machine: str) -> None:
    header, pattern = HEADERS[machine]
    if not Path(header).is_file():
        pytest.skip("the kernel's headers are not on this machine")
    theirs = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    which = MACHINES.index(machine)
    for name, pair in {**REFUSED, "clone": CLONE, "clone3": (CLONE3, CLONE3)}.items():
        assert (name, theirs.get(name)) == (name, pair[which])


def verdict(program: bytes, number: int, arch: int, first: int = 0) -> int:
    """What the kernel's machine of classic BPF answers; the data are number, arch, instruction pointer, arguments."""
    data = struct.pack("<IIQQ", number, arch, 0, first)
    steps = list(struct.iter_unpack("=HBBI", program))
    at, held = 0, 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            held = struct.unpack_from("<I", data, operand)[0]
        else:
            holds = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_refuses_these_and_nothing_else(machine: str) -> None:
    which = MACHINES.index(machine)
    program = seccomp_filter(machine)
    assert program is not None
    arch, clone = AUDIT_ARCH[which], CLONE[which]
    refused = {pair[which] for pair in REFUSED.values()}
    for number in range(600):
        expected = EPERM if number in refused else ENOSYS if number == CLONE3 else ALLOWED
        assert (number, verdict(program, number, arch)) == (number, expected)
    thread = 0x3D0F00
    assert verdict(program, clone, arch, thread) == ALLOWED
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(program, clone, arch, thread | 1 << bit) == EPERM
    assert verdict(program, 0x40000001, arch) == EPERM
    assert verdict(program, 1, 0x40000003) == EPERM, "32 bit"
    assert verdict(program, 1, AUDIT_ARCH[1 - which]) == EPERM


def test_a_machine_whose_numbers_are_not_known_gets_none() -> None:
    assert seccomp_filter("riscv64") is None


ASK = """
import ctypes, errno, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
for text in sys.argv[1:]:
    name, number = text.split("=")
    result = libc.syscall(int(number), 0x10000000 if name == "unshare" else 0, 0, 0, 0, 0)
    print(name, result, errno.errorcode.get(ctypes.get_errno(), ""))
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "process"], capture_output=True, text=True).stdout, end="")
"""


def test_in_a_sandbox() -> None:
    if seccomp_filter() is None:
        pytest.skip("no filter for this machine")
    which = MACHINES.index(os.uname().machine)
    asked = {name: pair[which] for name, pair in REFUSED.items() if pair[which] is not None and name != "vhangup"}

    async def test(box: Sandbox) -> None:
        await box.put("/tmp/ask.py", ASK.encode())
        words = " ".join(f"{name}={number}" for name, number in asked.items())
        result = await box.exec(f"python3 /tmp/ask.py {words} clone3={CLONE3}")
        expected = [f"{name} -1 EPERM" for name in asked] + ["clone3 -1 ENOSYS", "thread", "process"]
        assert result.text.splitlines() == expected
        assert "Seccomp:\t2" in (await box.exec("cat /proc/self/status")).text

    in_sandbox("embedded", test)
