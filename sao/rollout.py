"""`sao rollout`: runs a plan of draws and leaves every finished trajectory in the run's log.

The log is the truth: what it holds is not run again, so a killed run goes on where it was. Faults of the
infrastructure are tried again and never count as failures of the policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import reprlib
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.episode import TurnReport
from agent.fleet import (
    EpisodeFinished,
    EpisodeRetried,
    EpisodeStarted,
    Event,
    Fleet,
    FleetReport,
    FleetSettings,
    Resume,
    Stop,
    plan_draws,
)
from agent.presets import Preset
from agent.pulse import Stall
from data.journal import DISPATCHED, FINISHED, RETRIED, Journal
from data.log import TrajectoryLog
from data.reading import read_object
from data.task import Task
from data.trajectory import Status, Trajectory
from envs.environment import Environment
from envs.sandbox import SandboxBackend
from eval.statistics import wilson_interval
from sao.assemble import Parts, backend_of, check_tasks, copy_tokenizer, environments_of, parts_of, tasks_of
from sao.backend import ready_sandboxes
from sao.config import Config
from sao.endpoint import actor_of
from sao.engine import SERVING
from sao.first_prompts import prompts_of, prompts_of_plan
from sao.guard import warn_of_benchmark
from sao.images import fetch_for_run
from sao.inherited import inherited, unreadable, warn
from sao.paths import UserError, model_folder
from sao.rundir import RunDir, open_run, shown_name
from sao.validated import unvalidated
from sao.view import RolloutView, Tally


def rollout(config: Config, console: Console, *, run: str | None = None, fresh: bool = False) -> int:
    """Run the plan to its end. Exit code 0; 1 when draws were given up or the run was stopped before its end."""
    parts = parts_of(config)
    warn_of_benchmark(parts.tasks, console)
    warn(console, inherited(config, parts.preset))
    warn(console, unreadable(config))
    warn(console, unvalidated(config, parts.tasks))
    warn(console, prompts_of(config, parts))
    folder = open_run(config, run, fresh=fresh, origin=parts.origin)
    try:
        copy_tokenizer(parts.folder, folder.tokenizer)
        return asyncio.run(play(config, console, folder, parts))
    finally:
        folder.close()


async def play(
    config: Config,
    console: Console,
    folder: RunDir,
    parts: Parts,
    environments: Callable[[Config, Preset, SandboxBackend], Callable[[Task], Environment]] = environments_of,
) -> int:
    """The plan's episodes into the open run folder; exit code as `rollout`."""
    began = time.monotonic()
    await fetch_for_run(config, parts.tasks, console)
    backend = await backend_of(config, folder.path.name)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.close)
        log = stack.enter_context(TrajectoryLog(folder.log, shard_size=config.rollout.seal_every).open())
        journal = Journal(folder.journal)
        stack.callback(journal.close)
        done, resume = _earlier(log)
        for problem in log.report:
            console.print(f"[yellow]{escape(str(problem))}[/yellow]")
        stop = Stop()
        removed = await backend.reap()
        if removed:
            console.print(f"[dim]removed {len(removed)} leftovers of runs that died[/dim]")
        if folder.resumed and done.finished:
            console.print(
                f"continuing {folder.path}: {done.finished} of {config.rollout.episodes} episodes are in its log",
                markup=False,
            )
        policy = await stack.enter_async_context(
            actor_of(
                config,
                parts.preset,
                parts.folder,
                lineage=parts.lineage,
                work=folder.path / SERVING,
                say=lambda text: console.print(f"[dim]{escape(text)}[/dim]", highlight=False),
                idle=len(resume.finished) >= config.rollout.episodes,
            )
        )
        title = f"{folder.path.name} · {config.tasks.name}/{config.tasks.split} · {backend.name} sandboxes"
        view = RolloutView(console, config.rollout.episodes, done, title)
        writing = asyncio.Lock()

        async def keep(trajectory: Trajectory) -> None:
            async with writing:  # the log has one writer; its fsync must not hold up the other episodes
                await asyncio.to_thread(log.append, trajectory)

        fleet = Fleet(
            policy,
            parts.renderer,
            parts.preset,
            environments(config, parts.preset, backend),
            keep,
            FleetSettings(
                run_id=folder.path.name,
                run_seed=config.rollout.seed,
                episodes_at_once=config.rollout.concurrency,
                max_attempts=config.rollout.max_attempts,
                sandbox=backend.name,
            ),
            observer=_observer(view, journal),
            stop=stop,
        )
        view.pulse = lambda: fleet.pulse
        with view, _signals(stop, view):
            report = await fleet.run(plan_draws(parts.tasks, config.rollout.episodes), resume)
        log.seal()
    stopped = stop.finishing.is_set()
    if not stopped and not report.given_up:
        folder.write_summary(_summary(config, view, folder, backend.name, time.monotonic() - began))
    _print_end(console, config, folder, view, report, stopped)
    return 1 if stopped or report.given_up else 0


