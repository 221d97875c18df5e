"""The sub-commands of `sao eval`, one a suite: held-out micro-SWE tasks, maths, SWE-bench, comparing two results.

A suite adds its commands to `eval_app`; what they do stands in a module of its own.
"""

from __future__ import annotations

import json
from typing import Annotated, Optional

import typer

from sao import cli_maths, cli_swebench
from sao.cli_common import (
    Config_,
    Endpoint_,
    EndpointModel_,
    KeyEnv_,
    Model_,
    Plain_,
    Sandbox_,
    Set_,
    console,
    example,
    overrides_of,
)

eval_app = typer.Typer(help="Score models on what they were not trained on.", no_args_is_help=True)


def micro_swe(
    config: Config_ = "demo",
    overrides: Set_ = None,
    model: Model_ = None,
    endpoint: Endpoint_ = None,
    endpoint_model: EndpointModel_ = None,
    api_key_env: KeyEnv_ = None,
    run: Annotated[
        str | None, typer.Option(help="Score a training run's model instead (name, path or latest).")
    ] = None,
    split: Annotated[Optional[list[str]], typer.Option(help="heldout, unseen or train; may be repeated.")] = None,  # noqa: UP045
    tasks: Annotated[int, typer.Option(help="Tasks per split.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="1 samples, 0 is greedy.", min=0)] = 1.0,
    sandbox: Sandbox_ = None,
    to: Annotated[Optional[str], typer.Option("--json", help="File that takes the scores, by split.")] = None,  # noqa: UP045
    plain: Plain_ = False,
) -> None:
    """Held-out generated tasks: pass rate with its 95 % Wilson interval, and a run folder like a rollout's."""
    from pathlib import Path

    from sao.config import load_config
    from sao.endpoint import is_endpoint
    from sao.evaluate import evaluate_splits
    from sao.paths import UserError, model_folder
    from sao.run_kinds import TRAINED
    from sao.rundir import find_run, write_atomically

    named = overrides_of(
        overrides,
        sandbox=sandbox,
        model=model,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        api_key_env=api_key_env,
    )
    resolved = load_config(config, named)
    if run and is_endpoint(resolved):
        raise UserError("--run and --endpoint name two models: leave one of them out.")
    folder = find_run(run, TRAINED) / "final" if run else model_folder(resolved.model.path)
    if not (Path(folder) / "config.json").is_file():
        raise UserError(
            f"{folder} holds no trained model: that run has not come to its end. Continue it, or pass --model."
        )
    out = console(plain)
    rows = evaluate_splits(
        resolved, out, model=folder, splits=split or ["heldout", "unseen"], tasks=tasks, temperature=temperature
    )
    if to is not None:
        write_atomically(Path(to), json.dumps({name: result.to_dict() for name, result in rows}, indent=1) + "\n")


def register(app: typer.Typer) -> None:
    eval_app.command(
        name="tasks",
        help="Held-out tasks of the configuration's own set (tasks.name): rate with its 95 % Wilson interval.",
        epilog=example(
            "sao eval tasks --config smollm2 --split heldout --temperature 0",
            "sao eval tasks --endpoint http://127.0.0.1:8000/v1 --endpoint-model NAME --set agent.preset=default",
        ),
    )(micro_swe)
    eval_app.command(
        name="micro-swe",
        epilog=example("sao eval micro-swe", "sao eval micro-swe --run latest --tasks 512 --temperature 0"),
    )(micro_swe)
    cli_maths.register(eval_app)
    cli_swebench.register(eval_app)
    app.add_typer(eval_app, name="eval")
