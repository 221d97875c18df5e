"""What the modules of the `sao` command share: common options, consoles, examples."""

from __future__ import annotations

import json
from typing import Annotated, Optional

import typer
from rich.console import Console

from data.reading import user_path
from sao.paths import UserError
from sao.screen import Screen

Config_ = Annotated[str, typer.Option("--config", "-c", help="A TOML file, or a name in configs/.")]
Set_ = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--set", "-s", help="Override: section.key=value. May be repeated.", metavar="KEY=VALUE"),
]
Plain_ = Annotated[bool, typer.Option("--plain", help="No colours, no live view: plain lines.")]
Run_ = Annotated[Optional[str], typer.Option(help="Run folder to make or continue (a name under runs/, or a path).")]  # noqa: UP045
Model_ = Annotated[Optional[str], typer.Option(help="Model folder, an id of the hub (org/name), or demo.")]  # noqa: UP045
Endpoint_ = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="OpenAI-compatible endpoint as the model, e.g. http://127.0.0.1:8000/v1."),
]
EndpointModel_ = Annotated[Optional[str], typer.Option(help="The model's name at the endpoint.")]  # noqa: UP045
KeyEnv_ = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--api-key-env", help="Environment variable that holds the endpoint's key.", metavar="VARIABLE"),
]
Sandbox_ = Annotated[Optional[str], typer.Option(help="auto, docker or embedded.")]  # noqa: UP045


def overrides_of(given: list[str] | None, **named: object) -> list[str]:
    """`--set` values plus the options that have a name of their own."""
    keys = {"sandbox": "sandbox.backend", "model": "model.path", "steps": "train.steps", "seed": "rollout.seed"}
    keys |= {"control": "train.control", "critic": "train.critic", "batch": "train.batch"}
    keys |= {"endpoint": "endpoint.url", "endpoint_model": "endpoint.model", "api_key_env": "endpoint.key_env"}
    if named.get("endpoint") is not None:
        given = [*(given or []), "engine.kind='endpoint'"]
    elif any(named.get(name) is not None for name in ("endpoint_model", "api_key_env")):
        raise UserError("--endpoint-model and --api-key-env go with --endpoint, the address; nothing was started.")
    named_values = [f"{keys[name]}={value!r}" for name, value in named.items() if value is not None]
    return [*(given or []), *named_values]


def example(*lines: str) -> str:
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(f"  $ {line}" for line in lines)


def console(plain: bool = False) -> Console:
    return Screen(no_color=plain or None, force_terminal=False if plain else None, highlight=not plain, soft_wrap=plain)


def own_tasks(path: str | None) -> list[str]:
    """Rows of the user's own, wherever `sao` is started later. They come first among the overrides, so that
    `--set tasks.name=` can say whose columns they have (docs/data.md)."""
    return [] if path is None else [f"tasks.path={json.dumps(str(user_path(path, real=True)))}", "tasks.name=swe"]
