"""Grades predictions: a fresh sandbox for each, the official package's verdict, our findings beside it.

Promises: every prediction of the plan ends as exactly one `Graded`, on disk before it is counted; faults of image,
engine, sandbox or package are tried again with growing pauses and end as errors, never as "unresolved"; a verdict that
stands in the folder for the same patch, row, image and harness is not made again; many faults in a row stop the run
(FaultStorm), and the next start goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.faults import FaultStorm
from envs.aside import TooHard, aside
from envs.environment import EnvironmentFault
from envs.sandbox.contract import ImageMissing, Network, OutOfMemory, SandboxBackend, SandboxError
from envs.swe.environment import check_backend
from envs.swe.guard import Finding, Hole, Judged, Told, examine, in_the_run, list_findings, patch_findings
from eval.page import shortened
from eval.swebench.execute import LADDER, EvalLimits, EvalRun, evaluate, spec, timeout_of
from eval.swebench.official import Harness, HarnessFault
from eval.swebench.outcome import ErrorKind, Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.resolve import resolves
from eval.swebench.rows import HarnessRow
from eval.swebench.store import EvalFolder, resume_key
from eval.swebench.wants_network import missed_network


@dataclass(frozen=True)
class GradeSettings:
    limits: EvalLimits = field(default_factory=EvalLimits)
    workers: int = 4
    tries: int = 3
    backoff_s: float = 2.0
    """First pause before a fault is tried again; doubles."""
    storm_limit: int = 10
    """Instances in a row that end as our fault, beyond two for each worker: the machine is broken."""
    network: frozenset[str] = frozenset()
    """Instances whose tests may use the engine's bridge network; all others have none."""

    def network_of(self, instance_id: str) -> Network:
        return "bridge" if instance_id in self.network else "none"


@dataclass(frozen=True)
class Progress:
    """`graded` is None when the instance begins; `reused` when its verdict stood already."""

    instance_id: str
    model: str
    graded: Graded | None = None
    reused: bool = False


Observer = Callable[[Progress], None]


