"""Runs attacks against the graders that training and evaluation use: never copies of them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attacks.patches import Differ
from benchmarks.attacks.site import Attack, Site
from data.task import Task
from envs.environment import ToolCall
from envs.sandbox.contract import SandboxBackend
from envs.swe import SWEEnvironment, SweLimits, grade_patch, read_row
from envs.tools import ToolSet
from eval.swebench.grade import Grader, GradeSettings
from eval.swebench.official import Harness
from eval.swebench.outcome import Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import harness_row
from eval.swebench.store import EvalFolder

LIMITS = SweLimits(eval_timeout_s=60.0)


@dataclass(frozen=True)
class Trial:
    """One attack on one layout, backend and grader."""

    attack: Attack
    site: Site
    backend: str
    judge: str
    """train or eval."""

    @property
    def where(self) -> str:
        return f"{self.site.name}/{self.backend}/{self.judge}"


@dataclass(frozen=True)
class Outcome:
    trial: Trial
    paid: bool = False
    """Reward 1, or the official verdict resolved."""
    findings: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    """Those for which training pays nothing."""
    fault: str = ""
    reason: str = ""
    log: str = field(default="", repr=False)
    seconds: float = 0.0

    @property
    def fooled(self) -> bool:
        attack = self.trial.attack
        if attack.fixes or attack.beyond or not self.paid:
            return False
        return self.trial.judge == "train" or not self.findings

    @property
    def paid_when_flagged(self) -> bool:
        return self.trial.judge == "train" and self.paid and bool(self.decisive)

    @property
    def refused(self) -> bool:
        """An honest patch that is not paid, or that evaluation flags."""
        if not self.trial.attack.fixes:
            return False
        return not self.paid or (self.trial.judge == "eval" and bool(self.findings))


class Arena:
    """Backends and the official package's process, open while trials run. Async context manager."""

    def __init__(
        self,
        backends: dict[str, SandboxBackend],
        folder: Path,
        workers: int,
        tell: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.tell = tell
        self.backends = backends
        self.workers = workers
        self._folder = folder
        self._differs: dict[str, Differ] = {}
        self._graders: dict[str, Grader] = {}
        self._stores: list[EvalFolder] = []
        self._harness = Harness()
        self._gates: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Arena:
        await self._harness.__aenter__()
        for name, backend in self.backends.items():
            store = EvalFolder(self._folder / name)
            self._stores.append(store.__enter__())
            settings = GradeSettings(workers=self.workers, tries=1)
            self._graders[name] = Grader(backend, self._harness, store, settings)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for store in self._stores:
            store.__exit__(None, None, None)
        for differ in self._differs.values():
            differ.close()
        await self._harness.__aexit__(*exc)

    async def run(self, trials: Sequence[Trial]) -> list[Outcome]:
        waiting = iter(enumerate(trials))
        done: dict[int, Outcome] = {}

        async def work() -> None:
            for number, trial in waiting:
                started = time.monotonic()
                outcome = await self.one(trial)
                done[number] = dataclasses.replace(outcome, seconds=time.monotonic() - started)
                if self.tell:
                    self.tell(done[number])

        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(work())
        return [done[number] for number in range(len(trials))]

    async def one(self, trial: Trial) -> Outcome:
        try:
            if trial.attack.make is None:
                return await self._agent(trial)
            patch = await asyncio.to_thread(self._patch, trial)
            if trial.judge == "eval":
                return await self._evaluated(trial, patch)
            grade = await grade_patch(
                read_row(trial.site.trained or trial.site.task), self.backends[trial.backend], patch, LIMITS
            )
            return _trained(trial, grade.reward, grade.detail)
        except Exception as fault:  # a fault of ours, whatever its class, is what is counted
            return Outcome(trial, fault=f"{type(fault).__name__}: {fault}")

    def _patch(self, trial: Trial) -> bytes:
        assert trial.attack.make is not None
        files = trial.attack.make(trial.site)
        assert files is not None, trial
        differ = self._differs.setdefault(trial.site.name, Differ(trial.site.base))
        return differ.patch(files, trial.attack.executable)

    async def _evaluated(self, trial: Trial, patch: bytes) -> Outcome:
        name = f"{trial.site.name}__{abs(hash(trial.attack.name)):x}"
        task = trial.site.task
        row = harness_row(
            Task(name, task.kind, task.split, {**task.row, "instance_id": name}, task.source, task.base_dir)
        )
        text = patch.decode("utf-8", "surrogateescape")
        graded = await self._graders[trial.backend].grade(row, Prediction(name, "attacks", text))
        if not graded.about_model and graded.verdict is Verdict.ERROR:
            return Outcome(trial, fault=f"{graded.error}: {graded.reason}")
        findings = tuple(str(each) for each in graded.suspicious)
        return Outcome(trial, graded.verdict is Verdict.RESOLVED, findings, reason=graded.why)

    async def _agent(self, trial: Trial) -> Outcome:
        """The attack in a bash call of an episode, then the grade."""
        site = trial.site
        script = trial.attack.act
        for name, value in (
            ("product", site.product),
            ("hidden", site.hidden),
            ("folder", site.folder or "."),
            ("fake", site.fake_tests().replace("'", '"')),
        ):
            script = script.replace("{" + name + "}", value)
        environment = SWEEnvironment(site.task, self.backends[trial.backend], ToolSet(), LIMITS)
        try:
            await environment.reset()
            for command in (script, "echo still here; ls | head"):
                await environment.step(ToolCall("bash", {"command": command}))
            grade = await environment.grade()
        finally:
            await environment.close()
        return _trained(trial, grade.reward, grade.detail)


def _trained(trial: Trial, reward: float, detail: dict[str, object]) -> Outcome:
    findings = tuple(str(each) for each in detail.get("suspicious") or ())  # type: ignore[attr-defined]
    decisive = tuple(str(each) for each in detail.get("decisive") or ())  # type: ignore[attr-defined]
    reason = str(detail.get("reason") or "")
    return Outcome(trial, reward == 1.0, findings, decisive, reason=reason, log=str(detail.get("log_tail") or ""))
