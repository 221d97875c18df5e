"""`sao eval aime2025 | beyondaime | imo-answerbench`: k samples of every problem, graded as they end, then the report.

The run folder is that of a rollout: its log is the truth, so a killed run goes on where it was, no sample is graded
twice, and the report is made from the log alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.presets import Preset, load_preset
from data.atomic import write_atomically
from data.log import TrajectoryLog
from data.maths_rows import Grading
from data.reading import read_object, user_path
from data.sets import known_sets
from data.task import Task
from envs.maths.grading import doubtful_golds
from envs.maths.verify import require_verifier, shared_comparer
from eval.endpoint import endpoint_summary
from eval.errors import EvalError
from eval.maths.judged import judge_rows
from eval.maths.page import write_maths_page
from eval.maths.protocol import Protocol, load_protocol
from eval.maths.report import Samples, figure_rows, markdown, run_report, scores
from sao.config import Config
from sao.endpoint import checked, is_endpoint
from sao.first_prompts import context_of, prompts_of
from sao.inherited import warn
from sao.judge import BOOK, JudgeChoice, judged_report
from sao.paths import model_folder

if TYPE_CHECKING:
    from sao.assemble import Parts

GOLDS = "golds.json"
"""Which problems are not scored, fixed when the run begins: draws are counted over the others."""


@dataclass(frozen=True)
class Choice:
    suite: str
    data: str | None = None
    """A local file instead of the hub."""
    protocol: str = "paper"
    python: bool = False
    samples: int | None = None
    limit: int | None = None
    judge: JudgeChoice | None = None


def run_suite(config: Config, console: Console, choice: Choice, *, run: str | None, fresh: bool) -> int:
    """Exit code 0; 1 when samples are missing. Raises EvalError and whatever a rollout raises."""
    from sao.assemble import copy_tokenizer, parts_of, tasks_of
    from sao.eval_turns import turns_of
    from sao.rollout import play
    from sao.rundir import open_run

    protocol = load_protocol(choice.protocol)
    k = choice.samples or protocol.samples_for(choice.suite)
    config = _configured(config, choice, protocol)
    if is_endpoint(config):  # before a download of the problems
        checked(config)
    else:
        model_folder(config.model.path)
    tasks = tasks_of(config)
    if any(task.row["grading"] == Grading.SYMBOLIC for task in tasks):
        require_verifier()
    digest = data_digest(tasks)
    config = _with_episodes(config, k * len(tasks))
    parts = parts_of(config)
    warn(console, prompts_of(config, parts))
    origin = {**parts.origin, "problems": digest, "protocol": protocol.sha256, "agent": parts.preset.label}
    opened = open_run(config, run, fresh=fresh, origin=origin)
    try:
        copy_tokenizer(parts.folder, opened.tokenizer)
        if choice.judge is not None and not (opened.path / BOOK).exists():
            choice.judge.check()  # it answers, before the policy works for hours
        not_scored = _not_scored(opened.path / GOLDS, tasks, console)
        scored = [task for task in tasks if task.task_id not in not_scored]
        if not scored:
            raise EvalError(f"no problem of {choice.suite} can be scored: {next(iter(not_scored.values()))}")
        config = _with_episodes(config, k * len(scored))
        parts = dataclasses.replace(parts, tasks=scored)
        code = asyncio.run(play(config, console, opened, parts))
        samples = Samples.of(TrajectoryLog(opened.log).read(), scored, k)
        if not samples.made:
            console.print("[yellow]No sample came to its end: nothing to report yet.[/yellow]")
            return 1
        facts = {
            "suite": choice.suite,
            "data": Path(choice.data).name if choice.data else known_sets()[choice.suite].hub,
            "data_sha256": digest,
            "model": parts.lineage,
            "engine": config.engine.kind,
            **_who(config, parts, opened.log, samples),
            **_method(config, protocol, parts.preset),
            "grader": _grader(scored),
        }
        report = run_report(samples, not_scored, facts)
        if choice.judge is not None:
            report = asyncio.run(judged_report(report, samples, choice.judge, opened.path, console))
        write_report(opened.path, report)
        texts = {task.task_id: str(task.row["problem"]) for task in tasks}
        turns = turns_of(opened.log, parts.tokenizer.decode, lambda one: one.identity.episode_id, longest=12_000)
        name = f"{opened.path.name}: {parts.lineage} on {choice.suite}"
        write_maths_page(opened.path / "report.html", name, report, texts, turns)
        show_report(console, report, opened.path)
        missing = report["coverage"] < 1 or report.get("judge", {}).get("coverage", 1) < 1
        return max(code, int(missing))
    finally:
        opened.close()


def _configured(config: Config, choice: Choice, protocol: Protocol) -> Config:
    known = known_sets()[choice.suite]
    path = str(user_path(choice.data, real=True)) if choice.data else ""
    tasks = {"name": choice.suite, "split": known.splits[0], "path": path, "limit": choice.limit or 0}
    name = protocol.agent_with_python if choice.python else protocol.agent
    agent = {"preset": name, "blind": False, "temperature": protocol.temperature}
    preset = load_preset(name)
    changes: dict[str, Any] = {
        "name": f"{choice.suite}-{protocol.name}{'-python' if choice.python else ''}",
        "tasks": config.tasks.model_copy(update=tasks),
        "agent": config.agent.model_copy(update=agent),
    }
    if not preset.tools:  # nothing runs anywhere, so nothing need be there for it
        changes["sandbox"] = config.sandbox.model_copy(update={"backend": "none"})
    return config.model_copy(update=changes)


def _with_episodes(config: Config, episodes: int) -> Config:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"episodes": episodes})})


def _not_scored(file: Path, tasks: Sequence[Task], console: Console) -> dict[str, str]:
    """Symbolic golds that do not verify against themselves; as the run found them when it began."""
    if file.exists():
        kept = read_object(file)
        if not all(isinstance(why, str) for why in kept.values()):
            raise EvalError(f"{file}: expected a reason as text for each problem. Restore it, or begin with --fresh")
        return kept
    golds = {task.task_id: task.row["answer"] for task in tasks if task.row["grading"] == Grading.SYMBOLIC}
    found: dict[str, str] = {}
    if golds:
        with console.status(f"grading {len(golds)} reference answers against themselves"):
            made = asyncio.run(doubtful_golds(golds, shared_comparer()))
        found = {name: f"the reference answer does not verify against itself ({why})" for name, why in made.items()}
    write_atomically(file, (json.dumps(found, indent=1) + "\n").encode())
    return found


def data_digest(tasks: Sequence[Task]) -> str:
    """Of ids, problems and answers, in order."""
    return _sha256(json.dumps([[task.task_id, task.row["problem"], task.row["answer"]] for task in tasks]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _method(config: Config, protocol: Protocol, preset: Preset) -> dict[str, Any]:
    omitted = config.endpoint.omit if is_endpoint(config) else ()
    return {
        "protocol": protocol.name,
        "protocol_sha256": protocol.sha256,
        "protocol_note": protocol.note,
        "agent": preset.label,
        "prompt_sha256": _sha256(json.dumps(preset.messages("{problem}"))),
        "python": bool(preset.tools),
        "max_turns": preset.limits.max_turns,
        "max_tokens": preset.limits.max_tokens,
        "temperature": None if "temperature" in omitted else config.agent.temperature,
        "top_p": None if "top_p" in omitted else protocol.top_p,
        "seed": config.rollout.seed,
        "seeds": "derive_seed(seed, 'draw', n) for draw n = sample * problems + problem",
    }


def _who(config: Config, parts: Parts, log: Path, samples: Samples) -> dict[str, Any]:
    """What is known of the model. Of an endpoint's neither template nor tokenizer is, but what it said of itself."""
    if is_endpoint(config):
        episodes = {one.episode for one in samples.made.values()}
        return {
            "max_context": context_of(config, parts.preset, parts.folder),
            "endpoint": {
                **endpoint_summary(TrajectoryLog(log).read(), episodes),
                "sent": {"extra": config.endpoint.extra, "omitted": list(config.endpoint.omit)},
            },
        }
    return {
        "template_sha256": _sha256(parts.tokenizer.chat_template),
        "tokenizer": parts.tokenizer.fingerprint,
        "max_context": context_of(config, parts.preset, parts.folder),
    }


