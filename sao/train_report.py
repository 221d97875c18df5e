"""The end of a training run in one look: a before/after table on the terminal, curves in runs/<name>/report.html.

The page is there from the first step on. It is one file: inline SVG, no scripts, nothing loaded from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data.journal import Journal
from sao.plot import plot, smooth
from sao.rundir import read_config, write_atomically
from sao.train_files import HELDOUT, SCORES, STAGES, read_json, read_lines
from trainer.ledger import from_journal
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths

_CURVES = (
    ("reward", "reward of the training episodes (mean of 5 steps; dots: held-out score while training)", "reward"),
    ("explained_variance", "explained variance of the critic, before its updates", "explained variance"),
    ("rejected_share", "action tokens outside the band", "share of tokens"),
    ("staleness_mean", "staleness, mean between oldest token and step", "policy updates"),
    ("approx_kl", "approximate KL", "nats per token"),
    ("policy_grad_norm", "policy gradient norm before clipping", "L2 norm"),
    ("tokens_per_second", "speed of the trainer", "tokens per second"),
)
"""Key of the metrics, title, name of the vertical axis."""


EVERY_S = 30.0


@dataclass(frozen=True)
class Settings:
    facts: Mapping[str, str]
    toml: str


def write_report(run: Path, console: Console | None = None) -> Path:
    """Write report.html, also of a run that goes on; print table and facts to the console, if any."""
    scores = read_json(run / SCORES)
    rows = score_rows(scores)
    if rows and console is not None:
        table = Table("tasks", "before", "after", "difference", box=None, title="held-out scores (95 % Wilson)")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    metrics = read_metrics(TrainerPaths(run).metrics)
    ledger = from_journal(Journal(TrainerPaths(run).journal).read())
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(ledger.dropped().items())) or "none"
    facts = f"{len(metrics)} steps; {ledger.trained} draws trained on, dropped: {dropped}"
    spent = [f"{name} {seconds / 60:.1f} min" for name, seconds in read_json(run / STAGES).items()]
    facts += f"; {', '.join(spent)}" if spent else ""
    alarms = [alarm for line in metrics for alarm in line.get("alarms", ())]
    if console is not None:
        console.print(f"{facts}; {len(alarms)} alarms", highlight=False)
    path = run / "report.html"
    text = page(run.name, facts, rows, metrics, read_lines(run / HELDOUT), alarms, settings_of(run))
    write_atomically(path, text)
    return path


class Refresher:
    """Keeps report.html as new as a run that goes on, at most every `EVERY_S` seconds."""

    def __init__(self, run: Path) -> None:
        self.run, self._written, self._steps = run, -EVERY_S, -1

    def update(self, steps: int) -> None:
        """`steps`: that have metrics."""
        now = time.monotonic()
        if steps == self._steps or (steps > 1 and now - self._written < EVERY_S):
            return
        write_report(self.run)
        self._steps, self._written = steps, time.monotonic()


def settings_of(run: Path) -> Settings | None:
    """What the page says of the configuration; None where the folder has none."""
    file = run / "config.toml"
    if not file.is_file():
        return None
    config = read_config(run)
    step = config.train.step
    facts = {
        "model": config.model.path,
        "seed": str(config.rollout.seed),
        "tasks": f"{config.tasks.path or config.tasks.name}, {config.tasks.split}",
        "preset": config.agent.preset,
        "control": config.train.control,
        "plan": f"{config.train.steps} steps of {config.train.batch} trajectories",
        "rates": f"policy {step.policy_optimizer.learning_rate:g}, critic {step.critic_optimizer.learning_rate:g}",
        "arithmetic": step.precision,
    }
    return Settings(facts, file.read_text(encoding="utf-8"))


def score_rows(scores: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    rows = []
    for split in dict.fromkeys(name.partition("/")[2] for name in scores):
        before, after = scores.get(f"before/{split}"), scores.get(f"after/{split}")
        gain = f"{after['rate'] - before['rate']:+.3f}" if before and after else "—"
        temperature = (before or after or {})["temperature"]
        rows.append((f"{split}, T = {temperature:g}", rate_text(before), rate_text(after), gain))
    return rows


def rate_text(score: dict[str, Any] | None) -> str:
    if not score:
        return "—"
    low, high = score["wilson_95"]
    return f"{score['rate']:.3f} [{low:.3f}, {high:.3f}] ({score['passed']}/{score['graded']})"


def page(
    name: str,
    facts: str,
    rows: Sequence[tuple[str, ...]],
    metrics: Sequence[dict[str, Any]],
    heldout: Sequence[dict[str, Any]],
    alarms: Sequence[dict[str, Any]],
    settings: Settings | None = None,
) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("tasks", "before", "after", "difference"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<h3>held-out scores (95 % Wilson)</h3><table><tr>{head}</tr>{body}</table>" if rows else ""
    configuration = ""
    if settings is not None:
        facts_rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>" for key, text in settings.facts.items()
        )
        configuration = (
            f"<table>{facts_rows}</table><details><summary>whole configuration</summary>"
            f"<pre>{escape(settings.toml)}</pre></details>"
        )
    plots = []
    for key, title, axis in _CURVES:
        points = [(float(line["step"]), float(line[key])) for line in metrics if line.get(key) is not None]
        if not points:
            continue
        dots = [(float(line["step"]), float(line["rate"])) for line in heldout] if key == "reward" else []
        drawn = plot({"": smooth(points, 5) if key == "reward" else points}, dots, x="training step", y=axis)
        plots.append(f"<h3>{escape(title)}</h3>{drawn}")
    warned = "".join(
        f"<li>step {alarm['step']}: {escape(str(alarm['kind']))} {alarm['value']:.4g} (limit {alarm['limit']:.4g})</li>"
        for alarm in alarms[:50]
    )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;color:#222}"
        "table{border-collapse:collapse}td,th{padding:.2em 1em;text-align:left;border-bottom:1px solid #ddd}"
        "h3{margin:1.2em 0 0;font-size:1em}svg{background:#fafafa}"
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(name)}</title><style>{style}</style>"
        f"<h1>{escape(name)}</h1><p>{escape(facts)}</p>{configuration}{table}"
        f"{''.join(plots)}<h3>alarms ({len(alarms)})</h3><ul>{warned}</ul>\n"
    )
