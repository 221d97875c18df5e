"""What sandboxes cost: a command, a start, a take from the warm pool, and 64 of them at once.

    python -m benchmarks.sandbox [--quick] [--sandbox docker|embedded] [--at-once 64]

Times are wall times on this machine as it is; other work on it makes them larger. `docker exec` is the command-line
client's, as public harnesses use it. A cold start and a take from the pool are both `start` of a spec, until the
sandbox is in the caller's hands; `pool_first_command_p50_ms` adds its first answered command. Memory is the
proportional share (PSS) of everything the 64 sandboxes run, the engine's process for each of them included. The last
line is one JSON object. Exit code 1 when anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psutil
from rich.console import Console
from rich.table import Table

from envs.sandbox import BackendUnavailable, Sandbox, SandboxBackend, SandboxError, SandboxLimits, SandboxSpec
from envs.sandbox.backends import every_backend
from envs.sandbox.pool import PoolSettings, SandboxPool

T = TypeVar("T")
SPEC = SandboxSpec(limits=SandboxLimits(memory_bytes=256 << 20), deadline_s=900)
WORK = ("echo hi", "printf abc >f && cat f", "ls / | wc -l", "exit 3")
"""What the sandboxes run when many are at once: no heavy program, so the figure is the channel's."""

DAEMONS = "(trap '' TERM HUP; setsid sh -c 'sleep 300 & (sleep 301 &)' &) ; echo partial; sleep 60"


class Bench:
    def __init__(self, backend: SandboxBackend, quick: bool, console: Console) -> None:
        self.backend, self.quick, self.console = backend, quick, console
        self.failures: list[str] = []

    async def timed(self, work: Callable[[], Awaitable[T]]) -> tuple[float, T]:
        began = time.perf_counter()
        result = await work()
        return 1000 * (time.perf_counter() - began), result

    async def command(self, sandbox: Sandbox, command: str) -> float:
        took, result = await self.timed(lambda: sandbox.exec(command, timeout_s=120))
        expected = 3 if command == "exit 3" else 0
        if result.timed_out or result.exit_code != expected:
            self.failures.append(f"{command!r}: exit code {result.exit_code}: {result.text[-200:]}")
        return took

    async def exec(self) -> dict[str, Any]:
        async with await self.backend.start(SPEC) as sandbox:
            for _ in range(20):
                await self.command(sandbox, "echo hi")
            times = [await self.command(sandbox, "echo hi") for _ in range(300 if self.quick else 3000)]
            facts: dict[str, Any] = {"exec_p50_ms": percentile(times, 50), "exec_p99_ms": percentile(times, 99)}
            docker = []
            if self.backend.name == "docker" and shutil.which("docker"):
                docker = [docker_exec(sandbox.sandbox_id) for _ in range(5 if self.quick else 20)]
        slow = statistics.median(docker) if docker else None
        facts["docker_exec_p50_ms"] = slow
        facts["exec_speedup_vs_docker_exec"] = None if slow is None else slow / facts["exec_p50_ms"]
        return facts

    async def time_outs(self) -> dict[str, Any]:
        """How late a command that leaves daemons behind is ended, and how soon the next one is answered."""
        late, after = [], []
        async with await self.backend.start(SPEC) as sandbox:
            await sandbox.exec("true")
            for _ in range(5 if self.quick else 30):
                took, result = await self.timed(lambda: sandbox.exec(DAEMONS, timeout_s=0.2))
                if not result.timed_out or result.output != b"partial\n":
                    self.failures.append(f"time-out: {result}")
                late.append(took - 200)
                after.append(await self.command(sandbox, "echo hi"))
        return {
            "timeout_late_p50_ms": percentile(late, 50),
            "after_timeout_p50_ms": percentile(after, 50),
            "after_timeout_max_ms": max(after),
        }

    async def starts(self) -> dict[str, Any]:
        cold, stops = [], []
        for _ in range(4 if self.quick else 20):
            took, sandbox = await self.timed(lambda: self.backend.start(SPEC))
            cold.append(took)
            took, _ = await self.timed(sandbox.close)
            stops.append(took)
        takes, firsts = [], []
        pool = SandboxPool(self.backend, PoolSettings(ready=8))
        for _ in range(2 if self.quick else 8):
            await pool.fill(SPEC)
            taken = []
            for _ in range(8):
                took, sandbox = await self.timed(lambda: pool.start(SPEC))
                takes.append(took)
                firsts.append(took + await self.command(sandbox, "echo hi"))
                taken.append(sandbox)
            await asyncio.gather(*(sandbox.close() for sandbox in taken))
        await pool.empty()
        facts = {
            "cold_start_p50_ms": percentile(cold, 50),
            "cold_start_max_ms": max(cold),
            "stop_p50_ms": percentile(stops, 50),
            "pool_p50_ms": percentile(takes, 50),
            "pool_p99_ms": percentile(takes, 99),
            "pool_first_command_p50_ms": percentile(firsts, 50),
        }
        facts["pool_speedup_vs_cold_start"] = facts["cold_start_p50_ms"] / facts["pool_p50_ms"]
        return facts

    async def many(self, count: int) -> dict[str, Any]:
        """`count` sandboxes at once, each with one command after the other; then all ended."""
        seconds = 6 if self.quick else 30
        times: list[float] = []
        began = time.perf_counter()
        started = await asyncio.gather(*(self.backend.start(SPEC) for _ in range(count)), return_exceptions=True)
        up_s = time.perf_counter() - began
        self.failures += [f"start: {error}" for error in started if isinstance(error, BaseException)]
        sandboxes = [one for one in started if isinstance(one, Sandbox)]
        before = len(self.failures)

        async def work(sandbox: Sandbox) -> None:
            try:
                for command in itertools.cycle(WORK):
                    times.append(await self.command(sandbox, command))
                    if time.perf_counter() - began > seconds:
                        break
            except SandboxError as error:
                self.failures.append(f"{sandbox.sandbox_id}: {error}")

        watch = asyncio.create_task(peak_memory(self.backend.name))
        began = time.perf_counter()  # also what `work` looks at
        await asyncio.gather(*map(work, sandboxes))
        busy_s = time.perf_counter() - began
        watch.cancel()
        memory = await watch
        began = time.perf_counter()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        return {
            "at_once": len(sandboxes),
            "at_once_start_s": up_s,
            "at_once_stop_s": time.perf_counter() - began,
            "commands": len(times),
            "commands_failed": len(self.failures) - before,
            "commands_per_s": len(times) / busy_s,
            "at_once_exec_p50_ms": percentile(times, 50),
            "at_once_exec_p99_ms": percentile(times, 99),
            "peak_memory_mib": memory,
            "driver_memory_mib": psutil.Process().memory_info().rss / 2**20,
        }


