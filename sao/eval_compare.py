"""`sao eval compare`: the paired comparison as tables."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data.atomic import write_atomically
from eval.compare import Comparison, compare, read_scores

SHOWN = 20


def show_comparison(
    console: Console, first: str, second: str, *, json_file: str | None, draws: int, seed: int
) -> Comparison:
    """Raises EvalError."""
    made = compare(read_scores(runs_or_path(first)), read_scores(runs_or_path(second)), draws=draws, seed=seed)
    one, two = made.means()
    names = escape(made.first.name), escape(made.second.name)
    table = Table("", *names, box=None, padding=(0, 2))
    table.add_row(f"mean over {len(made.pairs)} shared instances", f"{100 * one:.1f} %", f"{100 * two:.1f} %")
    if made.p_value is not None:
        table.add_row("solved by both", str(made.both), str(made.both))
        table.add_row("solved by this one only", str(len(made.lost)), str(len(made.gained)))
        table.add_row("solved by neither", str(made.neither), str(made.neither))
    console.print(table)
    gap = made.difference
    console.print(
        f"difference {100 * gap.mean:+.1f} points, 95 % [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}] "
        f"(paired bootstrap, {draws} draws, seed {seed})"
        + (f" · McNemar exact p = {made.p_value:.4g}" if made.p_value is not None else ""),
        highlight=False,
    )
    for title, flipped in ((f"better in {names[1]}", made.gained), (f"better in {names[0]}", made.lost)):
        more = f" … and {len(flipped) - SHOWN} more" if len(flipped) > SHOWN else ""
        console.print(f"[bold]{title}[/] ({len(flipped)}): {escape(', '.join(flipped[:SHOWN]))}{more}", highlight=False)
    if made.left_out:
        some = ", ".join(made.left_out[:5])
        console.print(
            f"[yellow]{len(made.left_out)} instances without a score in both: {escape(some)}[/]", highlight=False
        )
    if json_file:
        write_atomically(Path(json_file), (json.dumps(made.to_dict(), indent=2) + "\n").encode())
    return made


def runs_or_path(name: str) -> Path:
    """A path as given, or a run's name under runs/."""
    from sao.paths import runs_folder

    given = Path(name).expanduser()
    return given if given.exists() or not (runs_folder() / name).exists() else runs_folder() / name
