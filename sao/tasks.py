"""`sao tasks`: look at tasks, pack your own repository into a row, check that a task tells right from wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.syntax import Syntax
from rich.table import Table

from data.task import Task
from envs.swe import validate
from envs.swe.validate import TestLists
from sao.assemble import backend_of, tasks_of
from sao.config import Config
from sao.validated import remember


def show_tasks(config: Config, console: Console, count: int, with_fix: bool) -> None:
    """The first tasks: what the agent is told, and with `with_fix` what it is not."""
    tasks = tasks_of(config, count)
    for task in tasks:
        row = task.row
        console.rule(f"[bold]{escape(task.task_id)}[/bold]")
        console.print(str(row.get("problem_statement") or row["problem"]), markup=False, highlight=False)
        if task.kind == "maths":
            answer = f" · answer {row['answer']}" if with_fix else ""
            console.print(f"graded as {row['grading']}{answer}", style="dim", markup=False, highlight=False)
            continue
        if with_fix:
            console.print(Syntax(str(row.get("patch") or ""), "diff"))
        fail, keep = row.get("FAIL_TO_PASS", ()), row.get("PASS_TO_PASS", ())
        console.print(f"[dim]{len(fail)} tests must turn green, {len(keep)} must stay so[/dim]")


def validate_tasks(config: Config, console: Console, repeats: int, count: int | None) -> int:
    """Reference fix passes, doing nothing fails, repeats agree. Exit code 1 when a task is not usable."""
    return asyncio.run(_validate(config, console, tasks_of(config, count), repeats))


async def _validate(config: Config, console: Console, tasks: Sequence[Task], repeats: int) -> int:
    maths = [task for task in tasks if task.kind == "maths"]
    if maths:
        return await _validate_maths(console, maths)
    backend = await backend_of(config, "validate")
    table = Table("task", "reference fix", "nothing", "verdict", box=None)
    bad = 0
    gate = asyncio.Semaphore(config.rollout.concurrency)
    try:
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("validating", total=len(tasks))

            async def one(task: Task) -> tuple[Task, Sequence[str], float, float]:
                async with gate:
                    result = await validate(task, backend, repeats=repeats)
                progress.advance(bar)
                return task, result.problems, result.gold[0].reward, result.empty[0].reward

            checked = await asyncio.gather(*map(one, tasks))
            remember([(task, problems) for task, problems, _, _ in checked])
            for task, problems, gold, empty in checked:
                bad += bool(problems)
                verdict = f"[red]{escape('; '.join(problems))}[/red]" if problems else "[green]usable[/green]"
                table.add_row(escape(task.task_id), f"{gold:g}", f"{empty:g}", verdict)
    finally:
        await backend.close()
    console.print(table)
    console.print(f"{len(tasks) - bad} of {len(tasks)} usable ({backend.name} sandboxes, {repeats} runs each)")
    return 1 if bad else 0


async def _validate_maths(console: Console, tasks: Sequence[Task]) -> int:
    """Every reference answer is right by its own grader, and no answer is not."""
    from envs.maths.environment import reference_problem

    table = Table("task", "verdict", box=None)
    bad = 0
    with Progress(console=console, disable=not console.is_terminal) as progress:
        for task in progress.track(tasks, description="validating"):
            problem = await reference_problem(task)
            bad += bool(problem)
            table.add_row(escape(task.task_id), f"[red]{escape(problem)}[/red]" if problem else "[green]usable[/green]")
    console.print(table)
    console.print(f"{len(tasks) - bad} of {len(tasks)} usable")
    return 1 if bad else 0


def pack_task(
    config: Config,
    console: Console,
    *,
    repo: Path,
    base: str,
    fix: str | Path,
    tests: Sequence[str],
    test_command: str,
    problem: str,
    out: Path,
    image: str,
) -> int:
    """Pack a repository, its fix and its tests; the test lists are measured in a sandbox."""
    from envs.swe.packing import pack_task as pack

    async def work() -> tuple[Task, TestLists]:
        backend = await backend_of(config, "pack")
        try:
            return await pack(
                repo,
                base=base,
                fix=fix,
                tests=tests,
                test_command=test_command,
                problem_statement=problem,
                out=out,
                backend=backend,
                image=image,
            )
        finally:
            await backend.close()

    task, lists = asyncio.run(work())
    if lists.left_out:
        console.print(f"[yellow]{len(lists.left_out)} tests fail with the fix too: they are in neither list[/yellow]")
    fail, keep = task.row["FAIL_TO_PASS"], task.row["PASS_TO_PASS"]
    console.print(
        f"[green]{escape(task.task_id)}[/green]: {len(fail)} tests turn green with the fix, {len(keep)} stay green"
    )
    console.print(f"row in {out}; run it: sao rollout --tasks {out} --set agent.preset=default", highlight=False)
    return 0
