"""Make the real task (more-itertools, one fix reverted): a rows file and its bundle.

python scripts/real_task.py --out build/real --cache build/cache --sandbox auto
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from data import real_task
from data.task import Task, TaskError
from envs.environment import EnvironmentFault
from envs.sandbox import KINDS, SandboxBackend, SandboxError, make_backend
from envs.swe.packing import pack_task


async def make(out: Path, cache: Path, backend: SandboxBackend) -> Task:
    """Rows file `out`/rows.jsonl with the bundle beside it; the test lists are measured in real sandboxes."""
    archive = await asyncio.to_thread(real_task.download, cache)
    with tempfile.TemporaryDirectory(prefix="sao-real-") as folder:
        repository = await asyncio.to_thread(real_task.build_repository, archive, Path(folder) / "more-itertools")
        task, _ = await pack_task(
            repository.folder,
            base=repository.base,
            fix=real_task.PATCH,
            tests=real_task.TESTS,
            test_command=real_task.TEST_COMMAND,
            problem_statement=real_task.PROBLEM,
            out=out / "rows.jsonl",
            backend=backend,
            instance_id=real_task.INSTANCE_ID,
        )
    return task


async def _run(arguments: argparse.Namespace) -> None:
    backend = make_backend(arguments.sandbox, "real-task")
    try:
        task = await make(arguments.out, arguments.cache, backend)
    finally:
        await backend.close()
    lists = {key: len(task.row[key]) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    print(f"{arguments.out / 'rows.jsonl'}: {task.task_id}, {lists}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/real"), help="folder for rows.jsonl and the bundle")
    parser.add_argument("--cache", type=Path, default=Path("build/cache"), help="keeps the downloaded archive")
    parser.add_argument("--sandbox", choices=KINDS, default="auto", help="where the tests are run")
    try:
        asyncio.run(_run(parser.parse_args()))
    except (real_task.DownloadFailed, TaskError, EnvironmentFault, SandboxError) as error:
        print(f"real_task: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
