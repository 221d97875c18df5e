"""What the modules of the `sao` command share: common options, consoles, examples."""

from __future__ import annotations

from typing import Annotated, Optional

import typer
from rich.console import Console

Config_ = Annotated[str, typer.Option("--config", "-c", help="A TOML file, or a name in configs/.")]
Set_ = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--set", "-s", help="Override: section.key=value. May be repeated.", metavar="KEY=VALUE"),
]
Plain_ = Annotated[bool, typer.Option("--plain", help="No colours, no live view: plain lines.")]


def example(*lines: str) -> str:
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(f"  $ {line}" for line in lines)


def console(plain: bool = False) -> Console:
    return Console(no_color=plain, force_terminal=False if plain else None, highlight=not plain, soft_wrap=plain)
