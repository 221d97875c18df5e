"""The sub-command of serving: `sao serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from data.installed import get_vllm
from sao.cli_common import Config_, Model_, Plain_, Set_, console, example, overrides_of


def serve(
    config: Config_ = "demo",
    overrides: Set_ = None,
    model: Model_ = None,
    count: Annotated[int, typer.Option("--count", "-n", help="Servers.", min=1)] = 1,
    port: Annotated[
        int, typer.Option(help="Of the first server; the others follow. 0: free ones.", min=0, max=65535)
    ] = 8321,
    host: Annotated[str, typer.Option(help="Its verbs ask for no password: keep it on the loopback.")] = "127.0.0.1",
    logs: Annotated[Path, typer.Option(help="Folder for the servers' logs.")] = Path("runs/serving"),
    connect: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Start nothing: look at a running server at this address. May be repeated."),
    ] = None,
    show: Annotated[bool, typer.Option("--dry-run", help="Print the servers' command and environment.")] = False,
    plain: Plain_ = False,
) -> None:
    """Start and supervise vLLM servers until Ctrl-C: health, restart, logs, whole process trees ended.

    A run uses them with --set engine.kind=vllm --set 'engine.servers=["http://127.0.0.1:8321"]', one run at a time.
    Without that, it starts servers of its own."""
    from sao.config import load_config
    from sao.serve import check_running, describe, serve_until_stopped

    view = console(plain)
    if connect:
        raise typer.Exit(check_running(connect, view))
    resolved = load_config(config, overrides_of(overrides, model=model))
    if show:
        describe(resolved, view, count=count, host=host, port=port)
        return
    raise typer.Exit(serve_until_stopped(resolved, view, count=count, host=host, port=port, logs=logs))


def register(app: typer.Typer) -> None:
    app.command(
        name="serve",
        epilog=example(
            f"{get_vllm()}   # once: .venv-vllm",
            "sao serve",
            "sao serve --model my/model --count 2 --port 9000",
            "sao serve --connect http://127.0.0.1:8321   # is it fit for a run?",
            """sao rollout --set engine.kind=vllm --set 'engine.servers=["http://127.0.0.1:8321"]'""",
        ),
    )(serve)
