"""`sao eval`: score a model on held-out micro-SWE tasks. The same sandboxes, prompt and limits as in training."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agent.fleet import EpisodeFinished, Event
from agent.presets import load_preset
from agent.renderers.choose import renderer_for
from agent.renderers.plain import PlainRenderer
from agent.tokenizer import load_tokenizer
from data.loaders import load_tasks
from data.log import TrajectoryLog
from data.trajectory import Trajectory
from eval.heldout import HeldoutScore, score
from sao.assemble import backend_of, check_tasks, environments_of
from sao.config import Config
from sao.endpoint import actor_of, checked, is_endpoint
from sao.inherited import inherited, warn
from sao.train_rollouts import fleet_settings


def evaluate(
    config: Config,
    console: Console,
    *,
    model: Path,
    tokenizer: Path,
    split: str,
    tasks: int,
    temperature: float,
    log: Path | None = None,
) -> HeldoutScore:
    """Each of the first `tasks` tasks of `split` once. `log`: directory that takes the trajectories."""
    return asyncio.run(_evaluate(config, console, model, tokenizer, split, tasks, temperature, log))


async def _evaluate(
    config: Config,
    console: Console,
    model: Path,
    tokenizer: Path,
    split: str,
    count: int,
    temperature: float,
    log_path: Path | None,
) -> HeldoutScore:
    if is_endpoint(config):  # before a download of tasks
        checked(config)
    preset = load_preset(config.agent.preset)
    tasks = load_tasks(config.tasks.name, split, config.tasks.path or None, limit=count)
    check_tasks(tasks)
    warn(
        console,
        inherited(config, preset, model),
    )
    backend = await backend_of(config, f"eval-{split}")
    log = TrajectoryLog(log_path).open() if log_path is not None else None
    try:
        await backend.reap()
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            bar = progress.add_task(f"{split}, T = {temperature:g}", total=len(tasks))

            def observe(event: Event) -> None:
                if isinstance(event, EpisodeFinished):
                    progress.update(bar, advance=event.trajectory.outcome.reward is not None)

            def keep(trajectory: Trajectory) -> None:
                if log is not None:
                    log.append(trajectory)

            shown = PlainRenderer(load_tokenizer(tokenizer))
            settings = replace(fleet_settings(config, f"eval-{split}", backend.name), run_seed=config.rollout.seed + 1)
            async with actor_of(
                config, preset, model, lineage=model.name, temperature=temperature, say=console.print
            ) as policy:
                result, _ = await score(
                    policy,
                    shown if is_endpoint(config) else renderer_for(shown.tokenizer, thinking=preset.thinking),
                    preset,
                    environments_of(config, preset, backend),
                    tasks,
                    settings,
                    keep=keep,
                    observer=observe,
                )
        return result
    finally:
        if log is not None:
            log.close()
        await backend.close()


def show(console: Console, rows: list[tuple[str, HeldoutScore]]) -> None:
    table = Table("what", "passed", "rate", "95 % (Wilson)", "T", "not graded", box=None)
    for name, result in rows:
        low, high = result.interval
        table.add_row(
            name,
            f"{result.passed}/{result.graded}",
            f"{result.rate:.3f}",
            f"[{low:.3f}, {high:.3f}]",
            f"{result.temperature:g}",
            str(result.ungraded),
        )
    console.print(table)
