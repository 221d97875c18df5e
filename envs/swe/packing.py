"""A user's repository to a finished row: pack (data.pack), measure the test lists in a sandbox, append the row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.clone import submodules_of, top_of
from data.pack import append_row, pack
from data.task import Task, TaskError
from envs.sandbox.contract import SandboxBackend
from envs.swe.environment import SweLimits
from envs.swe.validate import TestLists, measure, with_lists


async def pack_task(
    repo: Path,
    *,
    base: str,
    fix: str | Path,
    tests: Sequence[str],
    test_command: str,
    problem_statement: str,
    out: Path,
    backend: SandboxBackend,
    instance_id: str = "",
    log_parser: str = "",
    image: str = "",
    repo_dir: str = "/testbed",
    limits: SweLimits | None = None,
) -> tuple[Task, TestLists]:
    """See `data.pack.pack`. The row is appended only after its tests really ran without and with the fix."""
    draft = pack(
        repo,
        base=base,
        fix=fix,
        tests=tests,
        test_command=test_command,
        problem_statement=problem_statement,
        out=out,
        instance_id=instance_id,
        log_parser=log_parser,
        image=image,
        repo_dir=repo_dir,
    )
    try:
        lists = await measure(draft, backend, limits=limits)
    except TaskError as error:
        if not (names := submodules_of(top_of(repo), draft.row["base_commit"])):
            raise
        raise TaskError(
            f"{error}\nThe repository has submodules ({', '.join(names[:3])}): their folders are empty in a sandbox. "
            "Where the tests need them, commit their files as plain files on a branch of your own and pack that"
        ) from error
    task = with_lists(draft, lists)
    append_row(out, task.row)
    return task, lists
