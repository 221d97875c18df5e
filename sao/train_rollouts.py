"""The rollouts' side of a training run: plays the plan's draws at the trainer's pace, under its newest weights.

Promises: a draw starts only when it is among the next `ahead` batches that the trainer has not dealt with (admission
control, so that few trajectories get too old); new weights are taken in flight, between two tokens; every finished
trajectory is in the log before anything else happens with it; what an earlier process logged is not played again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.fleet import (
    EpisodeFinished,
    EpisodeRetried,
    EpisodeStarted,
    Event,
    Fleet,
    FleetSettings,
    Resume,
    Stop,
    plan_draws,
)
from agent.policy import TrainablePolicy
from agent.pulse import Pulse
from data.crashpoints import crash_point
from data.journal import DISPATCHED, FINISHED, RETRIED, Journal
from data.loaders import load_tasks
from data.log import TrajectoryLog
from data.trajectory import Status, Trajectory
from eval.heldout import score
from sao.assemble import Parts, backend_of, environments_of, parts_of
from sao.config import Config
from sao.engine import SERVING, engine_of
from sao.train_files import HELDOUT, ROLLOUTS, read_json
from sao.train_setup import turn_of
from trainer.folders import FolderError
from trainer.gpu_turn import GpuTurn
from trainer.paths import TrainerPaths, replace_file
from trainer.publish import PublishError, WeightFolder

POLL_S = 0.05
_REPORT_EVERY_S = 0.5
_FINISH_GRACE_S = 20.0
"""How long running episodes may take to end by themselves when the run is stopped."""


@dataclass
class Pace:
    """Admission control and this side's own numbers."""

    window: int
    """Draws that may be started beyond those the trainer has dealt with."""
    slots: int
    taken: int = 0
    consumed: int = 0
    step: int = 0
    trainer_done: bool = False
    live: int = 0
    finished: int = 0
    action_tokens: int = 0
    held: int = 0
    """Workers waiting at the gate now."""
    scoring: asyncio.Task[None] | None = None
    """The held-out score that is being made."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=128))
    began: float = field(default_factory=time.monotonic)
    slot_seconds: float = 0.0
    live_seconds: float = 0.0
    pulse: Callable[[], Pulse] = Pulse
    """How late the episodes' loop runs."""

    async def gate(self) -> None:
        self.held += 1
        try:
            while self.taken >= self.consumed + self.window:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            self.taken += 1
        finally:
            self.held -= 1

    @property
    def is_scoring(self) -> bool:
        return self.scoring is not None and not self.scoring.done()

    def tick(self, seconds: float) -> None:
        self.slot_seconds += seconds * self.slots
        self.live_seconds += seconds * self.live

    def report(self, policy: TrainablePolicy) -> dict[str, Any]:
        elapsed = max(time.monotonic() - self.began, 1e-9)
        return {
            "finished": self.finished,
            "live": self.live,
            "held": self.held,
            "version": policy.version,
            "recent_reward": sum(self.recent) / len(self.recent) if self.recent else None,
            "episodes_per_minute": 60 * self.finished / elapsed,
            "action_tokens_per_s": self.action_tokens / elapsed,
            "loop": self.pulse().summary(),
            "idle_share": 1 - self.live_seconds / max(self.slot_seconds, 1e-9),
            "time": time.time(),
        }


def earlier(trajectories: Iterable[Trajectory], max_attempts: int) -> Resume:
    """Unlike a plain rollout's, a cut with tokens counts as played (the trainer learns from it), and so does a draw
    that used up its attempts (the trainer drops it)."""
    kept: list[Trajectory] = []
    settled: set[int] = set()
    failed: dict[int, int] = {}
    for trajectory in trajectories:
        kept.append(trajectory)
        draw, status = trajectory.identity.draw, trajectory.outcome.status
        if status is Status.INFRA_ERROR:
            failed[draw] = failed.get(draw, 0) + 1
            if failed[draw] >= max_attempts:
                settled.add(draw)
        elif status is Status.CUT and trajectory.oldest_version is not None:
            settled.add(draw)
    resume = Resume.of(kept)
    return replace(resume, finished=resume.finished | settled)


