"""Show a logged trajectory turn by turn, and run its tool calls again.

Showing decodes the very ids of the log with the run's own tokenizer. Executing plays the logged action tokens through
the same episode loop in a fresh sandbox (no engine samples anything) and compares every observation's ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from data.log import TrajectoryLog
from data.quoted import quoted_refusal
from data.trajectory import Span, SpanKind, Status, Trajectory
from sao.config import Config
from sao.paths import UserError
from sao.rundir import find_run, read_config

if TYPE_CHECKING:
    from agent.tokenizer import Tokenizer

_TOKENS_A_LINE = 10
_STYLE = {
    SpanKind.PROMPT: "cyan",
    SpanKind.ACTION: "green",
    SpanKind.OBSERVATION: "white",
    SpanKind.QUOTED: "yellow",
}


def paged(console: Console, tokens: int) -> contextlib.AbstractContextManager[object]:
    """A pager for what is longer than the screen, where somebody sits at it: about ten tokens stand in a line."""
    if not (console.is_terminal and sys.stdin.isatty()) or tokens < _TOKENS_A_LINE * console.height:
        return contextlib.nullcontext()
    os.environ.setdefault("LESS", "-RFX")  # colours shown, and no pager where it fits after all
    return console.pager(styles=not console.no_color)


def replay(
    run: str, episode: str | None, console: Console, *, list_only: bool, execute: bool, sandbox: str | None
) -> int:
    """Exit code: 0; 1 when --execute found an observation that differs."""
    folder = find_run(run)
    config = read_config(folder)
    log = TrajectoryLog(folder / "log")
    trajectories = list(log.read())
    for problem in log.report:
        console.print(f"[yellow]{escape(str(problem))}[/yellow]")
    if not trajectories:
        raise UserError(f"{folder} holds no finished trajectory yet: let `sao rollout` finish an episode.")
    if list_only:
        _print_list(trajectories, console)
        return 0
    trajectory = choose(trajectories, episode)
    if execute and (why := quoted_refusal(trajectory)):
        raise UserError(f"Its turns cannot be played again: {why}.")

    from agent.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder / "tokenizer")
    if tokenizer.fingerprint != trajectory.identity.tokenizer:
        raise UserError(
            f"{folder}/tokenizer is not the one that made {trajectory.identity.episode_id} "
            f"({tokenizer.fingerprint[:12]} against {trajectory.identity.tokenizer[:12]}): its ids would be misread."
        )
    with paged(console, len(trajectory.tokens) if not execute else 0):
        show(trajectory, tokenizer.decode, console, f"{folder.name}: {len(trajectories)} episodes")
    if execute:
        return asyncio.run(_execute(trajectory, tokenizer, config, sandbox or trajectory.identity.sandbox, console))
    if console.is_terminal:
        console.print("[dim]Next: sao replay --list · --episode N · --execute runs the tool calls again[/dim]")
    return 0


def choose(trajectories: Sequence[Trajectory], episode: str | None) -> Trajectory:
    """By episode id or draw number (its last attempt); default: the first that passed, else the first."""
    if episode is None:
        return next((one for one in trajectories if one.outcome.reward == 1.0), trajectories[0])
    found = [
        one
        for one in trajectories
        if one.identity.episode_id == episode or (episode.isdigit() and one.identity.draw == int(episode))
    ]
    if not found:
        draws = sorted(one.identity.draw for one in trajectories)
        raise UserError(
            f"No episode {episode!r}: the log holds {len(draws)} episodes, draws {draws[0]} to {draws[-1]}; see --list."
        )
    return found[-1]


def _print_list(trajectories: Sequence[Trajectory], console: Console) -> None:
    table = Table("episode", "task", "turns", "tokens", "action", "exit", "reward", box=None)
    for one in trajectories:
        reward = "—" if one.outcome.reward is None else f"{one.outcome.reward:g}"
        colour = {"1": "green", "0": "red"}.get(reward, "yellow")
        table.add_row(
            escape(one.identity.episode_id),
            escape(one.identity.task_id),
            str(one.turns),
            str(len(one)),
            str(int(one.action_mask.sum())),
            str(one.outcome.exit_reason),
            f"[{colour}]{reward}[/]",
        )
    console.print(table)


def show(trajectory: Trajectory, decode: Callable[[list[int]], str], console: Console, title: str) -> None:
    """Print every span with its turn, token count, mean log-probability and policy version(s)."""
    identity, outcome = trajectory.identity, trajectory.outcome
    console.print(Rule(f"[bold]{escape(identity.episode_id)}[/bold] · {escape(title)}"))
    console.print(
        f"task {identity.task_id} · draw {identity.draw} · seed {identity.seed} · sandbox {identity.sandbox or '—'} · "
        f"policy {identity.lineage or '—'} · agent {identity.agent or '—'} · T "
        + (f"{identity.sampling.temperature:g}" if identity.sampling.temperature >= 0 else "unknown"),
        markup=False,
        highlight=False,
    )
    for span in trajectory.spans:
        console.print(Text(f"── {span_head(trajectory, span)}", style=f"bold {_STYLE[span.kind]}"))
        console.print(Text(decode(trajectory.tokens[span.start : span.end].tolist()), style=_STYLE[span.kind]))
    console.print(Rule("[bold]outcome[/bold]"))
    reward = "none" if outcome.reward is None else f"{outcome.reward:g}"
    colour = "green" if outcome.reward == 1.0 else "yellow" if outcome.status is not Status.GRADED else "red"
    console.print(f"[{colour}]{outcome.status} · {outcome.exit_reason} · reward {reward}[/]", highlight=False)
    for key, value in outcome.grade.items():
        text = str(value)
        console.print(Text(f"{key}: {text if len(text) < 600 else text[:300] + ' … ' + text[-300:]}", style="dim"))
    if trajectory.patch:
        console.print(Text(trajectory.patch.decode("utf-8", "replace"), style="magenta"))
    times = " · ".join(f"{name} {value:.2f} s" for name, value in trajectory.timings.items() if name != "started_at")
    if times:
        console.print(Text(times, style="dim"))


def span_head(trajectory: Trajectory, span: Span) -> str:
    """Turn, kind, tokens; for an action its mean log-probability (nats per token) and policy version(s)."""
    head = f"turn {span.turn} {span.kind} · {len(span)} tokens"
    if span.kind is SpanKind.ACTION:
        part = slice(span.start, span.end)
        versions = sorted({int(version) for version in trajectory.versions[part]})
        head += f" · mean log-probability {trajectory.logprobs[part].mean():.3f} · version "
        head += "–".join(str(version) for version in (versions[0], versions[-1])[: len(versions)])
    elif span.kind is SpanKind.QUOTED:
        head += " · written by another system's model, no log-probabilities"
    return head


async def _execute(trajectory: Trajectory, tokenizer: Tokenizer, config: Config, kind: str, console: Console) -> int:
    """The logged actions again, in a fresh sandbox; every observation that differs is shown."""
    from agent.engines.scripted import ReplayPolicy
    from agent.episode import run_episode
    from agent.presets import load_preset
    from agent.renderers.choose import renderer_for
    from sao.assemble import backend_of, environments_of, tasks_of

    if not trajectory.spans:
        raise UserError(f"{trajectory.identity.episode_id} ended before its first prompt: nothing to run again.")
    tasks = {task.task_id: task for task in tasks_of(config, config.rollout.episodes)}
    task = tasks.get(trajectory.identity.task_id)
    if task is None:
        raise UserError(f"Task {trajectory.identity.task_id} is not among the run's tasks any more: the rows changed.")
    preset = load_preset(config.agent.preset)
    backend = await backend_of(config, "replay", kind)
    try:
        environment = environments_of(config, preset, backend)(task)
        again = await run_episode(
            ReplayPolicy(trajectory),
            renderer_for(tokenizer, thinking=preset.thinking),
            environment,
            preset,
            trajectory.identity,
        )
    finally:
        await backend.close()
    return _compare(trajectory, again, tokenizer, console, backend.name)


def _compare(logged: Trajectory, again: Trajectory, tokenizer: Tokenizer, console: Console, sandbox: str) -> int:
    console.print(Rule(f"[bold]run again in a fresh {sandbox} sandbox[/bold]"))
    if again.outcome.status is Status.INFRA_ERROR:
        console.print(f"[yellow]not comparable: {escape(str(again.outcome.grade))}[/yellow]")
        return 1
    differing = 0
    pairs = list(zip(observations(logged), observations(again), strict=False))
    for index, (before, now) in enumerate(pairs):
        if before == now:
            continue
        differing += 1
        console.print(f"[red]observation {index} differs[/red]")
        lines = difflib.unified_diff(
            tokenizer.decode(before).splitlines(), tokenizer.decode(now).splitlines(), "logged", "now", lineterm=""
        )
        console.print(Text("\n".join(lines)))
    missing = abs(len(observations(logged)) - len(observations(again)))
    same = logged.outcome.reward == again.outcome.reward and logged.outcome.exit_reason == again.outcome.exit_reason
    console.print(
        f"{len(pairs)} observations compared: {differing} differ"
        + (f", {missing} without a partner" if missing else "")
    )
    console.print(
        f"outcome: {again.outcome.exit_reason}, reward {again.outcome.reward}"
        + (" as logged" if same else f", logged {logged.outcome.exit_reason}, {logged.outcome.reward}")
    )
    same_patch = logged.patch == again.patch
    console.print("the driver's diff is " + ("byte for byte the logged one" if same_patch else "another one"))
    return 0 if same and same_patch and not differing and not missing else 1


def observations(trajectory: Trajectory) -> list[list[int]]:
    """Ids of every observation span, in order."""
    return [
        trajectory.tokens[span.start : span.end].tolist()
        for span in trajectory.spans
        if span.kind is SpanKind.OBSERVATION
    ]
