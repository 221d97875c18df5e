"""Make the real task (more-itertools, one fix reverted): a rows file and its bundle.

python scripts/real_task.py --out build/real --cache build/cache --sandbox auto
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from data.real_task import DownloadFailed
from data.task import TaskError
from envs.environment import EnvironmentFault
from envs.sandbox import KINDS, SandboxError, make_backend
from envs.swe.real import make_real_task


async def _run(arguments: argparse.Namespace) -> None:
    backend = make_backend(arguments.sandbox, "real-task")
    try:
        task, _ = await make_real_task(arguments.out / "rows.jsonl", arguments.cache, backend)
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
    except (DownloadFailed, TaskError, EnvironmentFault, SandboxError) as error:
        print(f"real_task: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
