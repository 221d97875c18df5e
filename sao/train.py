"""`sao train`: rollouts in one process, the trainer in another, joined by the run's log and weights folder.

Promises: either side may be killed at any time, and so may this process: what died is started again (`train.restarts`
times), the same command continues an unfinished run from its last checkpoint, and every draw of the plan has exactly
one fate at the end. Ctrl-C ends both sides cleanly (a second one at once) and loses no finished trajectory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape

from agent.presets import load_preset
from data import with_parent
from data.contamination import refuse_evaluation_tasks
from data.journal import Journal
from data.log import TrajectoryLog
from sao import start
from sao.assemble import check_tasks, copy_tokenizer, parts_of
from sao.config import Config
from sao.endpoint import refuse_endpoint
from sao.first_prompts import prompts_of
from sao.inherited import inherited, unreadable, warn
from sao.paths import UserError, model_folder
from sao.rundir import RunDir, open_run, read_config, unfinished, write_atomically
from sao.train_files import CRITIC, SCORES, STAGES, read_json, stage
from sao.train_report import Refresher, write_report
from sao.train_view import TrainView
from sao.train_worker import FATAL, STOP_GRACE_S
from sao.validated import unvalidated
from trainer.controls import check_plan
from trainer.ledger import Ledger, audit, from_journal
from trainer.metrics import check_trackers
from trainer.paths import TrainerPaths

POLL_S = 0.2
FROZEN = "frozen"
"""Run folder of the frozen policy's episodes, inside the training run's."""


class SideFailed(UserError):
    """A side of the run ended with an error and is not started again; the text holds its last words."""


@dataclass
class Side:
    """One child process. A word on its standard input stops it; the input's end, also by our death, kills it."""

    name: str
    run: Path
    restarts_left: int
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    _told: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return self.run / f"{self.name}.out"

    def start(self) -> None:
        self.output, self._told = self.log.open("ab"), False
        # One thread each: the two sides share the machine, and exact replay needs a fixed number.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            with_parent.command(start.__file__, "train_worker", self.name, str(self.run.resolve()), options=("-P",)),
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.output,
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C is ours alone
        )

    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def tell_to_stop(self) -> None:
        if self.process is not None and self.process.stdin is not None and not self._told:
            self._told = True
            with contextlib.suppress(OSError):  # it has ended
                self.process.stdin.write(b"stop\n")
                self.process.stdin.flush()

    def end(self, kill: bool = False) -> None:
        """Wait for the end; after the grace, or at once with `kill`, the hard way."""
        if self.process is None:
            return
        self.tell_to_stop()
        try:
            self.process.wait(0 if kill else STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self.output is not None:
            self.output.close()

    def last_words(self, lines: int = 12) -> str:
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


def train(config: Config, console: Console, *, run: str | None = None, fresh: bool = False, score: int = 0) -> int:
    """Train to the plan's end; exit code 0, 1 when stopped. `score`: held-out tasks scored before and after."""
    refuse_endpoint(config)
    config = for_training(config)
    config.train.resolved_step()  # an unknown control is refused before there is a folder
    check_trackers(config.train.trackers)
    config = with_arithmetic(config, begun(config, run, fresh=fresh))
    parts = parts_of(config, judged_elsewhere=True)
    refuse_evaluation_tasks(parts.tasks)  # before anything else is said of the rows
    check_tasks(parts.tasks)
    check_plan(config.train.resolved_step().advantage.kind, config.train.planned, len(parts.tasks))
    warn(console, inherited(config, parts.preset, training=True))
    warn(console, unreadable(config))
    warn(console, unvalidated(config, parts.tasks))
    warn(console, prompts_of(config, parts))
    if config.train.critic and not (Path(config.train.critic) / "manifest.json").is_file():
        raise UserError(
            f"train.critic: {config.train.critic} holds no critic (no manifest.json). Make one with `sao "
            "pretrain-value`, or leave it out: train.value_episodes then makes one for the run."
        )
    # Other training settings are another run: a checkpoint is only loaded under its own.
    origin = {**parts.origin, "training": config.train.settings_hash()}
    folder = open_run(config, run, fresh=fresh, origin=origin)
    step = int(read_json(TrainerPaths(folder.path).progress).get("step", 0))
    where = f"going on after step {step}" if folder.resumed else "a new run"
    console.print(f"{folder.path}: {where}, {config.train.steps} steps in all", highlight=False, markup=False)
    try:
        copy_tokenizer(parts.folder, folder.tokenizer)
        if score:
            with stage(folder.path, "scores before"):
                _score(config, console, folder, parts.folder, "before", score)
        if not _value_stage(config, console, folder.path):
            console.print("[yellow]Stopped before training; the same command continues it.[/yellow]")
            return 1
        with stage(folder.path, "training"):
            stopped = _supervise(config, console, folder)
        if stopped:
            console.print("[yellow]Stopped before the plan's end; the same command continues it.[/yellow]")
            return 1
        from sao.export import export_final

        final = export_final(folder.path, parts.folder)
        if score:
            with stage(folder.path, "scores after"):
                _score(config, console, folder, final, "after", score)
        faults = account(config, folder.path)
        write_report(folder.path, console)
        for fault in faults:
            console.print(f"[red]the ledger does not add up: {escape(str(fault))}[/red]")
        kept = {name: read_json(folder.path / file) for name, file in (("scores", SCORES), ("seconds", STAGES))}
        folder.write_summary({"run": folder.path.name, "faults": faults, **kept})
        console.print(f"model: {final}    report: {folder.path / 'report.html'}", highlight=False)
        return 1 if faults else 0
    finally:
        folder.close()


def _value_stage(config: Config, console: Console, run: Path) -> bool:
    """Play episodes of the frozen policy and pretrain the critic on them, where the run asks for it and has none yet.
    False when stopped before the end."""
    train = config.train
    if not train.value_episodes or train.critic or (run / CRITIC).is_dir():
        return True
    from sao.rollout import rollout
    from sao.train_offline import pretrain_value

    if not train.resolved_step().advantage.kind.needs_critic:
        return True
    # Another seed than training's: the critic must not have seen the very episodes it is to judge.
    changes = {"episodes": train.value_episodes, "seed": config.rollout.seed + 1_000_003}
    frozen = config.model_copy(update={"rollout": config.rollout.model_copy(update=changes)})
    with stage(run, "frozen episodes"):
        if rollout(frozen, console, run=str(run / FROZEN)) != 0:
            return False
    with stage(run, "value pretraining"):
        pretrain_value(config, console, [run / FROZEN / "log"], run / CRITIC)
    return True


def for_training(config: Config) -> Config:
    """The same under the name <name>-train, its plan as long as the training's."""
    if config.agent.temperature != 1.0:
        raise UserError(
            f"agent.temperature is {config.agent.temperature:g}: SAO trains on samples at temperature 1 only."
        )
    rollout = config.rollout.model_copy(update={"episodes": config.train.planned})
    name = config.name if config.name.endswith("-train") else f"{config.name}-train"
    return config.model_copy(update={"rollout": rollout, "name": name})


def begun(config: Config, run: str | None, *, fresh: bool) -> Config | None:
    """The resolved configuration of the unfinished run that the command would go on with."""
    folder = unfinished(config.name, run, fresh=fresh)
    if folder is None:
        return None
    try:
        before = read_config(folder)
    except UserError:  # opening it says so, where it is the one that was named
        return None
    return before if before.plan_hash() == config.plan_hash() else None


def with_arithmetic(config: Config, before: Config | None) -> Config:
    """The same with `auto` resolved for the device; a run that goes on keeps what it began with."""
    from trainer.precision import resolve, resolve_step
    from trainer.setup import choose_device

    device, step, value = choose_device(config.train.device), config.train.step, config.value
    if before is not None and step.precision == "auto":
        step = step.model_copy(update={"precision": before.train.step.precision})
    if before is not None and step.packing.logit_budget == 0:
        budget = {"logit_budget": before.train.step.packing.logit_budget}
        step = step.model_copy(update={"packing": step.packing.model_copy(update=budget)})
    if before is not None and value.precision == "auto":
        value = value.model_copy(update={"precision": before.value.precision})
    value = value.model_copy(update={"precision": resolve(value.precision, device)})
    train = config.train.model_copy(update={"step": resolve_step(step, device)})
    return config.model_copy(update={"train": train, "value": value})


def describe_training(config: Config, console: Console, *, run: str | None = None, fresh: bool = False) -> None:
    """The resolved configuration and the plan's arithmetic; starts nothing, makes no folder."""
    from rich.table import Table

    from agent.engines.model_files import check_model_folder
    from trainer.memory import refuse_what_cannot_fit, step_memory
    from trainer.setup import choose_device

    config = for_training(config)
    config = with_arithmetic(config, begun(config, run, fresh=fresh))
    train, step = config.train, config.train.resolved_step()
    check_trackers(train.trackers)
    model = model_folder(config.model.path, download=False)
    check_model_folder(model)
    warn(console, inherited(config, load_preset(config.agent.preset), training=True))
    warn(console, unreadable(config))
    console.print(config.to_toml(), markup=False, highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row(
        "plan", f"{train.planned} draws: {train.steps} steps of {train.batch}, {config.rollout.concurrency} at once"
    )
    table.add_row(
        "a step",
        f"critic x {step.critic.updates if step.advantage.kind.needs_critic else 0}, actor x {step.objective.updates}",
    )
    table.add_row(
        "rates", f"policy {step.policy_optimizer.learning_rate:g}, critic {step.critic_optimizer.learning_rate:g}"
    )
    low, high = 1 - step.objective.eps_low, 1 + step.objective.eps_high
    table.add_row("band", f"ratios in ({low:g}, {high:g}) are kept, N counts every action token")
    table.add_row("asynchrony", f"at most {train.ahead} batches ahead, dropped above staleness {train.max_staleness}")
    table.add_row(
        "kept", f"a checkpoint every {train.checkpoint_every} steps, a version every {train.publish_every} updates"
    )
    device = choose_device(train.device)
    table.add_row("device", f"{device}, one: policy, critic and their optimizers have to fit into it")
    table.add_row(
        "arithmetic",
        f"{step.precision}, value pretraining {config.value.precision}; weights fp32; the head takes "
        f"{step.packing.logit_budget:,} logits at once",
    )
    memory = step_memory(model, step, device)
    table.add_row("memory", memory.text())
    table.add_row("", refuse_what_cannot_fit(memory, device))
    console.print(table)


def _supervise(config: Config, console: Console, folder: RunDir) -> bool:
    """Run both sides to the plan's end; True when stopped before."""
    sides = {name: Side(name, folder.path, config.train.restarts) for name in ("trainer", "rollouts")}
    interrupts: list[float] = []
    before = {
        number: signal.signal(number, lambda *_: interrupts.append(time.monotonic()))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        for side in sides.values():
            side.start()
        report = Refresher(folder.path)
        with TrainView(console, folder.path) as view:
            while sides["trainer"].exit_code() != 0:
                if interrupts:
                    view.note("stopping: the step and the episodes at hand end first; once more ends at once")
                    _wait(sides, view, interrupts)
                    return sides["trainer"].exit_code() != 0 or not finished(folder.path)
                for side in sides.values():
                    _look_after(side, view)
                view.update()
                report.update(view.steps_done)
                time.sleep(POLL_S)
            sides["rollouts"].tell_to_stop()
            _wait(sides, view, interrupts)
        return not finished(folder.path)
    finally:
        for side in sides.values():
            side.tell_to_stop()
        for side in sides.values():
            side.end(kill=len(interrupts) > 1)
        for number, handler in before.items():
            signal.signal(number, handler)


def _look_after(side: Side, view: TrainView) -> None:
    """Start a side again that died; raise when it said why it cannot go on, or died too often."""
    code = side.exit_code()
    if code is None or code == 0:
        return
    if code == FATAL or side.restarts_left <= 0:
        raise SideFailed(
            f"the {side.name} side ended (exit code {code}) and is not started again. Its last lines ({side.log}):\n"
            f"{side.last_words()}\nMend the cause; the same command then continues the run."
        )
    side.restarts_left -= 1
    view.note(f"the {side.name} side died (exit code {code}) and is started again; see {side.log}")
    side.end()
    side.start()


def _wait(sides: dict[str, Side], view: TrainView, interrupts: list[float]) -> None:
    for side in sides.values():
        side.tell_to_stop()
    first = len(interrupts)
    until = time.monotonic() + STOP_GRACE_S
    while any(side.exit_code() is None for side in sides.values()) and time.monotonic() < until:
        if len(interrupts) > max(first, 1):
            return
        view.update()
        time.sleep(POLL_S)


def finished(run: Path) -> bool:
    return read_json(TrainerPaths(run).progress).get("phase") == "finished"


def ledger_of(run: Path) -> Ledger:
    return from_journal(Journal(TrainerPaths(run).journal).read())


def account(config: Config, run: Path) -> list[str]:
    """Faults of the final ledger, in words: none when every planned draw is trained or dropped exactly once."""
    logged = {t.identity.episode_id: t.identity.draw for t in TrajectoryLog(run / "log").read()}
    return audit(ledger_of(run), config.train.planned, logged)


def _score(config: Config, console: Console, folder: RunDir, model: Path, when: str, tasks: int) -> None:
    """Scores of both splits into scores.json; kept when they are there (a continued run)."""
    from sao.evaluate import evaluate

    path = folder.path / SCORES
    scores = read_json(path)
    for split in ("heldout", "unseen"):
        name = f"{when}/{split}"
        if scores.get(name, {}).get("tasks") == tasks:
            continue
        result = evaluate(
            config, console, model=model, tokenizer=folder.tokenizer, split=split, tasks=tasks, temperature=1.0
        )
        scores[name] = result.to_dict()
        write_atomically(path, json.dumps(scores, indent=1) + "\n")
