"""The sub-commands of sandboxes: `sao sandbox ls`, `sao sandbox gc`."""

from __future__ import annotations

from typing import Annotated

import typer

from sao.cli_common import Plain_, console, example

app = typer.Typer(help="What sandboxes are on this machine; removing what dead runs left.", no_args_is_help=True)


@app.command("ls", epilog=example("sao sandbox ls", "sao sandbox ls --json | jq '.found.docker[].name'"))
def ls(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    plain: Plain_ = False,
) -> None:
    """List containers, volumes, kept states, work folders and control groups of every run, and whose they are.

    Exit code 1 when something is abandoned."""
    from sao.sandbox import list_sandboxes

    raise typer.Exit(list_sandboxes(console(plain), as_json=as_json))


@app.command("gc", epilog=example("sao sandbox gc", "sao sandbox gc --dry-run"))
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    plain: Plain_ = False,
) -> None:
    """Remove what dead drivers left, or what is past its deadline. Living runs are not touched."""
    from sao.sandbox import collect_garbage

    raise typer.Exit(collect_garbage(console(plain), dry_run=dry_run))