def _earlier(log: TrajectoryLog) -> tuple[Tally, Resume]:
    """What an earlier process left: the tally of its graded episodes, and which draws need no new attempt."""
    done = Tally()
    earlier = []
    for trajectory in log.read():
        earlier.append(trajectory)
        if trajectory.outcome.status is Status.GRADED:
            done.add(trajectory)
    return done, Resume.of(earlier)


def _observer(view: RolloutView, journal: Journal) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        if isinstance(event, EpisodeStarted):
            journal.write(DISPATCHED, draw=event.draw, episode_id=event.episode_id)
            view.started(event.episode_id, event.task_id)
        elif isinstance(event, TurnReport):
            view.turn(event.episode_id, event.turn + 1)
        elif isinstance(event, EpisodeFinished):
            journal.write(FINISHED, draw=event.draw, episode_id=event.trajectory.identity.episode_id)
            view.finished(event.trajectory)
        elif isinstance(event, EpisodeRetried):
            journal.write(RETRIED, draw=event.draw, episode_id=f"{event.draw}-{event.attempt}", reason=event.reason)
            view.retried(event.draw, event.reason)
        elif isinstance(event, Stall):
            view.note(f"the episodes' event loop stood still for {1000 * event.seconds:.0f} ms: {event.where}")

    return observe


