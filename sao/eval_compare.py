"""`sao eval compare`: the paired comparison as tables."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data.atomic import write_atomically
from data.reading import user_path
from eval.compare import Comparison, compare, markdown, read_scores

SHOWN = 20


def show_comparison(
    console: Console,
    first: str,
    second: str,
    *,
    json_file: str | None,
    markdown_file: str | None,
    draws: int,
    seed: int,
) -> Comparison:
    """Raises EvalError."""
    made = compare(read_scores(runs_or_path(first)), read_scores(runs_or_path(second)), draws=draws, seed=seed)
    names = escape(made.first.name), escape(made.second.name)
    one, two = made.means()
    table = Table("", *names, box=None, padding=(0, 2))
    table.add_row(f"mean over {len(made.pairs)} shared instances", f"{100 * one:.1f} %", f"{100 * two:.1f} %")
    if made.p_value is not None:
        table.add_row("solved by both", str(made.both), str(made.both))
        table.add_row("solved by this one only", str(len(made.lost)), str(len(made.gained)))
        table.add_row("solved by neither", str(made.neither), str(made.neither))
    console.print(table)
    gap = made.difference
    interval = f"{100 * gap.mean:+.1f} points, 95 % [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    figures = [("difference", f"{interval} (paired bootstrap, {draws} draws, seed {seed})")]
    if made.p_value is not None:
        figures.append(("McNemar exact p", f"{made.p_value:.4g}"))
    console.print(f"difference {figures[0][1]}", *(f"· {what} = {figure}" for what, figure in figures[1:]),
                  highlight=False)  # fmt: skip
    _show_flips(console, made)
    if made.left_out:
        some = ", ".join(made.left_out[:5])
        console.print(
            f"[yellow]{len(made.left_out)} instances without a score in both: {escape(some)}[/]", highlight=False
        )
    if json_file:
        write_atomically(Path(json_file), (json.dumps(made.to_dict(), indent=2) + "\n").encode())
    if markdown_file:
        means = [
            (f"{made.first.name}, mean", f"{100 * one:.1f} %"),
            (f"{made.second.name}, mean", f"{100 * two:.1f} %"),
        ]
        write_atomically(Path(markdown_file), markdown(made, [*means, *figures]).encode())
    return made


def _show_flips(console: Console, made: Comparison) -> None:
    """The instances on which the two differ."""
    flipped = [*made.gained, *made.lost]
    if not flipped:
        console.print("no instance flipped", highlight=False)
        return
    table = Table("flipped", escape(made.first.name), escape(made.second.name), box=None, padding=(0, 2))
    for name in flipped[:SHOWN]:
        one, two = made.pairs[name]
        table.add_row(escape(name), f"{one:g}", f"{two:g}", style="green" if two > one else "red")
    console.print(table)
    more = f"; {len(flipped) - SHOWN} more in --json and --markdown" if len(flipped) > SHOWN else ""
    console.print(
        f"better in the second: {len(made.gained)}, in the first: {len(made.lost)}{more}", highlight=False, markup=False
    )


def runs_or_path(name: str) -> Path:
    """A run's name under runs/ (a folder here may be called the same: ./NAME), or a path."""
    from sao.paths import runs_folder

    run = runs_folder() / name
    return run if "/" not in name and run.exists() else user_path(name)
