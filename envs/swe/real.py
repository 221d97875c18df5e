"""A real task (data.real_task) made: its repository and its runner where sandboxes find them, its lists measured.

With Docker a task whose runner is no part of python3 gets an image of its own, made here. The embedded sandbox has what
this machine's /usr has: a runner that is missing there is refused before anything is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.real_task import RealRepository, RealTask, build_repository, download_wheels
from data.task import Task, TaskError
from envs.images.local import make_task_image
from envs.sandbox import SandboxBackend, SandboxSpec
from envs.sandbox.docker_engine import Engine
from envs.swe.packing import TestLists, pack_task


class RunnerMissing(TaskError):
    """The sandbox has no such test runner; other tasks may run there."""


@dataclass(frozen=True)
class PreparedReal:
    repository: RealRepository
    image: str
    """Empty: no image of its own is needed."""


@contextlib.asynccontextmanager
async def prepared_real(
    real: RealTask, cache: Path, backend: SandboxBackend, *, own_image: bool
) -> AsyncIterator[PreparedReal]:
    """Repository, image and runner, checked; the repository is gone afterwards. `own_image`: also where the base image
    has all that the runner needs. Raises DownloadFailed, RunnerMissing, SandboxError."""
    image = ""
    with tempfile.TemporaryDirectory(prefix="sao-real-") as folder:
        repository = await asyncio.to_thread(build_repository, real, cache, Path(folder) / real.package)
        if backend.name != "embedded" and (own_image or real.requirements):
            image = await make_real_image(real, repository.folder, repository.base, cache)
        await check_runner(real, backend, image)
        yield PreparedReal(repository, image)


async def make_real_task(real: RealTask, out: Path, cache: Path, backend: SandboxBackend) -> tuple[Task, TestLists]:
    """Writes a row into the rows file `out` with the bundle beside it; `cache` keeps what was downloaded.

    Raises DownloadFailed, TaskError, EnvironmentFault, SandboxError."""
    async with prepared_real(real, cache, backend, own_image=False) as made:
        return await pack_task(
            made.repository.folder,
            base=made.repository.base,
            fix=made.repository.fix,
            tests=real.tests,
            test_command=real.test_command,
            problem_statement=real.problem,
            out=out,
            backend=backend,
            instance_id=real.instance_id,
            image=made.image,
        )


async def make_real_image(real: RealTask, repository: Path, base: str, cache: Path) -> str:
    """The task's image on the engine of the environment: the repository at `base`, and the runner from wheels.

    Raises DownloadFailed, SandboxError."""
    wheels = await asyncio.to_thread(download_wheels, real.requirements, cache)

    def make(api: Any) -> str:
        return make_task_image(api, f"sao-real/{real.instance_id}:latest", repository, base, wheels=wheels)

    with Engine() as engine:
        return await engine.call(make)


async def check_runner(real: RealTask, backend: SandboxBackend, image: str = "") -> None:
    """Raises RunnerMissing where the sandbox's python3 has no such runner."""
    spec = SandboxSpec(image=image) if image else SandboxSpec()
    async with await backend.start(spec) as sandbox:
        found = await sandbox.exec(f"python3 -c 'import {real.runner}'", timeout_s=60.0)
    if found.exit_code != 0:
        raise RunnerMissing(
            f"task {real.instance_id} is run by {real.runner}, and python3 of the {backend.name} sandbox has none. Use "
            "--sandbox docker, where an image is made that has it, or install it for this machine's /usr/bin/python3 "
            f"(Debian: apt-get install python3-{real.runner})"
        )
