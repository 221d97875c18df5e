"""The `sao` command. Every sub-command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sao import cli_eval, cli_images, cli_import, cli_sandbox, cli_serve, cli_setup, cli_train
from sao.cli_common import own_tasks
from sao.paths import UserError
from sao.screen import Screen, never_fail_to_print

app = typer.Typer(
    help="Train coding agents by reinforcement learning, in exact tokens and real sandboxes.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
tasks_app = typer.Typer(help="Look at tasks, bring your own repository.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
app.add_typer(cli_sandbox.app, name="sandbox")
app.add_typer(cli_images.app, name="images")

Config_ = Annotated[str, typer.Option("--config", "-c", help="A TOML file, or a name in configs/.")]
Set_ = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--set", "-s", help="Override: section.key=value. May be repeated.", metavar="KEY=VALUE"),
]
Plain_ = Annotated[bool, typer.Option("--plain", help="No colours, no live view: plain lines.")]


def _example(*lines: str) -> str:
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(f"  $ {line}" for line in lines)


def _backend(sandbox: str | None) -> list[str]:
    return [] if sandbox is None else [f"sandbox.backend={json.dumps(sandbox)}"]


def _console(plain: bool = False) -> Console:
    width = None if sys.stdout.isatty() else 140
    return Screen(no_color=plain or None, force_terminal=False if plain else None, highlight=not plain, width=width)


def _version(asked: bool) -> None:
    if asked:
        from data.installed import CHECKOUT, ROOT, version

        typer.echo(f"sao-rl {version()} ({'checkout' if CHECKOUT else 'installed in'} {ROOT})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=_example(
        "sao rollout",
        "sao rollout --episodes 200 --sandbox docker",
        "sao rollout --tasks my/rows.jsonl --model my/model --set agent.preset=default",
        "sao rollout --set engine.kind=vllm        # scripts/vllm-env.sh once",
        "sao rollout --set rollout.concurrency=16 --dry-run",
    )
)
def rollout(
    config: Config_ = "demo",
    overrides: Set_ = None,
    episodes: Annotated[Optional[int], typer.Option(help="How many draws the plan has.")] = None,  # noqa: UP045
    sandbox: Annotated[Optional[str], typer.Option(help="auto, docker or embedded.")] = None,  # noqa: UP045
    tasks: Annotated[Optional[str], typer.Option(help="Your own rows: .jsonl, .json, .parquet, .csv.")] = None,  # noqa: UP045
    model: Annotated[Optional[str], typer.Option(help="Model folder, an id of the hub (org/name), or demo.")] = None,  # noqa: UP045
    run: Annotated[
        str | None, typer.Option(help="Run folder to make or continue (a name under runs/, or a path).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Never continue an unfinished run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and its arithmetic.")
    ] = False,
    plain: Plain_ = False,
) -> None:
    """Run episodes in sandboxes and log their trajectories. An unfinished run of the same plan is continued."""
    from sao.config import load_config
    from sao.rollout import describe_plan
    from sao.rollout import rollout as run_rollout

    chosen = [*own_tasks(tasks), *(overrides or [])]
    if episodes is not None:
        chosen.append(f"rollout.episodes={episodes}")
    chosen += _backend(sandbox)
    if model is not None:
        chosen.append(f"model.path={json.dumps(model)}")
    resolved = load_config(config, chosen)
    console = _console(plain)
    if dry_run:
        describe_plan(resolved, console)
        return
    raise typer.Exit(run_rollout(resolved, console, run=run, fresh=fresh))


@app.command(
    epilog=_example("sao replay", "sao replay demo-001 --episode 3", "sao replay latest --list", "sao replay --execute")
)
def replay(
    run: Annotated[str, typer.Argument(help="Run folder, its name, or latest.")] = "latest",
    episode: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Episode id or draw number; default: the first that passed, else the first."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the run's episodes instead.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Run the tool calls again, report what differs.")] = False,
    sandbox: Annotated[Optional[str], typer.Option(help="Backend for --execute; default: the logged one.")] = None,  # noqa: UP045
    train: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Train again from the log alone: exact (bit-equal weights) or offpolicy."),
    ] = None,
    control: Annotated[Optional[str], typer.Option(help="For --train offpolicy: another algorithm.")] = None,  # noqa: UP045
    limit: Annotated[
        float, typer.Option(help="For --train offpolicy: rejected share that ends it.", min=0, max=1)
    ] = 0.2,
    overrides: Set_ = None,
    plain: Plain_ = False,
) -> None:
    """Show a logged trajectory turn by turn: spans in colour, tokens, log-probability, version, outcome."""
    if train is not None:
        from sao.train_offline import replay_training

        raise typer.Exit(
            replay_training(run, _console(plain), train, control=control, limit=limit, overrides=overrides or ())
        )
    from sao.replay import replay as show

    raise typer.Exit(show(run, episode, _console(plain), list_only=list_, execute=execute, sandbox=sandbox))


@app.command(epilog=_example("sao doctor", "sao doctor --at-once 64 --try", "sao doctor --json"))
def doctor(
    at_once: Annotated[int, typer.Option("--at-once", help="Sandboxes at once to judge the machine for.", min=1)] = 8,
    real_try: Annotated[bool, typer.Option("--try", help="Start sandboxes and try their promises (seconds).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
    plain: Plain_ = False,
) -> None:
    """Say what this machine can do, what each finding means, which promises it cannot keep, how to mend that."""
    from sao.doctor import diagnose
    from sao.doctor_finding import Load
    from sao.doctor_view import as_facts, show

    findings = diagnose(Load(sandboxes=at_once), real_try=real_try)
    if as_json:
        typer.echo(json.dumps(as_facts(findings), indent=2))
    else:
        show(findings, _console(plain))
    raise typer.Exit(1 if any(finding.level == "fail" for finding in findings) else 0)


@app.command(name="config", epilog=_example("sao config demo", "sao config --describe"))
def show_config(
    config: Annotated[str, typer.Argument(help="A TOML file, or a name in configs/.")] = "demo",
    overrides: Set_ = None,
    describe: Annotated[bool, typer.Option("--describe", help="Every key with its default and meaning.")] = False,
) -> None:
    """Print the resolved configuration."""
    from sao.config import Config, load_config
    from sao.config import describe as fields

    if not describe:
        typer.echo(load_config(config, overrides or []).to_toml(), nl=False)
        return
    table = Table("key", "default", "meaning", box=None)
    for row in fields(Config):
        table.add_row(*map(escape, row))
    _console().print(table)


@tasks_app.command("show", epilog=_example("sao tasks show", "sao tasks show --set tasks.split=heldout --fix"))
def tasks_show(
    config: Config_ = "demo",
    overrides: Set_ = None,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.", min=1)] = 3,
    fix: Annotated[bool, typer.Option("--fix", help="Show the reference fix too (spoils it).")] = False,
    plain: Plain_ = False,
) -> None:
    """Show the first tasks of a configuration."""
    from sao.config import load_config
    from sao.tasks import show_tasks

    show_tasks(load_config(config, overrides or []), _console(plain), count, fix)


@tasks_app.command("validate", epilog=_example("sao tasks validate --tasks my/rows.jsonl", "sao tasks validate -n 20"))
def tasks_validate(
    config: Config_ = "demo",
    overrides: Set_ = None,
    tasks: Annotated[Optional[str], typer.Option(help="Your own rows.")] = None,  # noqa: UP045
    sandbox: Annotated[Optional[str], typer.Option(help="auto, docker or embedded.")] = None,  # noqa: UP045
    count: Annotated[Optional[int], typer.Option("--count", "-n", help="Only the first so many.", min=1)] = None,  # noqa: UP045
    repeats: Annotated[int, typer.Option(help="Runs of each; they must agree.", min=1)] = 1,
    plain: Plain_ = False,
) -> None:
    """Check that tasks tell right from wrong: the reference fix passes, doing nothing fails, repeats agree."""
    from sao.config import load_config
    from sao.tasks import validate_tasks

    resolved = load_config(config, [*own_tasks(tasks), *(overrides or []), *_backend(sandbox)])
    if count is None and not tasks and not resolved.tasks.path:
        count = 16  # generated sets are as long as one likes
    raise typer.Exit(validate_tasks(resolved, _console(plain), repeats, count))


@tasks_app.command(
    "pack",
    epilog=_example(
        "sao tasks pack --repo ~/src/thing --base v1.2 --fix 3f2a9c1 --tests tests "
        '--test-command "python3 -m unittest -v tests.test_x" --problem @issue.md --out my/rows.jsonl'
    ),
)
def tasks_pack(
    repo: Annotated[Path, typer.Option(help="Your git repository (only read).", exists=True, file_okay=False)],
    base: Annotated[str, typer.Option(help="Revision the agent starts from.")],
    fix: Annotated[str, typer.Option(help="Revision or patch file with the fix and its tests.")],
    tests: Annotated[list[str], typer.Option(help="Path that holds tests. May be repeated.")],
    test_command: Annotated[str, typer.Option(help="unittest -v or pytest -rA, run in the repository.")],
    problem: Annotated[str, typer.Option(help="What the agent is told; @FILE reads it from a file.")],
    out: Annotated[Path, typer.Option(help="Rows file to add to; the bundle goes beside it.")] = Path("rows.jsonl"),
    image: Annotated[str, typer.Option(help="Docker image that the tests need; empty: python3 and git do.")] = "",
    sandbox: Annotated[Optional[str], typer.Option(help="auto, docker or embedded.")] = None,  # noqa: UP045
    plain: Plain_ = False,
) -> None:
    """Pack your own repository as a task: the tests really run, without and with the fix."""
    from data.reading import is_file, read_text, shown, user_path
    from sao.config import load_config
    from sao.tasks import pack_task

    if problem.startswith("@"):
        file = user_path(problem[1:])
        if not is_file(file):
            raise UserError(f"--problem names the file {shown(file)}, which does not exist or is no file.")
        problem = read_text(file)
    code = pack_task(
        load_config("demo", _backend(sandbox)),
        _console(plain),
        repo=repo,
        base=base,
        fix=Path(fix) if Path(fix).is_file() else fix,
        tests=tests,
        test_command=test_command,
        problem=problem,
        out=out,
        image=image,
    )
    raise typer.Exit(code)


@app.command(
    "sft",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def sft(context: typer.Context) -> None:
    """Fine-tune a causal LM on demonstrations of the tool protocol. `sao sft --help` lists its options."""
    from trainer.sft import main as run

    run(context.args)


cli_train.register(app)
cli_eval.register(app)
cli_import.register(app)
cli_serve.register(app)
cli_setup.register(app)


def main() -> None:
    """Entry point: user errors are one paragraph and exit code 2, never a traceback."""
    from sao.errors import exit_code_and_text

    never_fail_to_print()
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        Screen(stderr=True).print("[yellow]Stopped. What was finished is in the log; start again to continue.[/yellow]")
        sys.exit(130)
    except Exception as error:
        known = exit_code_and_text(error)
        if known is None:
            raise
        code, text = known
        Screen(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/red] {escape(text)}")
        sys.exit(code)
