"""Many episodes at once: runs a plan of draws, retries faults, stops gracefully.

Promises:
* a draw is one task and one seed, derive_seed(run_seed, "draw", number), the same for each of its attempts;
* each attempt is an episode of its own, `{run}-{draw:06d}-{attempt}`, and every finished one goes to the sink, faults
  and cuts included; an attempt number is never used twice, also after a resume (`Resume.of` reads the log);
* an infra_error draw is tried again after a growing pause, at most `max_attempts` times in all;
* `stop.finish()` starts nothing new and lets running episodes end; `stop.cut()` ends them now as cut trajectories;
* `storm_limit` infrastructure faults running stop the fleet with FaultStorm: a broken machine must not burn the plan;
* `pulse` is how late the loop ran, from the first episode to the last; each stall is an event;
* any other exception (a bug, a full disk) cuts what runs, hands it to the sink, and is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.dialogue import TextActor
from agent.episode import TurnReport, error_detail, run_episode
from agent.faults import FaultStorm
from agent.policy import Policy
from agent.presets import Limits, Preset
from agent.pulse import Pulse, PulseWatch, Stall
from agent.renderers import Renderer
from agent.seeds import derive_seed
from data.task import Task
from data.trajectory import Identity, Status, Trajectory
from envs.environment import Environment

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draw:
    """One place in the run's plan."""

    number: int
    task: Task


def plan_draws(tasks: Iterable[Task], count: int | None = None) -> Iterator[Draw]:
    """Tasks in order, over and over until `count` draws (none: each task once)."""
    listed = list(tasks)
    if not listed:
        raise ValueError("no tasks: a plan needs at least one")
    for number in range(len(listed) if count is None else count):
        yield Draw(number, listed[number % len(listed)])


@dataclass(frozen=True)
class Resume:
    """What an earlier process of the same run already did."""

    finished: frozenset[int] = frozenset()
    """Draws with a graded trajectory: skipped."""
    next_attempt: Mapping[int, int] = field(default_factory=dict)
    """First unused attempt number of a draw."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Resume:
        """From the run's log. Draws that ended as fault or cut run again, as a new attempt."""
        finished: set[int] = set()
        attempts: dict[int, int] = {}
        for trajectory in trajectories:
            identity = trajectory.identity
            attempt = int(identity.episode_id.rsplit("-", 1)[1])
            attempts[identity.draw] = max(attempts.get(identity.draw, 0), attempt + 1)
            if trajectory.outcome.status is Status.GRADED:
                finished.add(identity.draw)
        return cls(frozenset(finished), attempts)


class Stop:
    """The caller's switch, e.g. first SIGINT `finish`, second `cut`."""

    def __init__(self) -> None:
        self.finishing = asyncio.Event()
        self.cutting = asyncio.Event()

    def finish(self) -> None:
        self.finishing.set()

    def cut(self) -> None:
        self.finishing.set()
        self.cutting.set()


@dataclass(frozen=True)
class EpisodeStarted:
    draw: int
    attempt: int
    episode_id: str
    task_id: str


@dataclass(frozen=True)
class EpisodeFinished:
    draw: int
    attempt: int
    trajectory: Trajectory


@dataclass(frozen=True)
class EpisodeRetried:
    """The draw will be tried again after `delay_s`."""

    draw: int
    attempt: int
    reason: str
    delay_s: float


Event = EpisodeStarted | TurnReport | EpisodeFinished | EpisodeRetried | Stall