def _grader(tasks: Sequence[Task]) -> str:
    kinds = {task.row["grading"] for task in tasks}
    names = ["exact integers"] if Grading.INTEGER in kinds else []
    if Grading.SYMBOLIC in kinds:
        names.append(f"math-verify {importlib.metadata.version('math-verify')}")
    return ", ".join(names)


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / "report.json", text.encode("utf-8", "backslashreplace"))
    named = f"{report['suite']}: {report['model']}"
    write_atomically(folder / "report.md", markdown(report, named, judge_rows(report)).encode())
    write_atomically(
        folder / "scores.json", (json.dumps(scores(report, f"{folder.name} ({report['model']})")) + "\n").encode()
    )


def show_report(console: Console, report: Mapping[str, Any], folder: Path) -> None:
    table = Table(title=f"{report['suite']} · {report['model']}", title_justify="left", show_header=False, box=None)
    judged = judge_rows(report)
    for row in figure_rows(report, judged, brief=True):
        table.add_row(*map(escape, row), style="magenta" if row in judged else None)
    console.print(table)
    for name, why in report["not_scored"].items():
        console.print(f"[yellow]not scored[/yellow] {escape(name)}: {escape(why)}", highlight=False)
    console.print(f"report: {folder / 'report.json'}, report.md, report.html", highlight=False)
