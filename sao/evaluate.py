"""`sao eval`: score a model on held-out micro-SWE tasks. The same sandboxes, prompt and limits as in training."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agent.fleet import EpisodeFinished, Event
from agent.presets import Preset, load_preset
from agent.renderers import Renderer
from agent.renderers.choose import renderer_for
from agent.renderers.plain import PlainRenderer
from agent.tokenizer import load_tokenizer
from data.loaders import load_tasks
from data.log import TrajectoryLog
from data.task import Task
from data.trajectory import Status, Trajectory
from eval.heldout import HeldoutScore, score
from sao.assemble import backend_of, check_tasks, copy_tokenizer, environments_of
from sao.config import Config
from sao.endpoint import actor_of, checked, is_endpoint
from sao.first_prompts import check_prompts
from sao.inherited import inherited, unreadable, warn
from sao.rundir import RunDir, open_run, shown_name, write_atomically
from sao.train_rollouts import fleet_settings


def evaluate_splits(
    config: Config, console: Console, *, model: Path, splits: Sequence[str], tasks: int, temperature: float
) -> list[tuple[str, HeldoutScore]]:
    """Every split's score, and a run folder of its own: configuration, tokenizer, log (for `sao replay`), report.json,
    scores.json (for `sao eval compare`). An evaluation that was stopped is not continued."""
    named = config.model_copy(
        update={
            "name": f"eval-{re.sub('[^A-Za-z0-9._-]+', '-', config.tasks.name)}",
            "model": config.model.model_copy(update={"path": str(model)}),
            "tasks": config.tasks.model_copy(update={"split": splits[0]}),
            "agent": config.agent.model_copy(update={"temperature": temperature}),
        }
    )
    ready = [prepared(config, console, model, model, split, tasks) for split in splits]
    folder = open_run(named, fresh=True)
    try:
        copy_tokenizer(model, folder.tokenizer)
        rows = []
        for split, one in zip(splits, ready, strict=True):
            result = evaluate(
                config,
                console,
                model=model,
                tokenizer=model,
                split=split,
                tasks=tasks,
                temperature=temperature,
                log=folder.log,
                run_id=f"{folder.path.name}-{split}",
                ready=one,
            )
            rows.append((split, result))
        _write_report(named, folder, rows)
    finally:
        folder.close()
    show(console, rows)
    console.print(
        f"report: {folder.path / 'report.json'}    look: sao replay {shown_name(folder.path)}",
        markup=False,
        highlight=False,
    )
    return rows


def _write_report(config: Config, folder: RunDir, rows: Sequence[tuple[str, HeldoutScore]]) -> None:
    what = {"suite": config.tasks.name, "model": config.model.path, "preset": config.agent.preset}
    splits = {name: result.to_dict() for name, result in rows}
    text = json.dumps({**what, "seed": config.rollout.seed + 1, "splits": splits}, indent=1)
    write_atomically(folder.path / "report.json", text + "\n")
    rewards = {
        one.identity.task_id: one.outcome.reward
        for one in TrajectoryLog(folder.log).read()
        if one.outcome.status is Status.GRADED
    }
    scores = {"name": folder.path.name, "suite": config.tasks.name, "scores": rewards}
    write_atomically(folder.path / "scores.json", json.dumps(scores) + "\n")
    folder.write_summary({"run": folder.path.name, "splits": splits})


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
    run_id: str = "",
    ready: Ready | None = None,
) -> HeldoutScore:
    """Each of the first `tasks` tasks of `split` once. `log`: directory that takes the trajectories; `run_id` begins
    their ids; `ready`: what `prepared` made before."""
    run_id = run_id or f"eval-{split}"
    ready = ready or prepared(config, console, model, tokenizer, split, tasks)
    return asyncio.run(_evaluate(config, console, model, ready, split, temperature, log, run_id))


@dataclass(frozen=True)
class Ready:
    preset: Preset
    tasks: Sequence[Task]
    renderer: Renderer


def prepared(config: Config, console: Console, model: Path, tokenizer: Path, split: str, count: int) -> Ready:
    """Everything that can be wrong with the user's input, before a folder is made. Raises UserError, TaskError,
    PresetError, TokenizerError."""
    if is_endpoint(config):  # before a download of tasks
        checked(config)
    preset = load_preset(config.agent.preset)
    tasks = load_tasks(config.tasks.name, split, config.tasks.path or None, limit=count)
    check_tasks(tasks)
    shown = PlainRenderer(load_tokenizer(tokenizer))
    renderer = shown if is_endpoint(config) else renderer_for(shown.tokenizer, thinking=preset.thinking)
    warn(console, inherited(config, preset, model))
    warn(console, unreadable(config, model))
    warn(console, check_prompts(config, preset, model, renderer, tasks))
    return Ready(preset, tasks, renderer)


async def _evaluate(
    config: Config,
    console: Console,
    model: Path,
    ready: Ready,
    split: str,
    temperature: float,
    log_path: Path | None,
    run_id: str,
) -> HeldoutScore:
    preset, tasks, renderer = ready.preset, ready.tasks, ready.renderer
    backend = await backend_of(config, run_id)
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

            settings = replace(fleet_settings(config, run_id, backend.name), run_seed=config.rollout.seed + 1)
            async with actor_of(
                config, preset, model, lineage=model.name, temperature=temperature, say=console.print
            ) as policy:
                result, _ = await score(
                    policy,
                    renderer,
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
            escape(name),
            f"{result.passed}/{result.graded}",
            f"{result.rate:.3f}",
            f"[{low:.3f}, {high:.3f}]",
            f"{result.temperature:g}",
            str(result.ungraded),
        )
    console.print(table)