class Grader:
    """One for each run: grades into `folder`, with `harness` and `backend` that the caller opens and closes."""

    def __init__(
        self,
        backend: SandboxBackend,
        harness: Harness,
        folder: EvalFolder,
        settings: GradeSettings | None = None,
    ) -> None:
        self.backend, self.harness, self.folder = backend, harness, folder
        self.settings = settings or GradeSettings()
        self._in_a_row = 0

    async def run(
        self, work: Sequence[tuple[HarnessRow, Prediction]], observer: Observer | None = None
    ) -> list[Graded]:
        """In the order of `work`. Raises FaultStorm, TaskError for a row that cannot run here, and NetworkRefused."""
        for row, _ in work:
            check_backend(row.swe, self.backend)
        if any(row.instance_id in self.settings.network for row, _ in work):
            await self.backend.check_network()
        source = iter(enumerate(work))
        done: dict[int, Graded] = {}

        async def worker() -> None:
            for number, (row, prediction) in source:
                done[number] = await self.grade(row, prediction, observer)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.settings.workers, len(work))):
                    group.create_task(worker())
        except BaseExceptionGroup as failures:  # the others were cancelled, their sandboxes are gone
            raise failures.exceptions[0] from None
        return [done[number] for number in range(len(work))]

    async def grade(self, row: HarnessRow, prediction: Prediction, observer: Observer | None = None) -> Graded:
        emit = observer or (lambda progress: None)
        limit = timeout_of(row, self.settings.limits)
        image = await image_id(self.backend, row.swe.image)
        network = self.settings.network_of(row.instance_id)
        if (earlier := self.folder.earlier(row, prediction, image, self.harness.version, limit, network)) is not None:
            emit(Progress(row.instance_id, prediction.model, earlier, reused=True))
            return earlier
        emit(Progress(row.instance_id, prediction.model))
        started = time.monotonic()
        key = resume_key(row, prediction, image or "", self.harness.version, network)
        self.folder.begin(prediction, key)
        graded = Graded(
            row.instance_id,
            prediction.model,
            key,
            Verdict.EMPTY,
            image=image or "",
            network="none" if prediction.empty else network,
            timeout_s=limit,
        )
        if not prediction.empty:
            graded = await self._with_tries(row, prediction, graded)
        graded = dataclasses.replace(graded, seconds=round(time.monotonic() - started, 3))
        self.folder.finish(prediction, graded)
        self._watch(graded)
        emit(Progress(row.instance_id, prediction.model, graded))
        return graded

    async def _with_tries(self, row: HarnessRow, prediction: Prediction, blank: Graded) -> Graded:
        try:
            patch = prediction.patch_bytes()
        except UnicodeEncodeError as error:
            return _error(blank, ErrorKind.BAD_BYTES, f"the patch's text stands for no bytes: {error}")
        attempt = 1
        while True:
            blank = dataclasses.replace(blank, attempts=attempt)
            try:
                return await self._once(row, prediction, patch, blank)
            except (SandboxError, EnvironmentFault, HarnessFault) as fault:
                if attempt >= self.settings.tries or not getattr(fault, "transient", True):
                    return _error(blank, _kind(fault), str(fault))
            await asyncio.sleep(self.settings.backoff_s * 2 ** (attempt - 1))
            attempt += 1

    async def _once(self, row: HarnessRow, prediction: Prediction, patch: bytes, blank: Graded) -> Graded:
        limits = self.settings.limits
        script = await self.harness.script(row)
        sandbox = await self.backend.start(spec(row, limits, blank.network))
        closing: asyncio.Task[None] | None = None
        try:
            # Only now is it sure that the image is here.
            image = await image_id(self.backend, row.swe.image) or ""
            key = resume_key(row, prediction, image, self.harness.version, blank.network)
            blank = dataclasses.replace(blank, image=image, key=key)
            run = await evaluate(sandbox, row, script, patch, limits)
            closing = asyncio.create_task(sandbox.close())  # while the log is judged
            return await self._judged(row, prediction, patch, script, run, blank)
        finally:
            await (closing or sandbox.close())

    async def _judged(
        self, row: HarnessRow, prediction: Prediction, patch: bytes, script: str, run: EvalRun, blank: Graded
    ) -> Graded:
        place = self.folder.place(prediction)
        await asyncio.to_thread(_keep, place, script, patch, run)
        guarded = Judged(row.swe)
        guessed = run.applied == LADDER[-1]
        found = await _looked(8 * len(patch), patch_findings, guarded, patch, applied=run.applied, guessed=guessed)
        blank = dataclasses.replace(
            blank,
            applied=run.applied,
            suspicious=tuple(found),
            test_seconds=round(run.seconds, 3),
            strange_bytes=run.strange_bytes,
        )
        if run.why_not:
            return _error(blank, ErrorKind.DOES_NOT_APPLY, run.why_not)
        if run.ended:
            return _error(blank, ErrorKind.SANDBOX_ENDED, run.ended)
        log = await asyncio.to_thread((place / "test_output.txt").resolve)
        if run.timed_out:
            reason, tier = await self.harness.classify(row.instance_id, log)
            missed = await aside(len(run.log), missed_network, run.log)
            blank = dataclasses.replace(blank, failure_reason=reason, failure_tier=tier, missed_network=missed)
            return _error(blank, ErrorKind.TIMED_OUT, f"the tests did not end within {blank.timeout_s:g} s")
        judged = await self.harness.judge(row, prediction.official(), log)
        told = Told(run.log, script, run.exit_code, run.lost_bytes, run.noted.whole)
        size = len(run.log) + len(patch)
        found += await _looked(
            size, examine, guarded, patch, judged.statuses, told=told, noted=run.noted, sure=run.watched
        )
        found = [*in_the_run(found, guarded, run.noted), *list_findings(guarded, judged.report)]
        resolved = bool(judged.report["resolved"])
        reason, tier = ("", "") if resolved else await self.harness.classify(row.instance_id, log)
        ours = resolves(judged.report.get("tests_status"), row.swe.fail_to_pass, row.swe.pass_to_pass)
        return dataclasses.replace(
            blank,
            verdict=Verdict.RESOLVED if resolved else Verdict.UNRESOLVED,
            reason="" if resolved else _why(judged.report),
            suspicious=tuple(dict.fromkeys(found)),
            agrees=row.row["eval_type"] != "pass_and_fail" or ours == resolved,
            infra_failure=bool(judged.report.get("infra_failure")),
            failure_reason=reason,
            failure_tier=tier,
            missed_network=not resolved and await aside(len(run.log), missed_network, run.log),
            report=judged.report,
        )

    def _watch(self, graded: Graded) -> None:
        ours = graded.verdict is Verdict.ERROR and not graded.about_model
        self._in_a_row = self._in_a_row + 1 if ours else 0
        if self._in_a_row >= self.settings.storm_limit + 2 * self.settings.workers:
            raise FaultStorm(
                f"{self._in_a_row} instances in a row ended in faults of ours, the last: {graded.instance_id}: "
                f"{graded.error}: {shortened(graded.reason, 1000)}. Mend the cause and start again: verdicts are kept"
            )


