"""The doctor's real try: a sandbox is started, and its promises are put to the test."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable

from envs.sandbox import BackendUnavailable, OutOfMemory, SandboxError, SandboxLimits, SandboxSpec, make_backend
from envs.sandbox.contract import Sandbox, SandboxBackend
from sao.doctor_finding import Finding

Attempt = Callable[[Sandbox], Awaitable[str]]
"""What is wrong; empty when the promise holds."""

_SPEC = SandboxSpec(
    limits=SandboxLimits(memory_bytes=96 << 20, pids=64, disk_bytes=32 << 20, nofile=256), deadline_s=120.0
)
_NEXT_S = 0.5
"""A command after a time-out should be back by then also on a busy machine; the promise is 0.1 s."""


def try_out(kind: str) -> list[Finding]:
    """Findings of one backend; none where it is not to be had (another check says why)."""
    logging.getLogger("envs.sandbox.backends").setLevel(logging.ERROR)
    return asyncio.run(_try(kind))


async def _try(kind: str) -> list[Finding]:
    try:
        backend = await asyncio.to_thread(make_backend, kind, f"doctor-{os.getpid()}")
    except BackendUnavailable:
        return []
    try:
        return [await _start(kind, backend), *[await _one(kind, backend, *row) for row in _TRIES]]
    finally:
        await backend.close()


async def _start(kind: str, backend: SandboxBackend) -> Finding:
    began = time.perf_counter()
    try:
        async with await backend.start(_SPEC) as sandbox:
            started = time.perf_counter()
            await sandbox.exec("true")
            told = f"starts in {started - began:.2f} s, a command takes {(time.perf_counter() - started) * 1000:.1f} ms"
            return Finding("ok", f"try {kind}", told)
    except SandboxError as error:
        return Finding("fail", f"try {kind}", str(error), "no sandbox of this kind runs here", f"{kind} sandboxes")


async def _network(sandbox: Sandbox) -> str:
    seen = (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")).text.split()
    return "" if set(seen) <= {"lo"} else f"network devices are seen inside: {' '.join(seen)}"


async def _memory(sandbox: Sandbox) -> str:
    command = "head -c 400000000 /dev/zero | tail -c 390000000 >/dev/null"  # tail holds it all
    try:
        result = await sandbox.exec(command, timeout_s=30)
    except OutOfMemory:
        return ""
    return "" if result.exit_code != 0 else "a command used four times its memory limit"


async def _processes(sandbox: Sandbox) -> str:
    command = "i=0; while [ $i -lt 200 ]; do sleep 20 & i=$((i + 1)); done; ls -d /proc/[0-9]* | wc -l"
    result = await sandbox.exec(command, timeout_s=30)
    count = result.text.split()[-1:]
    return (
        ""
        if not (count and count[0].isdigit() and int(count[0]) > 100)
        else f"{count[0]} processes beside a limit of 64"
    )


async def _time_out(sandbox: Sandbox) -> str:
    result = await sandbox.exec("(setsid sh -c 'trap \"\" TERM; sleep 98.7' &) ; sleep 100", timeout_s=0.5)
    began = time.perf_counter()
    left = await sandbox.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep [9]8.7'")
    if not result.timed_out or left.text.strip() != "0":
        return f"after a time-out {left.text.strip()} processes lived on"
    took = time.perf_counter() - began
    return "" if took < _NEXT_S else f"the command after a time-out took {took:.2f} s"


async def _files(sandbox: Sandbox) -> str:
    result = await sandbox.exec("head -c 50000000 /dev/zero >big; stat -c %s big", timeout_s=30)
    size = result.text.split()[-1:]
    return "" if size and size[0].isdigit() and int(size[0]) <= _SPEC.limits.disk_bytes else "a file outgrew its limit"


_TRIES = (
    ("network", "no network in a sandbox", _network),
    ("memory", "the memory limit", _memory),
    ("processes", "the limit on processes", _processes),
    ("time-outs", "after a time-out nothing lives on, and the next command answers at once", _time_out),
    ("files", "the limit on the size of files", _files),
)


async def _one(kind: str, backend: SandboxBackend, what: str, promise: str, attempt: Attempt) -> Finding:
    try:
        async with await backend.start(_SPEC) as sandbox:
            fault = await attempt(sandbox)
    except SandboxError as error:
        return Finding("fail", f"try {kind}", f"{what}: {error}", loses=promise)
    if fault:
        return Finding("fail", f"try {kind}", f"{what}: {fault}", loses=promise)
    return Finding("ok", f"try {kind}", f"{what}: kept ({promise})")
