"""Make tasks of real projects (data/real_tasks/tasks.toml): a release of each, with the fix of one bug taken back.

python scripts/real_task.py --list
python scripts/real_task.py --out build/real --sandbox docker
python scripts/real_task.py --task more-itertools-last --sandbox embedded
python scripts/real_task.py --format swebench --out build/real-swebench

The releases and the wheels of the test runner are downloaded on this machine, sandboxes stay offline. Rows are for
`sao rollout --tasks`; with --format swebench they are in SWE-bench's own format, for `sao eval swebench --rows`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from data.real_task import DownloadFailed, RealTask, choose
from data.task import Task, TaskError
from envs.environment import EnvironmentFault
from envs.sandbox import KINDS, SandboxBackend, SandboxError, make_backend
from envs.swe.real import RunnerMissing, make_real_task
from eval.errors import EvalError


async def _make(arguments: argparse.Namespace, real: RealTask, backend: SandboxBackend) -> Task:
    out = arguments.out / "rows.jsonl"
    if arguments.format == "sao":
        return (await make_real_task(real, out, arguments.cache, backend))[0]
    from eval.swebench.make import make_real_row
    from eval.swebench.official import Harness

    async with Harness() as harness:
        return await make_real_row(real, out, arguments.cache, backend, harness)


async def _run(arguments: argparse.Namespace) -> None:
    tasks = choose(arguments.task)
    backend = make_backend(arguments.sandbox, "real-task")
    try:
        for real in tasks:
            try:
                task = await _make(arguments, real, backend)
            except RunnerMissing as error:
                if arguments.task:
                    raise
                print(f"left out: {error}", file=sys.stderr)
                continue
            lists = ", ".join(f"{len(task.row[key])} {key}" for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
            place = task.row["image"] or "any image"
            print(f"{arguments.out / 'rows.jsonl'}: {task.task_id} ({real.runner}, {place}): {lists}")
    finally:
        await backend.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say which there are, and end")
    parser.add_argument("--task", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--format", choices=("sao", "swebench"), default="sao", help="of the rows")
    parser.add_argument("--out", type=Path, default=Path("build/real"), help="folder for rows.jsonl and the bundles")
    parser.add_argument("--cache", type=Path, default=Path("build/cache"), help="keeps what was downloaded")
    parser.add_argument("--sandbox", choices=KINDS, default="auto", help="where the tests are run")
    arguments = parser.parse_args()
    try:
        if arguments.list:
            for real in choose(arguments.task):
                what = f"{real.package} {real.base.version} ({real.licence}), {real.what}; {real.runner}"
                print(f"{real.instance_id}: {what}")
            return 0
        asyncio.run(_run(arguments))
    except (DownloadFailed, TaskError, EnvironmentFault, SandboxError, EvalError) as error:
        print(f"real_task: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
