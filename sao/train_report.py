"""The end of a training run in one look: a before/after table on the terminal, curves in runs/<name>/report.html.

The page is one file: inline SVG, no scripts, nothing loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data.journal import Journal
from sao.plot import plot, smooth
from sao.train_files import HELDOUT, SCORES, STAGES, read_json, read_lines
from trainer.ledger import from_journal
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths

_CURVES = (
    ("reward", "reward of the training episodes (mean of 5 steps; dots: held-out score while training)"),
    ("explained_variance", "explained variance of the critic, before its updates"),
    ("rejected_share", "share of action tokens outside the band"),
    ("staleness_mean", "staleness, mean updates between oldest token and step"),
    ("approx_kl", "approximate KL, nats per token"),
    ("policy_grad_norm", "policy gradient norm before clipping"),
    ("tokens_per_second", "trainer, tokens a second"),
)


def write_report(run: Path, console: Console) -> Path:
    """Print the table, write report.html."""
    scores = read_json(run / SCORES)
    rows = score_rows(scores)
    if rows:
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
    console.print(f"{facts}; {len(alarms)} alarms", highlight=False)
    path = run / "report.html"
    path.write_text(page(run.name, facts, rows, metrics, read_lines(run / HELDOUT), alarms), encoding="utf-8")
    return path


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
) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("tasks", "before", "after", "difference"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    plots = []
    for key, title in _CURVES:
        points = [(float(line["step"]), float(line[key])) for line in metrics if line.get(key) is not None]
        if not points:
            continue
        dots = [(float(line["step"]), float(line["rate"])) for line in heldout] if key == "reward" else []
        plots.append(f"<h3>{escape(title)}</h3>{plot({'': smooth(points, 5) if key == 'reward' else points}, dots)}")
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
        f"<h1>{escape(name)}</h1><p>{escape(facts)}</p><table><tr>{head}</tr>{body}</table>"
        f"{''.join(plots)}<h3>alarms ({len(alarms)})</h3><ul>{warned}</ul>\n"
    )
