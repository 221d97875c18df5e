"""`sao eval swebench`: an agent's run graded in one go, anybody's predictions graded, task rows validated.

The verdict is the official package's; what our guards found stands beside it. Every stage can be killed and started
again: finished episodes and verdicts are kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data.atomic import write_atomically
from data.loaders import load_tasks
from data.reading import user_path
from eval.errors import EvalError
from eval.page import Section, shortened
from eval.swebench.execute import EvalLimits
from eval.swebench.grade import Grader, GradeSettings
from eval.swebench.official import Harness, harness_version
from eval.swebench.outcome import Graded
from eval.swebench.page import write_swebench_page
from eval.swebench.predictions import Prediction, read_predictions
from eval.swebench.report import figure_rows, markdown, run_report, scores, unknown_ids
from eval.swebench.rows import HUB_SETS, HarnessRow, choose, harness_rows, stored_rows
from eval.swebench.skipping import read_skip_list
from eval.swebench.store import EvalFolder
from eval.swebench.validate import check_rows, skip_list
from sao.backend import backend_of
from sao.config import Config
from sao.eval_view import GradingView
from sao.paths import runs_folder

if TYPE_CHECKING:
    from agent.presets import Preset

TOYS = ("demo", "micro", "sums")
"""Presets of generated tasks."""


@dataclass(frozen=True)
class RowChoice:
    """Which task rows: a set of the hub by `split`, or `rows`, a file."""

    split: str = "verified"
    rows: str | None = None
    stored: str | None = None
    instances: Sequence[str] = ()
    skip: str | None = None
    limit: int | None = None
    network: Sequence[str] = ()
    """Instances whose tests get a network: ids, or skip lists of validate, which name the rows that need it."""

    @property
    def label(self) -> str:
        return Path(self.rows).name.split(".")[0] if self.rows else self.split

    @property
    def source(self) -> tuple[str, str, str | None]:
        """(name, split, path) for load_tasks. Raises EvalError."""
        if self.rows is not None:
            return "swebench", "test", str(user_path(self.rows, real=True))
        if self.split not in HUB_SETS:
            raise EvalError(f"no split {self.split!r}: choose {', '.join(HUB_SETS)}, or give your own rows with --rows")
        return HUB_SETS[self.split], "test", None

    def load(self) -> list[HarnessRow]:
        """Raises EvalError, TaskError."""
        stored = stored_rows(self.stored) if self.stored else None
        rows = harness_rows(load_tasks(*self.source), stored)
        named = {word for word in self.network if not word.endswith(".json")}
        if unknown := sorted(named - {row.instance_id for row in rows}):
            raise EvalError(f"the task set has no instance {', '.join(unknown[:5])}; check --network")
        rows = choose(rows, self.instances)
        left_out = read_skip_list(self.skip).left_out(self._networked()) if self.skip else frozenset()
        rows = [row for row in rows if row.instance_id not in left_out][: self.limit]
        if not rows:
            raise EvalError("no row is left to evaluate: look at --instance, --skip and --limit")
        return rows

    def validated(self, rows: Sequence[HarnessRow]) -> frozenset[str]:
        """Of `rows` those that a list of validate calls good, and that have not changed since. Raises EvalError."""
        words = [word for word in (self.skip, *self.network) if word and word.endswith(".json")]
        good = {name: digest for word in words for name, digest in read_skip_list(word).good.items()}
        return frozenset(row.instance_id for row in rows if good.get(row.instance_id) == row.digest())

    def settings(self, settings: GradeSettings, rows: Sequence[HarnessRow]) -> GradeSettings:
        """With the network switched on for those of `rows` that are named. Raises EvalError."""
        return dataclasses.replace(settings, network=self._networked() & {row.instance_id for row in rows})

    def _networked(self) -> frozenset[str]:
        lists = [read_skip_list(word).need_network for word in self.network if word.endswith(".json")]
        return frozenset(word for word in self.network if not word.endswith(".json")).union(*lists)


def limits_of(timeout_s: float, memory_gib: float, cpus: float) -> EvalLimits:
    return EvalLimits(timeout_s=timeout_s, memory_bytes=int(memory_gib * (1 << 30)), cpus=cpus)


def grade(
    config: Config,
    console: Console,
    choice: RowChoice,
    *,
    predictions: str,
    settings: GradeSettings,
    run: str | None,
) -> int:
    """Grade a predictions file, or `gold`. Exit code 1 when an instance has no verdict about the model."""
    harness_version()  # says what is missing before anything else starts
    rows = choice.load()
    settings = choice.settings(settings, rows)
    if predictions == "gold":
        given = {row.instance_id: Prediction(row.instance_id, "gold", str(row.row.get("patch") or "")) for row in rows}
    else:
        given = read_predictions(predictions)
    name = run or f"swebench-{choice.label}-{Path(predictions).name.split('.')[0]}"
    with EvalFolder(runs_folder() / name) as folder:
        return asyncio.run(_grade(config, console, rows, given, settings, folder, choice))


async def _grade(
    config: Config,
    console: Console,
    rows: Sequence[HarnessRow],
    predictions: Mapping[str, Prediction],
    settings: GradeSettings,
    folder: EvalFolder,
    choice: RowChoice,
    turns: Mapping[str, Sequence[Section]] | None = None,
    endpoint: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
) -> int:
    if unknown := unknown_ids([row.instance_id for row in rows], predictions):
        shown = ", ".join(unknown[:5]) + (" …" if len(unknown) > 5 else "")
        console.print(
            f"predictions outside of this task set, not graded: {len(unknown)} ({shown})", style="yellow", markup=False
        )
    work = [(row, predictions[row.instance_id]) for row in rows if row.instance_id in predictions]
    if not work:
        raise EvalError("no prediction is for an instance of this task set: look at --split, --rows and --predictions")
    backend = await backend_of(config, folder.name)
    try:
        await backend.reap()
        async with Harness() as harness:
            title = f"{folder.name} · swebench {harness.version} · {backend.name} sandboxes"
            with GradingView(console, len(work), title) as view:
                made = await Grader(backend, harness, folder, settings).run(work, view.observe)
    finally:
        await backend.close()
    graded = {each.instance_id: each for each in made}
    facts = _facts(predictions, settings, harness.version, choice.label, backend.name)
    if agent:
        facts["agent"] = dict(agent)
    if endpoint:
        facts["endpoint"] = dict(endpoint)
    report = run_report(rows, predictions, graded, validated=choice.validated(rows), **facts)
    model = facts["model"]
    folder.write_json("report.json", report)
    folder.write_json(f"{model.replace('/', '__')}.{folder.name}.json", report)  # under its official name too
    folder.write_json("scores.json", scores(rows, graded, f"{folder.name} ({model})"))
    write_atomically(folder.path / "report.md", markdown(report, f"{folder.name}: {model}", graded).encode())
    page = write_swebench_page(folder, report, predictions, graded, turns)
    show_report(console, report, graded, folder.path)
    console.print(f"page: {page}", highlight=False)
    return int(any(not each.about_model for each in graded.values()))


def _facts(
    predictions: Mapping[str, Prediction], settings: GradeSettings, version: str, label: str, sandbox: str
) -> dict[str, Any]:
    """What a reader needs to know beside the numbers; nothing that differs between two starts of the same run."""
    official = [each.official() for _, each in sorted(predictions.items())]
    return {
        "suite": "swebench",
        "split": label,
        "model": next(iter(predictions.values())).model,
        "harness": f"swebench {version}",
        "sandbox": sandbox,
        "network": "bridge, for network_ids alone" if settings.network else "none",
        "timeout_s": settings.limits.timeout_s,
        "memory_bytes": settings.limits.memory_bytes,
        "predictions_sha256": hashlib.sha256(json.dumps(official).encode()).hexdigest(),
    }


def show_report(console: Console, report: Mapping[str, Any], graded: Mapping[str, Graded], place: Path) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for row in figure_rows(report):
        table.add_row(*map(escape, row))
    console.print(table)
    for name, found in list(report["findings"].items())[:10]:
        console.print(f"[magenta]{escape(name)}[/]: {escape('; '.join(found))[:300]}", highlight=False)
    for name, each in graded.items():
        if not each.about_model:
            why = escape(shortened(each.reason.strip(), 600))
            console.print(f"[red]{escape(name)}[/]: {each.error or 'environment'}: {why}", highlight=False)
    if report["disagreement_ids"]:
        console.print(
            f"[red]our resolve rule disagrees with the package on: {escape(', '.join(report['disagreement_ids']))}[/]"
        )
    console.print(f"report: {place / 'report.json'}, report.md    logs: {place / 'logs'}", highlight=False)


def validate(
    config: Config, console: Console, choice: RowChoice, *, repeats: int, settings: GradeSettings, run: str | None
) -> int:
    """Reference fix resolved, nothing unresolved, repeats agree; writes skip.json. Exit code 1 when a row fails."""
    harness_version()
    rows = choice.load()
    settings = choice.settings(settings, rows)

    async def go() -> int:
        with EvalFolder(runs_folder() / (run or f"swebench-validate-{choice.label}")) as folder:
            backend = await backend_of(config, folder.name)
            try:
                await backend.reap()
                async with Harness() as harness:
                    title = f"{folder.name} · {len(rows)} rows, {repeats} runs of each"
                    with GradingView(console, 2 * repeats * len(rows), title) as view:
                        grader = Grader(backend, harness, folder, settings)
                        checks = await check_rows(grader, rows, repeats=repeats, observer=view.observe)
            finally:
                await backend.close()
            facts = {"split": choice.label, "repeats": repeats, "harness": f"swebench {harness.version}"}
            path = folder.write_json("skip.json", skip_list(checks, **facts))
        for check in checks:
            for problem in check.problems:
                console.print(f"[red]{escape(check.instance_id)}[/]: {escape(problem)}", highlight=False)
            for fault in check.faults:
                console.print(f"[yellow]{escape(check.instance_id)}[/] not checked: {escape(fault)}", highlight=False)
        usable = sum(check.usable for check in checks)
        console.print(f"{usable} of {len(checks)} rows usable · skip list: {path}", highlight=False)
        return 0 if usable == len(checks) else 1

    return asyncio.run(go())


def refuse_demo(config: Config, preset: Preset, rows: Sequence[HarnessRow]) -> None:
    """What was taught to mend generated repositories says nothing about real ones. Raises EvalError."""
    real = next((row for row in rows if row.swe.files is None), None)
    if real is None:
        return
    if config.model.path == "demo" and config.engine.kind != "endpoint":
        raise EvalError(
            f"the demo policy cannot work on {real.instance_id}: it knows generated repositories alone. Give the model "
            "with --model FOLDER or --endpoint URL; nothing was started"
        )
    if "bash" not in preset.tools and preset.name in TOYS:
        raise EvalError(
            f"agent.preset {preset.name} is for generated tasks ({preset.limits.max_turns} turns, no shell), "
            f"{real.instance_id} is a real one. Leave it out (default), or choose paper, mini or editor; nothing was "
            "started"
        )


def agent_facts(config: Config, preset: Preset) -> dict[str, Any]:
    """What the agent was, for report, page and JSON: two results compare only where these are the same."""
    limits, omitted = preset.limits, config.endpoint.omit if config.engine.kind == "endpoint" else ()
    prompt = json.dumps(preset.messages("{problem}"), ensure_ascii=False)
    return {
        "preset": preset.label,
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "tools": list(preset.tools),
        "temperature": None if "temperature" in omitted else config.agent.temperature,
        "max_turns": limits.max_turns,
        "max_tokens": limits.max_tokens,
        "max_context": limits.max_context,
        "sandbox_memory_mib": config.sandbox.memory_mib,
    }


async def _check_network(config: Config) -> None:
    """Before an agent works for hours. Its own sandboxes have no network whatever is said here."""
    backend = await backend_of(config, "network-check")
    try:
        await backend.check_network()
    finally:
        await backend.close()


def run_agent(
    config: Config,
    console: Console,
    choice: RowChoice,
    *,
    settings: GradeSettings,
    run: str | None,
    fresh: bool,
) -> int:
    """The model works on every row; each patch is graded as its episode ends; then the report."""
    from agent.presets import load_preset
    from agent.tokenizer import load_tokenizer
    from data.log import TrajectoryLog
    from eval.endpoint import endpoint_summary
    from sao.assemble import copy_tokenizer, environments_of, parts_of
    from sao.endpoint import checked, is_endpoint
    from sao.eval_agent import predictions_of, verifiers
    from sao.eval_turns import turns_of
    from sao.first_prompts import prompts_of
    from sao.inherited import warn
    from sao.rollout import play
    from sao.rundir import open_run

    if is_endpoint(config):  # before a download of rows
        checked(config)
    harness_version()
    rows = choice.load()
    settings = choice.settings(settings, rows)
    name, split, path = choice.source
    tasks = config.tasks.model_copy(update={"name": name, "split": split, "path": path or "", "limit": 0})
    rollout = config.rollout.model_copy(update={"episodes": len(rows)})
    config = config.model_copy(update={"name": f"swebench-{choice.label}", "tasks": tasks, "rollout": rollout})
    preset = load_preset(config.agent.preset)
    refuse_demo(config, preset, rows)
    patience = settings.tries * (settings.limits.timeout_s + 900.0)
    limits = preset.limits.model_copy(update={"grade_timeout_s": max(preset.limits.grade_timeout_s, patience)})
    parts = dataclasses.replace(
        parts_of(config, judged_elsewhere=True),
        tasks=[row.task for row in rows],
        preset=preset.model_copy(update={"limits": limits}),
    )
    if settings.network:
        asyncio.run(_check_network(config))
    warn(console, prompts_of(config, parts))
    opened = open_run(config, run, fresh=fresh, origin=parts.origin)

    async def go() -> int:
        with EvalFolder(opened.path / "grading", opened.path.name) as folder:
            async with Harness() as harness:

                def environments(config: Config, preset: Any, backend: Any) -> Callable[[Any], Any]:
                    grader = Grader(backend, harness, folder, settings)
                    return environments_of(config, preset, backend, verifiers(grader, rows, parts.lineage))

                code = await play(config, console, opened, parts, environments)
            made = predictions_of(opened.path, rows, parts.lineage)
            if not made:
                console.print("[yellow]No episode came to its end: nothing to grade yet.[/]")
                return 1
            turns = turns_of(opened.log, load_tokenizer(opened.tokenizer).decode, lambda one: one.identity.task_id)
            said = endpoint_summary(TrajectoryLog(opened.log).read())
            about = agent_facts(config, preset)
            graded = await _grade(config, console, rows, made, settings, folder, choice, turns, said, about)
            return max(code, graded)

    try:
        copy_tokenizer(parts.folder, opened.tokenizer)
        return asyncio.run(go())
    finally:
        opened.close()
