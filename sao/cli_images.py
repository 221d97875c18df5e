"""`sao images`: plan, pull, ls, prune."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from sao.cli_common import Config_, Plain_, Set_, console, example, own_tasks

app = typer.Typer(
    help="Docker images that tasks need: what is missing, fetching it, making room.", no_args_is_help=True
)
Tasks_ = Annotated[Optional[str], typer.Option(help="Your own rows: .jsonl, .json, .parquet, .csv.")]  # noqa: UP045
Episodes_ = Annotated[Optional[int], typer.Option(help="How many draws the run has.")]  # noqa: UP045
Json_ = Annotated[bool, typer.Option("--json", help="Facts as JSON.")]


def _overrides(given: list[str] | None, tasks: str | None, episodes: int | None = None) -> list[str]:
    return [*own_tasks(tasks), *(given or []), *([] if episodes is None else [f"rollout.episodes={episodes}"])]


@app.command(epilog=example("sao images plan --tasks rows.jsonl", "sao images plan --episodes 500 --sample -1 --json"))
def plan(
    config: Config_ = "demo",
    overrides: Set_ = None,
    tasks: Tasks_ = None,
    episodes: Episodes_ = None,
    sample: Annotated[
        int, typer.Option(help="Docker Hub images to measure (each counts as a pull there); -1: all.", min=-1)
    ] = 5,
    show_all: Annotated[bool, typer.Option("--all", help="List every missing image.")] = False,
    as_json: Json_ = False,
    plain: Plain_ = False,
) -> None:
    """Say what a run needs, what is missing, how much it is and whether it fits. Changes nothing."""
    from sao.config import load_config
    from sao.images import plan_images

    resolved = load_config(config, _overrides(overrides, tasks, episodes))
    raise typer.Exit(plan_images(resolved, console(plain), sample=sample, as_json=as_json, show_all=show_all))


@app.command(
    epilog=example("sao images pull --tasks rows.jsonl", "sao images pull python:3.11 --set images.parallel=1")
)
def pull(
    names: Annotated[Optional[list[str]], typer.Argument(help="Images; none: what the tasks need.")] = None,  # noqa: UP045
    config: Config_ = "demo",
    overrides: Set_ = None,
    tasks: Tasks_ = None,
    episodes: Episodes_ = None,
    plain: Plain_ = False,
) -> None:
    """Fetch missing images, with patience. Stopped or failed: the same command goes on where it was."""
    from sao.config import load_config
    from sao.images import pull_images

    raise typer.Exit(
        pull_images(load_config(config, _overrides(overrides, tasks, episodes)), console(plain), names or ())
    )


@app.command("ls", epilog=example("sao images ls", "sao images ls --json"))
def list_(config: Config_ = "demo", overrides: Set_ = None, as_json: Json_ = False, plain: Plain_ = False) -> None:
    """List the engine's images, the least recently used first, and why each stays or may go."""
    from sao.config import load_config
    from sao.images import list_images

    list_images(load_config(config, overrides or []), console(plain), as_json=as_json)


@app.command(
    epilog=example(
        "sao images prune --budget 200 --dry-run",
        "sao images prune --everything",
        "sao images prune --made",
        "sao images prune --made sao-real/parse-hyphen",
    )
)
def prune(
    names: Annotated[Optional[list[str]], typer.Argument(help="With --made: only these.")] = None,  # noqa: UP045
    config: Config_ = "demo",
    overrides: Set_ = None,
    budget: Annotated[Optional[float], typer.Option(help="GiB that all images may take.", min=0.001)] = None,  # noqa: UP045
    everything: Annotated[bool, typer.Option("--everything", help="All that may go, whatever the limits.")] = False,
    made: Annotated[
        bool, typer.Option("--made", help="Instead: all that was made here (real tasks, the toy row) and is not used.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    plain: Plain_ = False,
) -> None:
    """Remove images that sao pulled and nothing uses, the least recently used first, until the limits hold."""
    if names and not made:
        raise typer.BadParameter("names go with --made: what was pulled goes by when it was used")
    from sao.config import load_config
    from sao.images import prune_images

    chosen = [*(overrides or []), *([] if budget is None else [f"images.budget_gib={budget}"])]
    raise typer.Exit(
        prune_images(
            load_config(config, chosen),
            console(plain),
            everything=everything,
            dry_run=dry_run,
            made=made,
            names=names or (),
        )
    )