@dataclass
class FleetReport:
    """Counts of one `Fleet.run`, by attempts; `given_up` lists the draws whose last attempt was a fault."""

    graded: int = 0
    infra_errors: int = 0
    cut: int = 0
    skipped: int = 0
    reward_sum: float = 0.0
    given_up: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class FleetSettings:
    run_id: str
    run_seed: int
    episodes_at_once: int = 16
    max_attempts: int = 3
    backoff_s: float = 1.0
    """First pause before a retry; doubles up to `max_backoff_s`."""
    max_backoff_s: float = 60.0
    storm_limit: int | None = None
    """Faults running that stop the fleet; none: 10, or twice `episodes_at_once` where that is more."""
    sandbox: str = ""
    """Backend name for the trajectories' identity."""

    def __post_init__(self) -> None:
        for name in ("episodes_at_once", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")

    @property
    def faults_that_stop(self) -> int:
        return self.storm_limit or max(10, 2 * self.episodes_at_once)


class Fleet:
    """See the module. `make_env` turns a task into a fresh environment; `sink` takes each finished trajectory (it may
    be async); `gate` is awaited before each draw (admission control); `observer` gets events and must be quick."""

    def __init__(
        self,
        policy: Policy | TextActor,
        renderer: Renderer,
        preset: Preset,
        make_env: Callable[[Task], Environment],
        sink: Callable[[Trajectory], Awaitable[None] | None],
        settings: FleetSettings,
        *,
        limits: Limits | None = None,
        observer: Callable[[Event], None] | None = None,
        gate: Callable[[], Awaitable[None]] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.policy, self.renderer, self.preset, self.make_env, self.sink = policy, renderer, preset, make_env, sink
        self.settings, self.limits = settings, limits
        self.stop = stop or Stop()
        self._watch = PulseWatch(self._emit)
        self._observer, self._gate = observer, gate
        self._report = FleetReport()
        self._faults: list[str] = []
        self._fatal: BaseException | None = None

    @property
    def pulse(self) -> Pulse:
        return self._watch.pulse

    async def run(self, plan: Iterable[Draw], resume: Resume = Resume()) -> FleetReport:
        """Run the plan to its end or to the stop. Raises FaultStorm, or whatever broke the fleet."""
        self._watch = PulseWatch(self._emit)
        async with self._watch:
            return await self._run(plan, resume)

    async def _run(self, plan: Iterable[Draw], resume: Resume) -> FleetReport:
        self._report, self._faults, self._fatal = FleetReport(), [], None
        source = iter(plan)
        workers = [
            asyncio.create_task(self._work(source, resume), name=f"fleet-{index}")
            for index in range(self.settings.episodes_at_once)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:  # only when this task itself is cancelled do any still run
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal
        return self._report

    async def _work(self, source: Iterator[Draw], resume: Resume) -> None:
        try:
            while not self.stop.finishing.is_set():
                if self._gate is not None and not await self._unless_stopped(self._gate()):
                    return
                draw = next(source, None)
                if draw is None:
                    return
                if draw.number in resume.finished:
                    self._report.skipped += 1
                else:
                    await self._draw(draw, resume.next_attempt.get(draw.number, 0))
        except Exception as error:
            # Not raised here: the other workers' episodes must reach the sink as cuts first.
            if self._fatal is None:
                self._fatal = error
            else:
                _log.error("after the first failure, another one: %s", error)
            self.stop.cut()

    async def _draw(self, draw: Draw, first_attempt: int) -> None:
        for tried in range(self.settings.max_attempts):
            attempt = first_attempt + tried
            trajectory = await self._attempt(draw, attempt)
            if trajectory.outcome.status is not Status.INFRA_ERROR:
                return
            if tried + 1 == self.settings.max_attempts or self.stop.finishing.is_set():
                break
            delay = min(self.settings.backoff_s * 2**tried, self.settings.max_backoff_s)
            self._emit(EpisodeRetried(draw.number, attempt, self._faults[-1], delay))
            if not await self._unless_stopped(asyncio.sleep(delay)):
                break
        self._report.given_up.append(draw.number)

    async def _attempt(self, draw: Draw, attempt: int) -> Trajectory:
        settings = self.settings
        identity = Identity(
            episode_id=f"{settings.run_id}-{draw.number:06d}-{attempt}",
            task_id=draw.task.task_id,
            draw=draw.number,
            seed=derive_seed(settings.run_seed, "draw", draw.number),
            tokenizer=self.renderer.tokenizer_fingerprint,
            sampling=self.policy.sampling,
            lineage=self.policy.lineage,
            agent=self.preset.label,
            sandbox=settings.sandbox,
        )
        env = self.make_env(draw.task)
        self._emit(EpisodeStarted(draw.number, attempt, identity.episode_id, draw.task.task_id))
        trajectory = await run_episode(
            self.policy,
            self.renderer,
            env,
            self.preset,
            identity,
            limits=self.limits,
            cut=self.stop.cutting,
            on_turn=self._emit,
        )
        kept = self.sink(trajectory)
        if inspect.isawaitable(kept):
            await kept
        self._count(trajectory)
        self._emit(EpisodeFinished(draw.number, attempt, trajectory))
        return trajectory

    def _count(self, trajectory: Trajectory) -> None:
        outcome, report = trajectory.outcome, self._report
        if outcome.status is Status.GRADED:
            report.graded += 1
            report.reward_sum += outcome.reward or 0.0
            self._faults.clear()
        elif outcome.status is Status.CUT:
            report.cut += 1
        else:
            report.infra_errors += 1
            detail = error_detail(trajectory)
            what = f"{detail.get('phase')}: {detail.get('kind')}: {detail.get('message')}"
            self._faults.append(f"{trajectory.identity.episode_id}, {what}")
            if len(self._faults) >= self.settings.faults_that_stop and self._fatal is None:
                last = "\n  ".join(self._faults[-3:])
                self._fatal = FaultStorm(
                    f"{len(self._faults)} episodes running ended in infrastructure faults; the fleet stopped so as not "
                    f"to burn the plan. The last ones:\n  {last}\nMend the cause, then resume the run."
                )
                self.stop.cut()

    async def _unless_stopped(self, work: Awaitable[None]) -> bool:
        """True when the work was done; False when the stop came first."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self.stop.finishing.wait())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if task.cancelled():
            return False
        task.result()
        return True

    def _emit(self, event: Event) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:  # a live view must not end the run, and must not fail unseen
            _log.exception("the observer failed on %s", type(event).__name__)