async def run_rollouts(config: Config, run: Path, stopping: threading.Event) -> None:
    """Until the plan is played, or `stopping` is set. Raises FaultStorm, EngineError and whatever the log raises."""
    parts = parts_of(
        config.model_copy(update={"rollout": config.rollout.model_copy(update={"episodes": config.train.planned})})
    )
    weights = WeightFolder(TrainerPaths(run).weights)
    backend = await backend_of(config, run.name)
    pace = Pace(config.train.batch * config.train.ahead, config.rollout.concurrency)
    stop = Stop()
    try:
        async with contextlib.AsyncExitStack() as stack:
            log = stack.enter_context(TrajectoryLog(run / "log", shard_size=config.rollout.seal_every).open())
            journal = Journal(run / "journal.jsonl")
            stack.callback(journal.close)
            await backend.reap()
            turn = turn_of(config, run)
            if turn is not None:
                stack.callback(turn.close)
                await turn.take()  # servers that start now need the memory of the device
            policy = await first_policy(config, parts, run, weights, stopping, stack)
            if policy is None:
                return
            fleet = Fleet(
                policy,
                parts.renderer,
                parts.preset,
                environments_of(config, parts.preset, backend),
                _sink(log, pace),
                fleet_settings(config, run.name, backend.name),
                observer=_observer(pace, journal),
                gate=pace.gate,
                stop=stop,
            )
            pace.pulse = lambda: fleet.pulse
            side = asyncio.create_task(
                _follow(config, run, parts, policy, weights, backend, pace, stop, stopping, turn)
            )
            side.add_done_callback(lambda task: stop.cut() if not task.cancelled() else None)  # it only ends by failing
            try:
                resume = earlier(log.read(), config.rollout.max_attempts)
                pace.finished = 0
                await fleet.run(plan_draws(parts.tasks, config.train.planned), resume)
                if pace.scoring is not None:
                    await pace.scoring  # raises what broke it
            finally:
                side.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await side
            log.seal()
    finally:
        await backend.close()


def fleet_settings(config: Config, run_id: str, sandbox: str) -> FleetSettings:
    return FleetSettings(
        run_id=run_id,
        run_seed=config.rollout.seed,
        episodes_at_once=config.rollout.concurrency,
        max_attempts=config.rollout.max_attempts,
        sandbox=sandbox,
    )


async def first_policy(
    config: Config,
    parts: Parts,
    run: Path,
    weights: WeightFolder,
    stopping: threading.Event,
    stack: contextlib.AsyncExitStack,
) -> TrainablePolicy | None:
    """The engine under the newest published version; waits for the first. None when stopped before. Raises FolderError
    where that version is damaged, and what `engine_of` raises."""
    while not stopping.is_set():
        version = weights.newest()
        if version is None:
            await asyncio.sleep(POLL_S)
            continue
        # Pruned between looking and fetching: a newer one is there.
        with contextlib.suppress(PublishError), weights.fetch(version) as folder:
            engine = engine_of(
                config,
                folder,
                lineage=version.lineage,
                version=version.number,
                work=run / SERVING,
                model=parts.folder,
                say=lambda text: print(text, flush=True),
            )
            return await stack.enter_async_context(engine)
        await asyncio.sleep(POLL_S)
    return None


def _sink(log: TrajectoryLog, pace: Pace) -> Callable[[Trajectory], Any]:
    writing = asyncio.Lock()

    async def keep(trajectory: Trajectory) -> None:
        async with writing:  # the log has one writer; its fsync must not hold up the other episodes
            await asyncio.to_thread(log.append, trajectory)
        crash_point("rollout.after_fsync")
        pace.finished += 1
        pace.action_tokens += int(trajectory.action_mask.sum())
        if trajectory.outcome.reward is not None:
            pace.recent.append(trajectory.outcome.reward)

    return keep


