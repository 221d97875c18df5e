"""Filters of system calls, made from one table (`envs.sandbox.syscalls`): a program for embedded sandboxes, a profile
for Docker's.

Promises: what the table does not allow fails with EPERM, whoever asks; what it calls absent, and what is newer than it,
with ENOSYS. Embedded sandboxes refuse calls of another kind of machine (32 bit and x32) too; containers may be of 32
bit.

A program is classic BPF: instructions of 8 bytes (code, jump if true, jump if false, operand) over the fields of
`struct seccomp_data` (seccomp(2)). It is loaded last of all: it binds the sandbox and not its making.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from envs.sandbox.contract import SandboxLimits
from envs.sandbox.syscalls import (
    ABSENT,
    ALLOWED,
    ALLOWED_32_BIT,
    ALLOWED_IF,
    NEWEST,
    REFUSED,
    WATCHES,
    Is,
    Not,
    Test,
)

MACHINES = ("x86_64", "aarch64")
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_X32 = 0x40000000
_LOW = (1 << 32) - 1
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets; both machines are little-endian, so the low half comes first
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
Step = tuple[int, int, int, int]


def may_watch(limits: SandboxLimits) -> bool:
    """inotify's instances, of which this machine's root has one count with all sandboxes, cannot run out: several
    sandboxes at their limits of processes and files hold fewer."""
    try:
        return int(_INSTANCES.read_text()) >= instances_that_suffice(limits)
    except (OSError, ValueError):
        return False


def instances_that_suffice(limits: SandboxLimits) -> int:
    return 64 * limits.pids * limits.nofile


@cache
def seccomp_filter(machine: str = "", *, watches: bool = False) -> bytes | None:
    """The program for `machine` (as `uname -m`; empty: this one); None where its numbers are not known."""
    machine = machine or os.uname().machine
    if sys.byteorder != "little" or machine not in MACHINES:
        return None
    which = MACHINES.index(machine)
    program: list[Step] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, AUDIT_ARCH[which]),
        (_RETURN, 0, 0, _EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _EPERM),
        (_AT_LEAST, 0, 1, NEWEST + 1),
        (_RETURN, 0, 0, _ENOSYS),
    ]
    for numbers, alternatives in ALLOWED_IF.values():
        if (number := numbers[which]) is not None:
            body = [step for tests in alternatives for step in _alternative(tests)] + [(_RETURN, 0, 0, _EPERM)]
            program += [(_EQUAL, 0, len(body), number), *body]
    denied = [(_EPERM, REFUSED), *((_ERRNO | code, calls) for code, calls in ABSENT.items())]
    if not watches:
        denied.append((_ERRNO | errno.EMFILE, WATCHES))
    for answer, calls in denied:
        program += _any_of((number for numbers in calls.values() if (number := numbers[which]) is not None), answer)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _any_of(numbers: Iterable[int], answer: int) -> list[Step]:
    found = sorted(numbers)
    steps = [(_EQUAL, len(found) - at, 0, number) for at, number in enumerate(found)]
    return [*steps, (_EQUAL, 0, 1, _LOW), (_RETURN, 0, 0, answer)]  # no call has that number


def _alternative(tests: Iterable[Test]) -> list[Step]:
    """Allows where all tests hold; else goes on behind itself."""
    steps: list[Step] = []
    for test in tests:
        at = _ARGUMENTS + 8 * test.argument
        steps.append((_LOAD, 0, 0, at))
        match test:
            case Not():
                steps.append((_EQUAL, -1, 0, test.value))
            case Is(mask=0):
                steps += [(_EQUAL, 0, -1, test.value), (_LOAD, 0, 0, at + 4), (_EQUAL, 0, -1, 0)]
            case Is():
                steps += [(_AND, 0, 0, test.mask), (_EQUAL, 0, -1, test.value)]
    behind = len(steps) + 1
    placed = [
        (code, *(behind - at - 1 if jump < 0 else jump for jump in (yes, no)), operand)
        for at, (code, yes, no, operand) in enumerate(steps)
    ]
    return [*placed, (_RETURN, 0, 0, _ALLOW)]  # type: ignore[list-item]


@cache
def docker_profile(*, watches: bool = False) -> str:
    """The text of a seccomp profile as Docker and podman take it."""
    allowed = [*ALLOWED, *ALLOWED_32_BIT, *(WATCHES if watches else ())]
    calls: list[dict[str, Any]] = [{"names": allowed, "action": "SCMP_ACT_ALLOW"}]
    for name, (_, alternatives) in ALLOWED_IF.items():
        for tests in alternatives:
            for args in _arguments(tests):
                calls.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args})
    errors = dict(ABSENT) if watches else {**ABSENT, errno.EMFILE: WATCHES}
    for code, absent in errors.items():
        calls.append({"names": list(absent), "action": "SCMP_ACT_ERRNO", "errnoRet": code})
    kinds = [("SCMP_ARCH_X86_64", ["SCMP_ARCH_X86"]), ("SCMP_ARCH_AARCH64", ["SCMP_ARCH_ARM"])]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "archMap": [{"architecture": own, "subArchitectures": others} for own, others in kinds],
            "syscalls": calls,
        }
    )


def _arguments(tests: Iterable[Test]) -> list[list[dict[str, Any]]]:
    """Alternatives of arguments, of all of which the profile allows one."""
    fixed: list[dict[str, Any]] = []
    spread: list[list[dict[str, Any]]] = [[]]
    for test in tests:
        match test:
            case Is(mask=0):
                fixed.append({"index": test.argument, "value": test.value, "op": "SCMP_CMP_EQ"})
            case Is():
                fixed.append(_masked(test.argument, test.mask, test.value))
            case Not():
                # The language knows no "not" for a part of an argument: some bit differs.
                bits = ((1 << bit, test.value & 1 << bit) for bit in range(32))
                spread = [[_masked(test.argument, mask, mask ^ value)] for mask, value in bits]
    return [fixed + each for each in spread]


def _masked(argument: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
