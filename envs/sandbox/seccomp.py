"""The embedded sandbox's system-call filter: what of the shared kernel a command may not reach.

Promises: calls that reach past a namespace (keyrings, BPF, perf, io_uring, userfaultfd), that make or enter one, mount,
load modules, set clocks, or restart the machine end with EPERM, whoever asks; so do calls of another kind of machine
(32 bit and x32). Everything else is as without it. `clone3` is ENOSYS: its flags lie where no filter can read them, and
every C library then takes `clone`. The list follows Docker's default filter for a container without capabilities, less
what tests and debuggers of ordinary projects use (ptrace, personality, memory policies).

A filter is a program of classic BPF: instructions of 8 bytes (code, jump if true, jump if false, operand) over the
fields of `struct seccomp_data` (seccomp(2)). bubblewrap loads it last of all: it binds the sandbox and not its making.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Mapping

REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # name: (x86_64, aarch64); from 424 on all machines count alike
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
CLONE: tuple[int, int] = (56, 220)
CLONE3 = 435
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_X32 = 0x40000000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets; both machines are little-endian, so the low half comes first

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def seccomp_filter(machine: str = "") -> bytes | None:
    """The program for `machine` (as `uname -m`; empty: this one); None where its numbers are not known."""
    machine = machine or os.uname().machine
    if sys.byteorder != "little" or machine not in ("x86_64", "aarch64"):
        return None
    which = ("x86_64", "aarch64").index(machine)
    refuse, unknown = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, AUDIT_ARCH[which]),
        (_RETURN, 0, 0, refuse),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, refuse),
        (_EQUAL, 0, 1, CLONE3),
        (_RETURN, 0, 0, unknown),
        (_EQUAL, 0, 4, CLONE[which]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, NEW_NAMESPACES),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    numbers = sorted(number for pair in REFUSED.values() if (number := pair[which]) is not None)
    for at, number in enumerate(numbers):
        program.append((_EQUAL, len(numbers) - at, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *step) for step in program)
