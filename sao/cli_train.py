"""The sub-commands of training: `sao train`, `sao pretrain-value`, `sao export`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from sao.cli_common import Config_, Model_, Plain_, Run_, Sandbox_, Set_, console, example, overrides_of, own_tasks


def train(
    config: Config_ = "demo",
    overrides: Set_ = None,
    steps: Annotated[Optional[int], typer.Option(help="Training steps.")] = None,  # noqa: UP045
    batch: Annotated[Optional[int], typer.Option(help="Trajectories of one step.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Seed of the plan and of every draw.")] = None,  # noqa: UP045
    control: Annotated[Optional[str], typer.Option(help="sao, or one of its controls.")] = None,  # noqa: UP045
    critic: Annotated[Optional[str], typer.Option(help="Folder made by sao pretrain-value.")] = None,  # noqa: UP045
    tasks: Annotated[Optional[str], typer.Option(help="Your own rows: .jsonl, .json, .parquet, .csv.")] = None,  # noqa: UP045
    sandbox: Sandbox_ = None,
    model: Model_ = None,
    run: Run_ = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Never continue an unfinished run.")] = False,
    score: Annotated[int, typer.Option(min=0, help="Held-out tasks scored before and after; 0: none.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and its plan.")] = False,
    plain: Plain_ = False,
) -> None:
    """Train the policy on its own sandbox episodes: rollouts in one process, the trainer in another."""
    from data.contamination import refuse_evaluation_tasks
    from sao.assemble import tasks_of
    from sao.config import load_config
    from sao.first_prompts import prompts_of_plan
    from sao.inherited import warn
    from sao.train import describe_training
    from sao.train import train as run_training

    named = {"steps": steps, "batch": batch, "seed": seed, "control": control, "critic": critic}
    chosen = [*own_tasks(tasks), *overrides_of(overrides, sandbox=sandbox, model=model, **named)]
    resolved = load_config(config, chosen)
    if dry_run:  # what would refuse the run refuses its plan
        planned = tasks_of(resolved)
        refuse_evaluation_tasks(planned)
        warn(console(plain), prompts_of_plan(resolved, planned))
        describe_training(resolved, console(plain), run=run, fresh=fresh)
        return
    raise typer.Exit(run_training(resolved, console(plain), run=run, fresh=fresh, score=score))


def pretrain_value(
    runs: Annotated[
        list[str], typer.Argument(help="Runs of `sao rollout` with one frozen policy (name, path, latest).")
    ],
    out: Annotated[str, typer.Option(help="Folder to make for the critic.")] = "critic",
    config: Config_ = "demo",
    overrides: Set_ = None,
    model: Model_ = None,
    plain: Plain_ = False,
) -> None:
    """Train a critic on how a frozen policy's episodes end, gated on held-out explained variance."""
    from pathlib import Path

    from sao.config import load_config
    from sao.run_kinds import FROZEN
    from sao.rundir import find_run
    from sao.train_offline import pretrain_value as fit

    logs = [find_run(run, FROZEN) / "log" for run in runs]
    fit(load_config(config, overrides_of(overrides, model=model)), console(plain), logs, Path(out))


def export(
    run: Annotated[str, typer.Argument(help="A run of `sao train` (name, path, latest).")],
    out: Annotated[str, typer.Option(help="Folder to make for the model.")],
    version: Annotated[Optional[int], typer.Option(min=0, help="Default: the newest.")] = None,  # noqa: UP045
    plain: Plain_ = False,
) -> None:
    """Write a version of a run's weights with its tokenizer as a model folder of its own."""
    from pathlib import Path

    from sao.export import export as write
    from sao.run_kinds import TRAINING
    from sao.rundir import find_run

    write(find_run(run, TRAINING), Path(out), console(plain), version)


def register(app: typer.Typer) -> None:
    app.command(
        name="train",
        epilog=example(
            "sao train",
            "sao train --steps 50 --score 200",
            "sao train --control one_critic_update --seed 1 --run k1-seed1",
            "sao train --set train.batch=16 --dry-run",
        ),
    )(train)
    app.command(
        name="pretrain-value",
        epilog=example(
            "sao rollout --episodes 1024 --run frozen",
            "sao pretrain-value frozen --out runs/critic",
            "sao train --critic runs/critic",
        ),
    )(pretrain_value)
    app.command(
        name="export",
        epilog=example(
            "sao export demo-train-001 --out models/trained",
            "sao export demo-train-001 --version 118 --out models/v118",
            "sao eval micro-swe --model models/trained",
        ),
    )(export)