def docker_exec(name: str) -> float:
    began = time.perf_counter()
    subprocess.run(["docker", "exec", name, "sh", "-c", "echo hi"], check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - began)


def percentile(values: Sequence[float], rank: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[rank - 1] if len(values) > 1 else values[0]


async def peak_memory(kind: str) -> float:
    """MiB of the sandboxes' processes, the largest of what is seen until cancelled."""
    peak = await asyncio.to_thread(memory_now, kind)
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(2.0)
            peak = max(peak, await asyncio.to_thread(memory_now, kind))
    return peak


def memory_now(kind: str) -> float:
    """Everything below the engine's process for each container; with the embedded sandbox, everything below us."""
    below: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["ppid", "name"]):
        below.setdefault(process.info["ppid"], []).append(process)
    if kind == "docker":
        queue = [one for some in below.values() for one in some if one.info["name"].startswith("containerd-shim")]
    else:
        queue = list(below.get(os.getpid(), ()))
    total = 0
    while queue:
        process = queue.pop()
        queue += below.get(process.pid, ())
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                total += process.memory_full_info().pss
            except psutil.AccessDenied:  # another user's: its whole resident size, shared pages and all
                total += process.memory_info().rss
    return total / 2**20


async def measure(backend: SandboxBackend, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    bench = Bench(backend, arguments.quick, console)
    facts: dict[str, Any] = {"sandbox": backend.name, "quick": arguments.quick}
    began = time.perf_counter()
    try:
        parts = (
            ("commands", bench.exec),
            ("time-outs", bench.time_outs),
            ("starts", bench.starts),
            ("at once", lambda: bench.many(arguments.at_once)),
        )
        for name, part in parts:
            with console.status(f"{backend.name}: {name}"):
                facts |= await part()
        left = [found for found in await backend.survey() if found.run == backend.run_id]
        bench.failures += [f"left behind: {found.kind} {found.name}" for found in left if backend.name == "docker"]
    except SandboxError as error:
        bench.failures.append(f"{type(error).__name__}: {error}")
    finally:
        await backend.close()
    for failure in bench.failures[:20]:
        console.print(f"[red]{failure}[/red]")
    return {**facts, "failures": len(bench.failures), "seconds": time.perf_counter() - began}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer of everything: under 50 s")
    parser.add_argument("--sandbox", choices=("docker", "embedded"), help="default: docker where an engine answers")
    parser.add_argument("--at-once", type=int, default=64, help="sandboxes in the last part")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    chosen = None
    for kind, backend in every_backend("benchmark"):
        if isinstance(backend, BackendUnavailable):
            console.print(f"{kind}: {backend}")
        elif chosen is None and arguments.sandbox in (None, kind):
            chosen = backend
    if chosen is None:
        return 3
    facts = asyncio.run(measure(chosen, arguments, console))
    table = Table("figure", "value", box=None)
    for name, value in facts.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else str(value))
    console.print(table)
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}))
    return int(facts["failures"] > 0)


if __name__ == "__main__":
    sys.exit(main())
