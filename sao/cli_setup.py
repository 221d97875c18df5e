"""The sub-command `sao setup`: the set-up scripts that ship with the package."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer

from sao.cli_common import example
from sao.paths import SETUP, UserError


def register(app: typer.Typer) -> None:
    @app.command(
        epilog=example("sao setup base-image", "sao setup docker-engine start", "sao setup docker-engine stop"),
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def setup(
        context: typer.Context,
        name: Annotated[str, typer.Argument(help="base-image or docker-engine.")],
    ) -> None:
        """Make the base image of demo sandboxes, or start a Docker engine where none runs (as root)."""
        script = SETUP / f"{name}.sh"
        known = sorted(path.stem for path in SETUP.glob("*.sh"))
        if name not in known:
            raise UserError(f"There is no set-up script {name!r}: choose {' or '.join(known)}. Nothing was started.")
        raise typer.Exit(subprocess.run(["bash", str(script), *context.args], check=False).returncode)