@contextlib.contextmanager
def _signals(stop: Stop, view: RolloutView) -> Any:
    """First SIGINT/SIGTERM: running episodes end, nothing new starts. Second: they are cut now."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.finishing.is_set():
            view.note("cutting the running episodes")
            stop.cut()
        else:
            view.note("finishing the running episodes; once more to cut them")
            stop.finish()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _summary(config: Config, view: RolloutView, folder: RunDir, backend: str, seconds: float) -> dict[str, Any]:
    tally = view.tally
    low, high = wilson_interval(tally.passed, tally.graded)
    return {
        "run": folder.path.name,
        "episodes": tally.graded,
        "passed": tally.passed,
        "pass_rate": tally.passed / max(tally.graded, 1),
        "wilson_95": [low, high],
        "temperature": config.agent.temperature,
        "sandbox": backend,
        "seconds": seconds,
        "episodes_per_minute": view.episodes_per_minute(),
        "action_tokens_per_s": view.action_tokens_per_s(),
        "infra_errors": tally.infra_errors,
        "exits": dict(tally.exits),
        "mean_tokens": tally.tokens / max(tally.finished, 1),
        "mean_action_tokens": tally.action_tokens / max(tally.finished, 1),
        "mean_turns": tally.turns / max(tally.finished, 1),
        "mean_logprob": tally.logprob_sum / max(tally.action_tokens, 1) if tally.has_logprobs else None,
        "loop": view.pulse().summary(),
        "mean_seconds": {name: value / max(tally.finished, 1) for name, value in tally.seconds.items()},
    }


def _print_end(
    console: Console, config: Config, folder: RunDir, view: RolloutView, report: FleetReport, stopped: bool
) -> None:
    tally = view.tally
    finished = max(tally.finished, 1)
    table = Table(title=escape(str(folder.path)), title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_row("pass rate", f"{tally.pass_rate()}  95 % Wilson, T = {config.agent.temperature:g}")
    table.add_row("ends", " · ".join(f"{name} {count}" for name, count in tally.exits.most_common()) or "—")
    table.add_row(
        "an episode",
        f"{tally.turns / finished:.1f} turns · {tally.tokens / finished:.0f} tokens, "
        f"{tally.action_tokens / finished:.0f} of them sampled",
    )
    table.add_row(
        "speed", f"{view.episodes_per_minute():.0f} episodes/min · {view.action_tokens_per_s():.0f} action tokens/s"
    )
    table.add_row(
        "where time went",
        " · ".join(f"{name} {value / finished:.2f} s" for name, value in tally.seconds.items() if name != "total"),
    )
    table.add_row("event loop", view.pulse().line())
    table.add_row("infrastructure", f"{tally.infra_errors} errors, {len(report.given_up)} draws given up")
    console.print(table)
    again = "the same command continues it"
    if stopped:
        console.print(f"[yellow]Stopped before the plan's end; {again}.[/yellow]")
    if report.given_up:
        console.print(f"[red]{len(report.given_up)} draws failed every attempt (see sao replay --list); {again}.[/red]")
    console.print(
        f"trajectories: {folder.log}    look: sao replay {shown_name(folder.path)}", markup=False, highlight=False
    )


def describe_plan(config: Config, console: Console) -> None:
    """The resolved configuration and its arithmetic; starts nothing, makes no folder."""
    from agent.presets import load_preset

    folder = model_folder(config.model.path, download=False)
    preset = load_preset(config.agent.preset)
    tasks = tasks_of(config, config.rollout.episodes)
    warn_of_benchmark(tasks, console)
    check_tasks(tasks)
    warn(console, inherited(config, preset))
    warn(console, unreadable(config))
    warn(console, unvalidated(config, tasks))
    warn(console, prompts_of_plan(config, tasks))
    model = read_object(folder / "config.json")
    limits, at_once = preset.limits, config.rollout.concurrency
    cache = _cache_bytes(model, folder) * limits.max_context * at_once
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    console.print(config.to_toml(), markup=False, highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("draws", f"{config.rollout.episodes} over {len(tasks)} tasks, {at_once} at once")
    table.add_row("tokens", f"at most {limits.max_tokens} sampled and {limits.max_context} in all an episode")
    table.add_row("", f"at most {limits.max_tokens * config.rollout.episodes:,} sampled by the run")
    table.add_row(
        "memory",
        f"weights {weights / 2**20:.0f} MiB · key/value cache up to {cache / 2**20:.0f} MiB (fp32) · "
        f"sandboxes up to (2 × {at_once} + {ready_sandboxes(config, config.sandbox.backend)} ready) × "
        f"{config.sandbox.memory_mib} MiB of this machine's {_memory_gib():.0f} GiB",
    )
    table.add_row(
        "deadlines",
        f"command {limits.command_timeout_s:g} s < episode {limits.episode_timeout_s:g} s, then "
        f"tests {config.sandbox.grade_timeout_s:g} s",
    )
    table.add_row("model", str(folder))
    table.add_row("runs in", str(Path(os.environ.get("SAO_RUNS", "runs")).resolve()))
    console.print(table)


def _cache_bytes(model: Mapping[str, Any], folder: Path) -> int:
    """Of keys and values in fp32, a token. 0 where the configuration has other names. Raises UserError."""

    def number(key: str) -> int:
        value = model.get(key) or 0
        if not isinstance(value, int) or value < 0:
            raise UserError(
                f"{folder / 'config.json'}: {key} is {reprlib.repr(value)}, expected a whole number above 0."
            )
        return value

    heads = number("num_key_value_heads") or number("num_attention_heads")
    size = number("head_dim") or number("hidden_size") // max(number("num_attention_heads"), 1)
    return 2 * 4 * number("num_hidden_layers") * heads * size


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
