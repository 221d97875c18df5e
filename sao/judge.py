"""The LLM judge of `sao eval imo-answerbench`: its options, its run over the answers, its part of the report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent.endpoint.client import ChatClient
from agent.endpoint.settings import EndpointSettings
from eval.maths.judge import ALL, UNDECIDED, JudgeBook, judge_all, load_prompt, wanted
from eval.maths.judged import with_judge
from eval.maths.report import Samples
from sao.endpoint import usable
from sao.paths import UserError

JUDGED_SUITE = "imo-answerbench"
BOOK = "judge.jsonl"


@dataclass(frozen=True)
class JudgeChoice:
    settings: EndpointSettings
    answers: str = UNDECIDED

    def __post_init__(self) -> None:
        """Raises UserError."""
        usable(self.settings, "judge")

    def check(self) -> None:
        """That the endpoint knows key and model. Raises EngineError."""

        async def ask() -> None:
            client = ChatClient(self.settings)
            try:
                await client.check(temperature=load_prompt().temperature)
            finally:
                await client.close()

        asyncio.run(ask())


def judge_choice(
    suite: str, url: str | None, model: str | None, key_env: str | None, answers: str
) -> JudgeChoice | None:
    """Raises UserError."""
    if url is None and model is None and key_env is None:
        return None
    if suite != JUDGED_SUITE:
        raise UserError(f"{suite} is graded by exact integers, which need no judge: --judge-… is for {JUDGED_SUITE}.")
    if url is None or model is None:
        raise UserError("A judge needs --judge-endpoint and --judge-model; nothing was started.")
    if answers not in (UNDECIDED, ALL):
        raise UserError(f"--judge-answers {answers!r}: choose {UNDECIDED} or {ALL}.")
    return JudgeChoice(EndpointSettings(url, model, key_env or ""), answers)


async def judged_report(
    report: Mapping[str, Any], samples: Samples, choice: JudgeChoice, folder: Path, console: Console
) -> dict[str, Any]:
    """The report with the judge's part; what it said is kept in the run folder, so only the rest is asked again."""
    prompt, asked = load_prompt(), wanted(samples, choice.answers)
    book = JudgeBook(folder / BOOK, prompt, choice.settings.model)
    client = ChatClient(choice.settings)
    try:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            bar = progress.add_task("judge", total=len(set(asked.values())))
            made = await judge_all(client, prompt, asked.values(), book, lambda: progress.advance(bar))
    finally:
        await client.close()
    return with_judge(report, samples, asked, made, prompt=prompt, model=choice.settings.model, which=choice.answers)
