"""The sub-commands of `sao eval swebench`: run, grade, validate; and `sao eval compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from sao.cli_common import (
    Config_,
    Endpoint_,
    EndpointModel_,
    KeyEnv_,
    Model_,
    Plain_,
    Run_,
    Sandbox_,
    Set_,
    console,
    example,
    overrides_of,
)

if TYPE_CHECKING:
    from eval.swebench.grade import GradeSettings
    from sao.swebench import RowChoice

Split_ = Annotated[str, typer.Option(help="verified, lite, full or multilingual: SWE-bench's own sets, from the hub.")]
Rows_ = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Rows file instead: .jsonl, .json, .parquet, .csv, or a folder of save_to_disk."),
]
Stored_ = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--stored-rows", help="Rows in the current format of the same instances, for rows in the old one."),
]
Instance_ = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--instance", "-i", help="Only this instance. May be repeated."),
]
Skip_ = Annotated[Optional[str], typer.Option(help="Skip list made by validate.")]  # noqa: UP045
Limit_ = Annotated[Optional[int], typer.Option(help="Only the first so many rows.", min=1)]  # noqa: UP045
Network_ = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--network",
        help="Instance whose tests get Docker's bridge network, or a skip list (.json) of validate: the rows that need "
        "one by it. May be repeated. All others have none.",
    ),
]
Workers_ = Annotated[int, typer.Option(help="Evaluations at once.", min=1)]
Timeout_ = Annotated[float, typer.Option(help="Seconds for one instance's tests.", min=1)]
Memory_ = Annotated[float, typer.Option(help="GiB of memory of one evaluation.", min=0.1)]
Cpus_ = Annotated[float, typer.Option(help="CPU cores of one evaluation.", min=0.1)]
Tries_ = Annotated[int, typer.Option(help="Tries when image, engine, sandbox or package fail.", min=1)]


def _choice(split: str, rows: str | None, stored: str | None, instance: list[str] | None, skip: str | None,
            limit: int | None, network: list[str] | None) -> RowChoice:  # fmt: skip
    from sao.swebench import RowChoice

    return RowChoice(split, rows, stored, tuple(instance or ()), skip, limit, tuple(network or ()))


def _settings(workers: int, timeout: float, memory: float, cpus: float, tries: int) -> GradeSettings:
    from eval.swebench.grade import GradeSettings
    from sao.swebench import limits_of

    return GradeSettings(limits_of(timeout, memory, cpus), workers, tries)


def swebench(
    context: typer.Context,
    model: Model_ = None,
    endpoint: Endpoint_ = None,
    endpoint_model: EndpointModel_ = None,
    api_key_env: KeyEnv_ = None,
    split: Split_ = "verified",
    rows: Rows_ = None,
    stored_rows: Stored_ = None,
    instance: Instance_ = None,
    skip: Skip_ = None,
    limit: Limit_ = None,
    network: Network_ = None,
    config: Config_ = "swebench",
    overrides: Set_ = None,
    sandbox: Sandbox_ = None,
    workers: Workers_ = 4,
    timeout: Timeout_ = 1800.0,
    memory: Memory_ = 8.0,
    cpus: Cpus_ = 2.0,
    tries: Tries_ = 3,
    run: Run_ = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Never continue an unfinished run.")] = False,
    plain: Plain_ = False,
) -> None:
    """SWE-bench: the model works on every row, its patches are graded, and the report says how sure that is.

    Without a sub-command: the whole run. Started again, it continues: finished episodes and verdicts are kept."""
    if context.invoked_subcommand is not None:
        return
    from sao.config import load_config
    from sao.swebench import run_agent

    named = overrides_of(
        overrides,
        sandbox=sandbox,
        model=model,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        api_key_env=api_key_env,
    )
    code = run_agent(
        load_config(config, named),
        console(plain),
        _choice(split, rows, stored_rows, instance, skip, limit, network),
        settings=_settings(workers, timeout, memory, cpus, tries),
        run=run,
        fresh=fresh,
    )
    raise typer.Exit(code)


def grade(
    predictions: Annotated[str, typer.Option("--predictions", "-p", help=".jsonl, .json list or map (.gz); or gold.")],
    split: Split_ = "verified",
    rows: Rows_ = None,
    stored_rows: Stored_ = None,
    instance: Instance_ = None,
    skip: Skip_ = None,
    limit: Limit_ = None,
    network: Network_ = None,
    config: Config_ = "swebench",
    overrides: Set_ = None,
    sandbox: Sandbox_ = None,
    workers: Workers_ = 4,
    timeout: Timeout_ = 1800.0,
    memory: Memory_ = 8.0,
    cpus: Cpus_ = 2.0,
    tries: Tries_ = 3,
    run: Run_ = None,
    plain: Plain_ = False,
) -> None:
    """Grade anybody's predictions: the official package's verdict, our findings beside it."""
    from sao.config import load_config
    from sao.swebench import grade as run_grading

    code = run_grading(
        load_config(config, overrides_of(overrides, sandbox=sandbox)),
        console(plain),
        _choice(split, rows, stored_rows, instance, skip, limit, network),
        predictions=predictions,
        settings=_settings(workers, timeout, memory, cpus, tries),
        run=run,
    )
    raise typer.Exit(code)


def validate(
    repeats: Annotated[int, typer.Option(help="Runs of each; they must agree.", min=1)] = 1,
    split: Split_ = "verified",
    rows: Rows_ = None,
    stored_rows: Stored_ = None,
    instance: Instance_ = None,
    skip: Skip_ = None,
    limit: Limit_ = None,
    network: Network_ = None,
    config: Config_ = "swebench",
    overrides: Set_ = None,
    sandbox: Sandbox_ = None,
    workers: Workers_ = 4,
    timeout: Timeout_ = 1800.0,
    memory: Memory_ = 8.0,
    cpus: Cpus_ = 2.0,
    tries: Tries_ = 3,
    run: Run_ = None,
    plain: Plain_ = False,
) -> None:
    """Check task rows on this machine: the reference fix is resolved, doing nothing is not; writes a skip list."""
    from sao.config import load_config
    from sao.swebench import validate as run_validation

    code = run_validation(
        load_config(config, overrides_of(overrides, sandbox=sandbox)),
        console(plain),
        _choice(split, rows, stored_rows, instance, skip, limit, network),
        repeats=repeats,
        settings=_settings(workers, timeout, memory, cpus, tries),
        run=run,
    )
    raise typer.Exit(code)


def compare(
    first: Annotated[str, typer.Argument(help="Run folder, scores.json, SWE-bench summary, or reports .jsonl(.gz).")],
    second: Annotated[str, typer.Argument(help="The other one.")],
    json_file: Annotated[Optional[str], typer.Option("--json", help="Also write everything here.")] = None,  # noqa: UP045
    markdown_file: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--markdown", help="Also write the table of all instances here."),
    ] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap draws.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    plain: Plain_ = False,
) -> None:
    """Two results on the same instances: who solved what, McNemar's test, paired bootstrap, which flipped."""
    from sao.eval_compare import show_comparison

    show_comparison(
        console(plain), first, second, json_file=json_file, markdown_file=markdown_file, draws=draws, seed=seed
    )