async def image_id(backend: SandboxBackend, image: str) -> str | None:
    """Content id of an image, None when it is not on this machine. Without images: what the sandboxes run on."""
    while (inner := getattr(backend, "backend", None)) is not None:
        backend = inner
    engine = getattr(backend, "engine", None)
    if engine is None:
        return f"{backend.name}: {platform.platform()}, Python {platform.python_version()}"

    def look(api: Any) -> str | None:
        import docker

        try:
            return str(api.inspect_image(image)["Id"])
        except docker.errors.ImageNotFound:
            return None

    try:
        found: str | None = await engine.call(look)
    except (SandboxError, OSError):  # a start will tell what is wrong with the engine, and is tried again
        return None
    return found


async def _looked(size: int, look: Callable[..., list[Finding]], *words: Any, **named: Any) -> list[Finding]:
    try:
        return await aside(size, look, *words, **named)
    except TooHard as error:
        return [Finding(Hole.PATCH, f"the guard cannot read it: {error}")]


def _keep(place: Path, script: str, patch: bytes, run: EvalRun) -> None:
    """What the verdict is made from, for whoever doubts it."""
    (place / "patch.diff").write_bytes(patch)
    (place / "eval.sh").write_bytes(script.encode("utf-8", "surrogateescape"))
    run.save_log(place / "test_output.txt")
    told = "".join(json.dumps(word) + "\n" for word in run.noted.to_json())
    (place / "runner_note.jsonl").write_text(told, encoding="utf-8")


def _error(blank: Graded, kind: ErrorKind, reason: str) -> Graded:
    return dataclasses.replace(blank, verdict=Verdict.ERROR, error=kind, reason=reason.strip()[-3000:])


def _kind(fault: Exception) -> ErrorKind:
    if isinstance(fault, HarnessFault):
        return ErrorKind.HARNESS
    if isinstance(fault, ImageMissing):
        return ErrorKind.IMAGE
    if isinstance(fault, OutOfMemory):
        return ErrorKind.OUT_OF_MEMORY
    return ErrorKind.SANDBOX if isinstance(fault, SandboxError) else ErrorKind.ENVIRONMENT


def _why(report: Mapping[str, Any]) -> str:
    status = report.get("tests_status")
    if not status:
        return f"the log has no test results ({report.get('infra_failure_reason') or 'no known cause'})"
    failing, broken = (len(status[column]["failure"]) for column in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    return f"{failing} FAIL_TO_PASS tests still fail, {broken} PASS_TO_PASS tests broke"
