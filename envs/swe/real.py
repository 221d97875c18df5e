"""The real task made: more-itertools with one fix taken back, its test lists measured in real sandboxes."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from data import real_task
from data.task import Task
from envs.sandbox import SandboxBackend
from envs.swe.packing import TestLists, pack_task


async def make_real_task(out: Path, cache: Path, backend: SandboxBackend) -> tuple[Task, TestLists]:
    """Writes rows file `out` with the bundle beside it; `cache` keeps the downloaded archive.

    Raises DownloadFailed, TaskError, EnvironmentFault, SandboxError."""
    archive = await asyncio.to_thread(real_task.download, cache)
    with tempfile.TemporaryDirectory(prefix="sao-real-") as folder:
        repository = await asyncio.to_thread(real_task.build_repository, archive, Path(folder) / "more-itertools")
        return await pack_task(
            repository.folder,
            base=repository.base,
            fix=real_task.PATCH,
            tests=real_task.TESTS,
            test_command=real_task.TEST_COMMAND,
            problem_statement=real_task.PROBLEM,
            out=out,
            backend=backend,
            instance_id=real_task.INSTANCE_ID,
        )
