"""The live view of a training run, read from the run's files alone: it can look at a run of another process too.

On a terminal a table that is redrawn, elsewhere a line every few seconds. Undefined numbers are shown as a dash.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from sao.live import LiveView
from sao.train_files import HELDOUT, ROLLOUTS, read_json, read_lines
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths

_BARS = "▁▂▃▄▅▆▇█"
_REREAD_S = 1.0
_TABLE_LEFT, _CURVE_LEAST, _CURVE_MOST = 24, 10, 40
"""Columns: of the names, and of a curve behind a row's text."""


def number(value: float | None, form: str = ".3f") -> str:
    return "—" if value is None else format(value, form)


def share(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.0f} %"


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def dropped_text(dropped: Mapping[str, int] | None) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted((dropped or {}).items())) or "none"


def sparkline(values: Sequence[float | None], width: int = 40, low: float = 0.0, high: float = 1.0) -> str:
    """The last values, averaged down to `width` characters."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    per = max(1, -(-len(known) // width))
    cells = [known[at : at + per] for at in range(0, len(known), per)]
    scale = max(high - low, 1e-9)
    levels = [min(max((sum(cell) / len(cell) - low) / scale, 0.0), 1.0) for cell in cells]
    return "".join(_BARS[round(level * (len(_BARS) - 1))] for level in levels)


class TrainView(LiveView):
    """Call `update` often, `note` for what must be seen."""

    def __init__(self, console: Console, run: Path) -> None:
        super().__init__(console)
        self.run = run
        self._notes: list[str] = []
        self._read_at = 0.0
        self._metrics: list[dict[str, Any]] = []
        self._trainer: dict[str, Any] = {}
        self._rollouts: dict[str, Any] = {}
        self._heldout: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._first_step: int | None = None
        """Steps that were done when this view began to look: a continued run's estimate is of its own pace."""

    def __exit__(self, *exc: Any) -> None:
        self._read_at = 0.0
        self._reread()
        super().__exit__(*exc)

    def note(self, text: str) -> None:
        self._notes.append(text)
        if not self.redrawn:
            self.console.print(text, highlight=False, markup=False)

    def update(self) -> None:
        self._reread()
        self.tick()

    def _reread(self) -> None:
        if time.monotonic() - self._read_at < _REREAD_S:
            return
        paths = TrainerPaths(self.run)
        self._metrics = read_metrics(paths.metrics)
        self._trainer = read_json(paths.progress)
        self._rollouts = read_json(self.run / ROLLOUTS)
        self._heldout = read_lines(self.run / HELDOUT)
        self._read_at = time.monotonic()
        if self._first_step is None and self._trainer:
            self._first_step = int(self._trainer.get("step", 0))

    @property
    def steps_done(self) -> int:
        """Steps that have metrics."""
        return len(self._metrics)

    def _time_text(self) -> str:
        """Time gone since this start, and what is left at the pace since then."""
        gone = time.monotonic() - self._began
        done, total = int(self._trainer.get("step", 0)), int(self._trainer.get("steps", 0))
        made = done - (self._first_step or 0)
        left = f", about {duration(gone / made * (total - done))} left" if made > 0 and total > done else ""
        return f"{duration(gone)} gone{left}"

    def _curve(self, text: str, name: str, *, low: float | None = 0.0, high: float | None = 1.0) -> str:
        """`text`, and where the terminal has room the value's course; its own range where none is given."""
        width = min(self.console.width - _TABLE_LEFT - len(text), _CURVE_MOST)
        values = [line.get(name) for line in self._metrics]
        known = [value for value in values if value is not None]
        if width < _CURVE_LEAST or not known:
            return text
        low, high = min(known) if low is None else low, max(known) if high is None else high
        return f"{text}  {sparkline(values, width, low, high)}"

    def _recent(self, name: str, count: int = 10) -> float | None:
        return mean([line.get(name) for line in self._metrics[-count:]])

    def line(self) -> str:
        if not self._metrics:
            return ""
        last = self._metrics[-1]
        parts = [
            f"step {last['step'] + 1}/{self._trainer.get('steps', '?')}",
            f"reward {number(self._recent('reward'))}",
            f"held-out {self._heldout_text()}",
            f"explained variance {number(self._recent('explained_variance'), '.2f')}",
            f"rejected {share(self._recent('rejected_share'))}",
            f"staleness {number(self._recent('staleness_mean'), '.1f')}/{number(last.get('staleness_max'), '.0f')}",
            f"dropped {dropped_text(self._trainer.get('dropped'))}",
            f"idle trainer {share(self._trainer.get('idle_share'))} rollouts {share(self._rollouts.get('idle_share'))}",
            f"alarms {self._alarm_count()}",
            self._time_text(),
        ]
        return " · ".join(parts)

    def _heldout_text(self) -> str:
        if not self._heldout:
            return "—"
        last = self._heldout[-1]
        low, high = last["wilson_95"]
        return f"{last['rate']:.3f} [{low:.2f}, {high:.2f}] at step {last['step']}"

    def _alarm_count(self) -> int:
        return sum(len(line.get("alarms", ())) for line in self._metrics)

    def render(self) -> RenderableType:
        trainer, rollouts = self._trainer, self._rollouts
        last = self._metrics[-1] if self._metrics else {}
        done, total = int(trainer.get("step", 0)), max(int(trainer.get("steps", 1)), 1)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        table.add_row("", ProgressBar(total=total, completed=done, width=60))
        phase = "critic only" if last.get("critic_only") else trainer.get("phase", "starting")
        version = f"{escape(str(trainer.get('lineage', '')))}/v{last.get('weights_version', 0)}"
        table.add_row("step", f"{done}/{total} · {phase} · {version} · {self._time_text()}")
        rewards = [line.get("reward") for line in self._metrics]
        table.add_row("reward", f"[bold]{number(mean(rewards[-10:]))}[/bold] (last 10 steps)  {sparkline(rewards)}")
        table.add_row("held-out", self._heldout_text())
        explained = [line.get("explained_variance") for line in self._metrics]
        table.add_row("explained variance", f"{number(mean(explained[-10:]), '.2f')}  {sparkline(explained, low=-0.2)}")
        tokens = (
            f"rejected {share(self._recent('rejected_share'))} · "
            f"approx. KL {number(self._recent('approx_kl'), '.2e')} · ESS {number(self._recent('ess'))}"
        )
        table.add_row("tokens", self._curve(tokens, "approx_kl", high=None))
        staleness = (
            f"mean {number(self._recent('staleness_mean'), '.2f')}, max {number(last.get('staleness_max'), '.0f')} · "
            f"mixed versions {share(self._recent('mixed_version_share'))}"
        )
        table.add_row("staleness", self._curve(staleness, "staleness_mean", high=None))
        table.add_row(
            "draws",
            f"{trainer.get('consumed', 0)}/{trainer.get('planned', 0)} dealt with · "
            f"waiting {trainer.get('waiting', 0)} · "
            f"dropped {dropped_text(trainer.get('dropped') or last.get('dropped'))}",
        )
        lengths = last.get("lengths") or {}
        table.add_row(
            "lengths",
            f"sampled tokens: batch {number(lengths.get('batch'), '.0f')}, dispatched "
            f"{number(lengths.get('dispatched'), '.0f')}, finished {number(lengths.get('finished'), '.0f')}, trained "
            f"{number(lengths.get('trained'), '.0f')}, dropped {number(lengths.get('dropped'), '.0f')} "
            f"({share(lengths.get('dropped_tokens'))} of the tokens) · overtaken {share(lengths.get('overtaken'))}",
        )
        speed = (
            f"{number(self._recent('tokens_per_second'), '.0f')} tokens/s · "
            f"{number(mean([line['seconds'].get('total') for line in self._metrics[-10:]]), '.2f')} s a step · "
            f"idle {share(trainer.get('idle_share'))}"
        )
        table.add_row("trainer", self._curve(speed, "tokens_per_second", high=None))
        table.add_row(
            "rollouts",
            f"{number(rollouts.get('episodes_per_minute'), '.0f')} episodes/min · "
            f"{number(rollouts.get('action_tokens_per_s'), '.0f')} action tokens/s · live {rollouts.get('live', 0)}, "
            f"held back {rollouts.get('held', 0)} · idle {share(rollouts.get('idle_share'))}",
        )
        loop = rollouts.get("loop", {})
        if loop.get("stalls"):
            where = loop["longest"][0]
            text = f"{loop['stalls']} over {loop['limit_ms']} ms, worst {where['ms']:.0f} ms: {where['where']}"
            table.add_row("[red]event loop[/red]", f"[red]{escape(text)}[/red]")
        else:
            table.add_row("event loop", f"worst delay {number(loop.get('worst_ms'), '.0f')} ms")
        alarms = [alarm for line in self._metrics for alarm in line.get("alarms", ())]
        if alarms:
            latest = alarms[-1]
            text = f"{len(alarms)}, last at step {latest['step']}: {latest['kind']} {latest['value']:.3g}"
            table.add_row("[red]alarms[/red]", f"[red]{escape(text)}[/red]")
        else:
            table.add_row("alarms", "none")
        parts: list[RenderableType] = [
            f"[bold cyan]{escape(self.run.name)}[/bold cyan]",
            table,
        ]
        parts += [f"[yellow]{escape(note)}[/yellow]" for note in self._notes[-3:]]
        return Group(*parts)