def _observer(pace: Pace, journal: Journal) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        if isinstance(event, EpisodeStarted):
            pace.live += 1
            journal.write(DISPATCHED, draw=event.draw, episode_id=event.episode_id)
            crash_point("rollout.after_dispatch")
        elif isinstance(event, EpisodeFinished):
            pace.live -= 1
            journal.write(FINISHED, draw=event.draw, episode_id=event.trajectory.identity.episode_id)
        elif isinstance(event, EpisodeRetried):
            journal.write(RETRIED, draw=event.draw, episode_id=f"{event.draw}-{event.attempt}", reason=event.reason)

    return observe


async def _follow(
    config: Config,
    run: Path,
    parts: Parts,
    policy: TrainablePolicy,
    weights: WeightFolder,
    backend: Any,
    pace: Pace,
    stop: Stop,
    stopping: threading.Event,
    turn: GpuTurn | None,
) -> None:
    """Beside the fleet: new weights, the trainer's pace, held-out scores, this side's report, the stop."""
    last = time.monotonic()
    reported = 0.0
    stop_at: float | None = None
    next_score = config.train.heldout_every
    damaged = 0
    while True:
        now = time.monotonic()
        pace.tick(now - last)
        last = now
        progress = read_json(TrainerPaths(run).progress)
        pace.consumed, pace.step = int(progress.get("consumed", pace.consumed)), int(progress.get("step", pace.step))
        if turn is None:
            damaged = await take_newest(policy, weights, damaged)
        elif turn.wanted():
            await leave_device(policy, weights, turn)
        if config.train.heldout_every and pace.step >= next_score and not pace.is_scoring:
            next_score = (pace.step // config.train.heldout_every + 1) * config.train.heldout_every
            pace.scoring = asyncio.create_task(_score(config, run, parts, policy, backend, pace.step, stop))
        if now - reported > _REPORT_EVERY_S:
            reported = now
            replace_file(run / ROLLOUTS, pace.report(policy))
        if stopping.is_set() and stop_at is None:
            stop_at = now + _FINISH_GRACE_S
            stop.finish()
        if stop_at is not None and now > stop_at:
            stop.cut()
        await asyncio.sleep(POLL_S)


async def take_newest(policy: TrainablePolicy, weights: WeightFolder, damaged: int = 0) -> int:
    """Give the engine the newest version if it is another than its own. One that is damaged is named once and passed
    over, for the trainer's next replaces it. `damaged`, and the answer: the newest version that is."""
    newest = weights.newest()
    if newest is None or newest.number <= max(policy.version, damaged):
        return damaged
    try:
        # Pruned between looking and fetching: a newer one is there at the next look.
        with contextlib.suppress(PublishError), weights.fetch(newest) as folder:
            await policy.update_weights(folder, newest.number, lineage=newest.lineage)
    except FolderError as error:
        print(f"{error}. Episodes go on under version {policy.version} until a newer one is published", flush=True)
        return newest.number
    return damaged


async def leave_device(policy: TrainablePolicy, weights: WeightFolder, turn: GpuTurn) -> None:
    """Leave the device to the trainer for its step and go on under what it published. The episodes' own clocks stand
    still meanwhile; commands in sandboxes go on. Raises FolderError where that is damaged: nothing newer would come
    while everything waits here."""
    await policy.rest()
    turn.give()
    await turn.take()
    while (newest := weights.newest()) is not None and newest.number > policy.version:
        # Pruned between looking and fetching: a newer one is there.
        with contextlib.suppress(PublishError), weights.fetch(newest) as folder:
            await policy.wake(folder, newest.number, lineage=newest.lineage)
            return
        await asyncio.sleep(POLL_S)
    await policy.wake()


async def _score(
    config: Config, run: Path, parts: Parts, policy: TrainablePolicy, backend: Any, step: int, stop: Stop
) -> None:
    """A held-out score while training goes on: its tokens may come from several versions, which are named."""
    tasks = load_tasks(config.tasks.name, "heldout", config.tasks.path or None, limit=config.train.heldout_tasks)
    settings = replace(fleet_settings(config, f"{run.name}-heldout-{step}", backend.name), episodes_at_once=2)
    result, _ = await score(
        policy, parts.renderer, parts.preset, environments_of(config, parts.preset, backend), tasks, settings, stop=stop
    )
    if result.ungraded:
        return  # stopped meanwhile
    with (run / HELDOUT).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **result.to_dict()}) + "\n")
