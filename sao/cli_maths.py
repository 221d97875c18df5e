"""The sub-commands of `sao eval` for competition mathematics, one a suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Optional

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

SUITES = {
    "aime2025": "AIME 2025: 30 problems, exact integers.",
    "beyondaime": "BeyondAIME: 100 problems, exact integers.",
    "imo-answerbench": "IMO-AnswerBench: 400 problems, compared by math-verify; integers also reported apart.",
}


_JUDGED = {
    "imo-answerbench": (
        "sao eval imo-answerbench --model my/model --judge-endpoint http://127.0.0.1:8000/v1 --judge-model NAME",
    )
}


def _command(suite: str, about: str) -> Callable[..., None]:
    def command(
        model: Model_ = None,
        endpoint: Endpoint_ = None,
        endpoint_model: EndpointModel_ = None,
        api_key_env: KeyEnv_ = None,
        data: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(help="Local file with the problems; default: the hub's set (docs/evaluation.md)."),
        ] = None,
        protocol: Annotated[str, typer.Option(help="paper, matharena, or your own .toml file.")] = "paper",
        python: Annotated[bool, typer.Option("--python", help="With the Python tool, in a sandbox.")] = False,
        samples: Annotated[Optional[int], typer.Option(help="Of each problem; default: the protocol's.", min=1)] = None,  # noqa: UP045
        limit: Annotated[Optional[int], typer.Option(help="Only the first so many problems.", min=1)] = None,  # noqa: UP045
        seed: Annotated[Optional[int], typer.Option(help="Of every draw.")] = None,  # noqa: UP045
        judge_endpoint: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(help="imo-answerbench: endpoint of an LLM judge; its figures stand beside the rules'."),
        ] = None,
        judge_model: Annotated[Optional[str], typer.Option(help="The judge's name there.")] = None,  # noqa: UP045
        judge_key_env: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(help="Environment variable that holds the judge's key.", metavar="VARIABLE"),
        ] = None,
        judge_answers: Annotated[
            str, typer.Option(help="undecided: answers that the rules cannot decide; all: every answer.")
        ] = "undecided",
        config: Config_ = "demo",
        overrides: Set_ = None,
        sandbox: Sandbox_ = None,
        run: Run_ = None,
        fresh: Annotated[bool, typer.Option("--fresh", help="Never continue an unfinished run.")] = False,
        plain: Plain_ = False,
    ) -> None:
        from sao.config import load_config
        from sao.judge import judge_choice
        from sao.maths import Choice, run_suite

        named = overrides_of(
            overrides,
            sandbox=sandbox,
            model=model,
            seed=seed,
            endpoint=endpoint,
            endpoint_model=endpoint_model,
            api_key_env=api_key_env,
        )
        resolved = load_config(config, named)
        judge = judge_choice(suite, judge_endpoint, judge_model, judge_key_env, judge_answers)
        choice = Choice(suite, data, protocol, python, samples, limit, judge)
        raise typer.Exit(run_suite(resolved, console(plain), choice, run=run, fresh=fresh))

    command.__doc__ = f"{about} k samples each: avg@k with its interval, pass@k. Started again, it continues."
    return command


def register(eval_app: typer.Typer) -> None:
    for suite, about in SUITES.items():
        eval_app.command(
            suite,
            epilog=example(
                *_JUDGED.get(suite, ()),
                f"sao eval {suite} --model my/model",
                f"sao eval {suite} --model my/model --protocol matharena --samples 4",
                f"sao eval {suite} --data problems.jsonl --python --limit 10",
                f"sao eval {suite} --endpoint http://127.0.0.1:8000/v1 --endpoint-model NAME --python",
            ),
        )(_command(suite, about))
