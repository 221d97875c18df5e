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
            "sao import runs-of-others/*.traj.json.gz",
            "sao import folder --run theirs",
            "sao replay theirs --list",
            "sao import folder --chats theirs.jsonl",
        ),
    )
    def import_(
        paths: Annotated[list[Path], typer.Argument(help="Trajectory files, or folders with them.")],
        run: Annotated[
            Optional[str],  # noqa: UP045 - typer reads the annotation at run time
            typer.Option(help="Run folder to make or add to (a name under runs/, or a path)."),
        ] = None,
        model: Annotated[str, typer.Option(help="Whose tokenizer makes the ids: a model folder, or demo.")] = "demo",
        chats: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="Write them as rows for `sao sft --chats` into this new .jsonl file instead of a run."),
        ] = None,
        plain: Plain_ = False,
    ) -> None:
        """Read trajectories of mini-swe-agent, SWE-agent, OpenHands, harbor (ATIF) into a run that `sao replay` shows.

        The run is for looking only: the files hold no log-probabilities, so reinforcement learning never takes it. With
        --chats they become conversations for fine-tuning, without those of benchmarks."""
        if chats is not None:
            from sao.import_chats import write_chats

            if run is not None:
                raise typer.BadParameter("--chats writes a file and makes no run: leave --run out")
            raise typer.Exit(write_chats(paths, console(plain), chats))
        from sao.imports import import_files

        raise typer.Exit(import_files(paths, console(plain), run=run, model=model))
