"""The live view of a rollout: a progress bar and one table on a terminal, a line every few seconds elsewhere.

Counts only what it is told (`started`, `turn`, `finished`, `retried`); it never holds up the run.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from agent.pulse import Pulse
from data.quoted import model_tokens
from data.trajectory import Status, Trajectory
from eval.statistics import wilson_interval
from sao.live import LiveView, progress_bar


@dataclass
class Tally:
    """Sums over finished trajectories; also made from a log afterwards."""

    finished: int = 0
    graded: int = 0
    passed: int = 0
    infra_errors: int = 0
    cut: int = 0
    action_tokens: int = 0
    tokens: int = 0
    turns: int = 0
    logprob_sum: float = 0.0
    has_logprobs: bool = False
    """An endpoint's episodes have none."""
    exits: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, trajectory: Trajectory) -> None:
        outcome = trajectory.outcome
        self.finished += 1
        self.exits[str(outcome.exit_reason)] += 1
        self.graded += outcome.status is Status.GRADED
        self.passed += outcome.reward is not None and outcome.reward >= 1.0
        self.infra_errors += outcome.status is Status.INFRA_ERROR
        self.cut += outcome.status is Status.CUT
        self.action_tokens += model_tokens(trajectory)
        self.has_logprobs |= bool(trajectory.action_mask.any())
        self.tokens += len(trajectory)
        self.turns += trajectory.turns
        self.logprob_sum += float(trajectory.logprobs[trajectory.action_mask].sum())
        for phase, seconds in trajectory.timings.items():
            if phase != "started_at":
                self.seconds[phase] += seconds

    def pass_rate(self) -> str:
        if not self.graded:
            return "—"
        low, high = wilson_interval(self.passed, self.graded)
        return f"{self.passed / self.graded:.3f} [{low:.3f}, {high:.3f}] ({self.passed}/{self.graded})"


class RolloutView(LiveView):
    def __init__(self, console: Console, total: int, done: Tally, title: str) -> None:
        super().__init__(console)
        self.title = title
        self.tally = done
        self._before = done.finished
        self._tokens_before = done.action_tokens
        self._began = time.monotonic()
        self._running: dict[str, tuple[str, int, float]] = {}
        self._retries = 0
        self._note = ""
        self.pulse: Callable[[], Pulse] = Pulse
        """How late the episodes' loop runs."""
        self._bar = progress_bar(console)
        self._bar_task = self._bar.add_task("episodes", total=total, completed=done.graded + done.cut)
        self._total = total

    def started(self, episode_id: str, task_id: str) -> None:
        self._running[episode_id] = (task_id, 0, time.monotonic())

    def turn(self, episode_id: str, turn: int) -> None:
        if episode_id in self._running:
            task_id, _, since = self._running[episode_id]
            self._running[episode_id] = (task_id, turn, since)

    def finished(self, trajectory: Trajectory) -> None:
        self._running.pop(trajectory.identity.episode_id, None)
        self.tally.add(trajectory)
        if trajectory.outcome.status is not Status.INFRA_ERROR:
            self._bar.advance(self._bar_task)
        self.tick()

    def retried(self, draw: int, why: str) -> None:
        self._retries += 1
        self.note(f"draw {draw} is tried again: {why}")

    def note(self, text: str) -> None:
        self._note = text
        if not self.redrawn:
            self.console.print(text, markup=False, highlight=False)

    def episodes_per_minute(self) -> float:
        elapsed = time.monotonic() - self._began
        return 60 * (self.tally.finished - self._before) / elapsed if elapsed > 0 else 0.0

    def action_tokens_per_s(self) -> float:
        elapsed = time.monotonic() - self._began
        return (self.tally.action_tokens - self._tokens_before) / elapsed if elapsed > 0 else 0.0

    def line(self) -> str:
        return (
            f"{self.tally.finished}/{self._total} episodes · pass {self.tally.pass_rate()} · "
            f"{self.episodes_per_minute():.0f}/min · {self.action_tokens_per_s():.0f} action tokens/s · "
            f"{self.tally.infra_errors} infrastructure errors"
        )

    def render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        table.add_row("pass rate", self.tally.pass_rate())
        table.add_row(
            "speed", f"{self.episodes_per_minute():.0f} episodes/min · {self.action_tokens_per_s():.0f} action tokens/s"
        )
        ends = " · ".join(f"{name} {count}" for name, count in self.tally.exits.most_common()) or "—"
        table.add_row("ends", ends)
        table.add_row("trouble", f"{self.tally.infra_errors} infrastructure errors, {self._retries} retries")
        table.add_row("event loop", self.pulse().line())
        running = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for episode_id, (task_id, turn, since) in list(self._running.items())[:8]:
            running.add_row(f"[dim]{escape(episode_id)}[/dim]", escape(task_id), f"turn {turn}", f"{now - since:.1f} s")
        if len(self._running) > 8:
            running.add_row(f"[dim]… and {len(self._running) - 8} more[/dim]")
        parts: list[RenderableType] = [f"[bold cyan]{escape(self.title)}[/bold cyan]", self._bar, table, running]
        if self._note:
            parts.append(f"[yellow]{escape(self._note)}[/yellow]")
        return Group(*parts)