def register(eval_app: typer.Typer) -> None:
    app = typer.Typer(
        invoke_without_command=True,
        epilog=example(
            "sao eval swebench --model my/model --split verified",
            "sao eval swebench --endpoint https://host/v1 --endpoint-model NAME --api-key-env MY_KEY",
            "sao eval swebench --model my/model --set agent.preset=paper --set rollout.concurrency=16",
            "sao eval swebench grade --predictions preds.json --split verified",
            "sao eval swebench grade --predictions gold --rows rows.jsonl --workers 16",
            "sao eval swebench validate --split verified --repeats 2",
            "sao eval swebench --split verified --network runs/swebench-validate-verified/skip.json",
        ),
    )
    app.callback()(swebench)
    app.command(
        "grade",
        epilog=example(
            "sao eval swebench grade --predictions preds.json",
            "sao eval swebench grade -p all_preds.jsonl --rows old_rows.jsonl --stored-rows current_rows.jsonl",
        ),
    )(grade)
    app.command("validate", epilog=example("sao eval swebench validate --rows rows.jsonl --repeats 3"))(validate)
    eval_app.add_typer(app, name="swebench")
    eval_app.command(
        "compare",
        epilog=example(
            "sao eval compare runs/a runs/b",
            "sao eval compare a.run.json b.run.json --json diff.json --markdown diff.md",
        ),
    )(compare)
