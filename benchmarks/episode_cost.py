"""Where the milliseconds of one micro-SWE episode go: each step's wall and processor time, then episodes a minute.

    python -m benchmarks.episode_cost [--sandbox docker|embedded] [--episodes 48] [--at-once 8]

No model: every episode views the buggy file, repairs it with str_replace, submits, and must be graded 1. Processor time
is that of this process and everything it starts (a control group; with Docker the engine's containers are not in it),
so other work on the machine changes it little; wall time it changes much. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data.micro_swe import bug_site, task
from envs.environment import ToolCall
from envs.sandbox import BackendUnavailable, SandboxBackend, SandboxSpec, make_backend
from envs.swe import SWEEnvironment
from envs.tools import ToolSet


class Meter:
    """Processor time of a control group of our own; wall time alone where none can be made."""

    def __init__(self) -> None:
        self._usage: Path | None = None
        for root, name in ((Path("/sys/fs/cgroup/cpuacct"), "cpuacct.usage"), (Path("/sys/fs/cgroup"), "cpu.stat")):
            folder = root / f"episode-cost-{os.getpid()}"
            with contextlib.suppress(OSError):
                if (root / "cgroup.procs").exists():
                    folder.mkdir()
                    (folder / "cgroup.procs").write_text(str(os.getpid()))
                    self._usage = folder / name
                    break

    def milliseconds(self) -> float:
        if self._usage is None:
            return float("nan")
        text = self._usage.read_text()
        return int(text.split()[1]) / 1e3 if text.startswith("usage_usec") else int(text) / 1e6

    def close(self) -> None:
        if self._usage is not None:
            with contextlib.suppress(OSError):
                (self._usage.parent.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._usage.parent.rmdir()


class Steps:
    """Wall and processor milliseconds by step, one episode at a time."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.wall: dict[str, list[float]] = collections.defaultdict(list)
        self.processor: dict[str, list[float]] = collections.defaultdict(list)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began, used = time.perf_counter(), self.meter.milliseconds()
        yield
        self.wall[name].append(1000 * (time.perf_counter() - began))
        self.processor[name].append(self.meter.milliseconds() - used)

    def watch(self, owner: type, method: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(inner)
        async def watched(*words: Any, **named: Any) -> Any:
            with self.step(name):
                return await inner(*words, **named)

        setattr(owner, method, watched)


async def episode(backend: SandboxBackend, index: int) -> None:
    what = task("train", index)
    site = bug_site(what)
    environment = SWEEnvironment(what, backend, ToolSet())
    try:
        await environment.reset()
        edit = {"path": site.path, "old_str": site.old_line, "new_str": site.fixed_line}
        for name, arguments in (("view", {"path": site.path}), ("str_replace", edit)):
            seen = await environment.step(ToolCall(name, arguments))
            if seen.error is not None:
                raise RuntimeError(f"task {index}: {name}: {seen.text}")
        grade = await environment.grade()
        if grade.reward != 1.0:
            raise RuntimeError(f"task {index}: the fix was graded {grade.reward}: {grade.detail}")
    finally:
        await environment.close()


async def measure(backend: SandboxBackend, meter: Meter, episodes: int, at_once: int) -> tuple[Steps, dict[str, Any]]:
    try:
        probe = await backend.start(SandboxSpec())
        await probe.close()
        steps = Steps(meter)
        kind, todo = type(probe), iter(range(episodes))
        originals: list[tuple[type, str, Any]] = [
            (kind, name, getattr(kind, name)) for name in ("exec", "put", "put_tar", "get", "close")
        ]
        originals.append((type(backend), "start", type(backend).start))
        for owner, name, _ in originals:
            steps.watch(owner, name, name)
        for index in range(max(4, episodes // 4)):
            with steps.step("whole episode"):
                await episode(backend, index)
        for owner, name, original in originals:
            setattr(owner, name, original)

        async def work() -> None:
            for index in todo:
                await episode(backend, index)

        began, used = time.perf_counter(), meter.milliseconds()
        await asyncio.gather(*(work() for _ in range(at_once)))
        seconds = time.perf_counter() - began
    finally:
        await backend.close()
    return steps, {
        "sandbox": backend.name,
        "episodes": episodes,
        "at_once": at_once,
        "episodes_per_min": round(60 * episodes / seconds, 1),
        "processor_ms_per_episode": round((meter.milliseconds() - used) / episodes, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", choices=("docker", "embedded"), default="embedded")
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    try:
        backend = make_backend(arguments.sandbox, "episode-cost")
    except BackendUnavailable as error:
        console.print(str(error))
        return 3
    meter = Meter()
    try:
        steps, facts = asyncio.run(measure(backend, meter, arguments.episodes, arguments.at_once))
    finally:
        meter.close()
    table = Table("step", "times an episode", "wall ms", "processor ms", box=None)
    whole = len(steps.wall["whole episode"])
    for name, walls in sorted(steps.wall.items(), key=lambda each: -sum(each[1])):
        spent = statistics.median(steps.processor[name])
        table.add_row(name, f"{len(walls) / whole:.1f}", f"{statistics.median(walls):.1f}", f"{spent:.1f}")
    console.print(table)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
