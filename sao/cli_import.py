"""The sub-command `sao import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from sao.cli_common import Plain_, console, example


def register(app: typer.Typer) -> None:
    @app.command(
        "import",
        epilog=example(
            "sao import runs-of-others/*.traj.json.gz", "sao import folder --run theirs", "sao replay theirs --list"
        ),
    )
    def import_(
        paths: Annotated[list[Path], typer.Argument(help="Trajectory files, or folders with them.")],
        run: Annotated[
            Optional[str],  # noqa: UP045 - typer reads the annotation at run time
            typer.Option(help="Run folder to make or add to (a name under runs/, or a path)."),
        ] = None,
        model: Annotated[str, typer.Option(help="Whose tokenizer makes the ids: a model folder, or demo.")] = "demo",
        plain: Plain_ = False,
    ) -> None:
        """Read trajectories of mini-swe-agent, SWE-agent, OpenHands, harbor (ATIF) into a run that `sao replay` shows.

        They are for looking only: the files hold no log-probabilities, so nothing is ever trained on them."""
        from sao.imports import import_files

        raise typer.Exit(import_files(paths, console(plain), run=run, model=model))
