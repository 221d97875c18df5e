"""Show a logged trajectory turn by turn, and run its tool calls again.

Showing decodes the very ids of the log with the run's own tokenizer. Executing plays the logged action tokens through
the same episode loop in a fresh sandbox (no engine samples anything) and compares every observation's ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from data.log import TrajectoryLog
from data.trajectory import SpanKind, Status, Trajectory
from sao.config import Config
from sao.paths import UserError
from sao.rundir import find_run, read_config

_STYLE = {SpanKind.PROMPT: "cyan", SpanKind.ACTION: "green", SpanKind.OBSERVATION: "white"}


def replay(
    run: str, episode: str | None, console: Console, *, list_only: bool, execute: bool, sandbox: str | None
) -> int:
    """Exit code: 0; 1 when --execute found an observation that differs."""
    folder = find_run(run)
    config = read_config(folder)
    log = TrajectoryLog.reader(folder / "log")
    trajectories = list(log)
    for warning in log.warnings:
        console.print(f"[yellow]{escape(str(warning))}[/yellow]")
    if not trajectories:
        raise UserError(f"{folder} holds no finished trajectory yet: let `sao rollout` finish an episode.")
    if list_only:
        _print_list(trajectories, console)
        return 0
    trajectory = choose(trajectories, episode)

    from agent.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder / "tokenizer")
    if tokenizer.fingerprint != trajectory.identity.tokenizer:
        raise UserError(
            f"{folder}/tokenizer is not the one that made {trajectory.identity.episode_id} "
            f"({tokenizer.fingerprint[:12]} against {trajectory.identity.tokenizer[:12]}): its ids would be misread."
        )
    show(trajectory, lambda ids: tokenizer.decode(ids), console, f"{folder.name}: {len(trajectories)} episodes")
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
            one.identity.episode_id,
            one.identity.task_id,
            str(one.turns),
            str(len(one)),
            str(int(one.action_mask.sum())),
            str(one.outcome.exit_reason),
            f"[{colour}]{reward}[/]",
        )
    console.print(table)


def show(trajectory: Trajectory, decode, console: Console, title: str) -> None:  # type: ignore[no-untyped-def]
    """Print every span with its turn, token count, mean log-probability and policy version(s)."""
    identity, outcome = trajectory.identity, trajectory.outcome
    console.print(Rule(f"[bold]{escape(identity.episode_id)}[/bold] · {escape(title)}"))
    console.print(
        f"task {identity.task_id} · draw {identity.draw} · seed {identity.seed} · sandbox {identity.sandbox} · "
        f"policy {identity.lineage or '—'} · T {identity.sampling.temperature:g}",
        markup=False,
        highlight=False,
    )
    for span in trajectory.spans:
        head = f"turn {span.turn} {span.kind} · {len(span)} tokens"
        if span.kind is SpanKind.ACTION:
            part = slice(span.start, span.end)
            versions = sorted({int(version) for version in trajectory.versions[part]})
            head += f" · mean log-probability {trajectory.logprobs[part].mean():.3f} · version "
            head += "–".join(str(version) for version in (versions[0], versions[-1])[: len(versions)])
        console.print(Text(f"── {head}", style=f"bold {_STYLE[span.kind]}"))
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


async def _execute(trajectory: Trajectory, tokenizer, config: Config, sandbox: str, console: Console) -> int:  # type: ignore[no-untyped-def]
    raise UserError("not wired yet")
