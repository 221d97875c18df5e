"""The trainer's side of a run: log -> batches -> steps -> versions, with a checkpoint as the only truth.

    poll the log, admit, batch -> sao_step -> journal "trained" -> checkpoint (every k) -> publish -> metrics

Promises: every planned draw gets exactly one fate in the final lineage, whatever is killed when; lines that the journal
has beyond the checkpoint are rolled back by a `resumed` line; the version that a checkpoint stands for is published
before anything else is trained; a version number is never used twice. Stopping ends the step at hand, then checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agent.engines.vllm.proof import about_probe
from data.crashpoints import crash_point
from data.journal import Entry, Journal
from data.trajectory import Trajectory
from trainer import health
from trainer.checkpoint import Checkpoints
from trainer.gpu_turn import GpuTurn
from trainer.health import Alarm
from trainer.intake import Dropped, Intake, sampled
from trainer.ledger import (
    BEGAN,
    DROPPED,
    RESUMED,
    SET_ASIDE,
    TRAINED,
    DropReason,
    fatal_batches,
    set_aside,
)
from trainer.metrics import MetricsWriter
from trainer.optim import NonFiniteGradientError
from trainer.paths import TrainerPaths, replace_file
from trainer.publish import WeightFolder
from trainer.state import TrainerState
from trainer.train_config import TrainConfig
from trainer.unfit import BatchFault, Limits, TooManyUnfit
from trainer.update import Learner, sao_step

POLL_S = 0.05
DEATHS = 3
"""Times that the process may die in the step of one batch before that batch is set aside: one death may be chance."""


@dataclass
class Times:
    """Seconds since this process began to train."""

    idle: float = 0.0
    """Waiting for a batch."""
    busy: float = 0.0

    @property
    def idle_share(self) -> float:
        return self.idle / max(self.idle + self.busy, 1e-9)


class Trainer:
    """`logs`: one directory per rollout worker. `max_attempts`: of a draw, before an infrastructure fault drops it.
    `turn`: where the servers use the trainer's device, a step waits for its turn on it."""

    def __init__(
        self,
        paths: TrainerPaths,
        logs: Sequence[Path],
        learner: Learner,
        config: TrainConfig,
        *,
        lineage: str,
        max_attempts: int = 3,
        about: Mapping[str, Any] | None = None,
        metrics: MetricsWriter | None = None,
        turn: GpuTurn | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.turn = turn
        self.paths, self.learner, self.config, self.say = paths, learner, config, say
        self.about = dict(about or {})
        self._probe_tokens: list[int] | None = None
        self.journal = Journal(paths.journal)
        self.checkpoints = Checkpoints(paths.checkpoints, keep=config.keep_checkpoints)
        dtype = torch.bfloat16 if config.weights_dtype == "bf16" else None
        self.weights = WeightFolder(paths.weights, keep=config.keep_weights, dtype=dtype)
        self.settings = config.settings_hash()
        self.limits = Limits.of(config.limits, learner.policy)
        self.say(str(self.limits))
        self.times = Times()
        self.logs, self.max_attempts = list(logs), max_attempts
        self._set_aside_fatal()
        self.state = self._restore(lineage)
        self.metrics = metrics or MetricsWriter(paths.metrics)
        self.intake = self._open_intake()

    # --- starting -------------------------------------------------------------------------------------------------

    def _restore(self, lineage: str) -> TrainerState:
        self.checkpoints.open_for_writing()
        self.weights.open_for_writing()
        found = self.checkpoints.newest()
        if found is None:
            state = TrainerState(lineage)
        else:
            for fault in found.damaged:
                self.say(f"a checkpoint is damaged and passed over: {fault}")
            state = Checkpoints.load(found.path, self.learner, self.settings)
        entries = [entry for entry in self.journal.read() if "version" in entry.fields]
        self._relineage(state, entries)
        # The journal's trained and dropped lines of this step and later are taken back by this one.
        self.journal.write(
            RESUMED,
            step=state.step,
            updates=state.updates,
            version=state.version.number,
            lineage=state.lineage,
            settings=self.settings,
            kept=[draw for draw, fate in state.ledger.fates.items() if fate.step >= state.step],
        )
        if self.weights.newest() != state.version:
            self._publish(state)
        if found is None:
            self.checkpoints.save(self.learner, state, self.settings)
        return state

    def _open_intake(self) -> Intake:
        return Intake(
            self.logs,
            self.state,
            self.config.planned,
            self.config.max_staleness,
            self.max_attempts,
            bootstraps=self.learner.critic is not None,
            limits=self.limits,
            set_aside=set_aside(self.journal.read()),
        )

    def _relineage(self, state: TrainerState, entries: Sequence[Entry]) -> None:
        """Versions above the checkpoint's were seen by engines: what comes now gets a new lineage and new numbers."""
        newest = self.weights.newest()
        highest = max(
            [int(entry.fields["version"]) for entry in entries] + ([newest.number] if newest else []), default=-1
        )
        if highest <= state.version.number:
            return
        taken = [
            (int(entry.fields["version"]), int(entry.fields["version"]) - int(entry.fields["updates"]))
            for entry in entries
            if entry.event == RESUMED
        ]
        root = state.lineage.partition("+")[0]
        rollbacks = 1 + len({str(entry.fields["lineage"]) for entry in entries if "+" in str(entry.fields["lineage"])})
        self.say(f"versions {state.version.number + 1} to {highest} are taken back; going on as {root}+{rollbacks}")
        state.lineage = f"{root}+{rollbacks}"
        state.versions = state.versions.including(taken).renumbered(state.updates, highest + 1)

    # --- running --------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return len(self.state.ledger) >= self.config.planned

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the plan's end; False when `stop` came first. A checkpoint is written either way."""
        self._progress("running")
        while not self.finished and not stop():
            began = time.monotonic()
            batch = self._gather()
            if batch is None:
                if not self.finished:
                    time.sleep(POLL_S)
                self.times.idle += time.monotonic() - began
                continue
            with self.turn.step(stop) if self.turn else contextlib.nullcontext(True) as ours:
                self.times.idle += time.monotonic() - began
                if not ours:
                    self.intake.put_back()
                    break
                began = time.monotonic()
                self.attempt(batch)
                self.times.busy += time.monotonic() - began
        self._checkpoint()
        if self.weights.newest() != self.state.version:
            self._publish(self.state)
        self._progress("finished" if self.finished else "stopped")
        return self.finished

    def close(self) -> None:
        if self.turn is not None:
            self.turn.close()
        self.intake.close()
        self.metrics.close()
        self.journal.close()

    def _gather(self) -> list[Trajectory] | None:
        gone = self.intake.poll()
        batch, dropped = self.intake.next_batch(self.config.batch)
        self._journal_drops([*gone, *dropped])
        return batch

    def _journal_drops(self, dropped: Sequence[Dropped]) -> None:
        for item in dropped:
            self.journal.write(
                DROPPED,
                draw=item.draw,
                episode_id=item.episode_id,
                reason=str(item.reason),
                step=self.state.step,
                tokens=item.tokens,
            )
            if item.reason.unfit:
                self.say(f"draw {item.draw} ({item.episode_id}) is dropped, {item.reason}: {item.why}")
        if dropped:
            self._progress("running")
            self._refuse_too_many()

    # --- what cannot be trained on -------------------------------------------------------------------------------

    def attempt(self, batch: list[Trajectory]) -> bool:
        """Train on the batch; where the step fails on it, set it aside and go back to the checkpoint: the next batch is
        made without it. True when trained."""
        failed: tuple[DropReason, str, tuple[int, ...]] | None = None
        try:
            self.step(batch)
        except BatchFault as error:
            failed = (error.reason, str(error), error.members)
        except NonFiniteGradientError as error:
            failed = (DropReason.NON_FINITE, str(error), ())
        if failed is None:
            return True
        # Outside the handler: the failed step's tensors hang on its traceback.
        self._go_back(batch, *failed)
        return False

    def _go_back(self, batch: list[Trajectory], reason: DropReason, text: str, members: Sequence[int]) -> None:
        blamed = [batch[place] for place in members] or batch
        self._note_set_aside(self.state.step, [t.identity.episode_id for t in blamed], reason, text)
        crash_point("set_aside.after_journal")
        for model in (self.learner.policy, self.learner.critic):
            if model is not None:
                model.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.intake.close()
        # The critic may be one update further than the policy. A checkpoint is what both sides agree on.
        self.state = self._restore(self.state.lineage)
        self.intake = self._open_intake()
        self._refuse_too_many()

    def _note_set_aside(self, step: int, episodes: Sequence[str], reason: DropReason, text: str) -> None:
        self.journal.write(SET_ASIDE, step=step, episodes=list(episodes), reason=str(reason), text=text)
        shown = ", ".join(episodes[:3]) + (f" and {len(episodes) - 3} more" if len(episodes) > 3 else "")
        self.say(f"step {step} failed and is made again without {shown}, {reason}: {text}")

    def _set_aside_fatal(self) -> None:
        """A batch that kills the process (the kernel's memory killer leaves no exception) would be made for ever."""
        for step, episodes in fatal_batches(self.journal.read(), DEATHS):
            self._note_set_aside(step, episodes, DropReason.KILLED_TRAINER, f"the trainer died in it {DEATHS} times")

    def _refuse_too_many(self) -> None:
        limits, dropped = self.config.limits, self.state.ledger.dropped()
        unfit = {str(reason): dropped[reason] for reason in DropReason if reason.unfit and dropped[reason]}
        seen = len(self.state.ledger) + self.intake.waiting
        allowed = max(self.config.batch, int(limits.unfit_share * seen))
        if sum(unfit.values()) > allowed:
            counts = ", ".join(f"{count} {reason}" for reason, count in unfit.items())
            raise TooManyUnfit(
                f"{sum(unfit.values())} of {seen} draws could not be trained ({counts}), the limit "
                f"is {allowed}. {self.paths.journal} names them. Mend what makes them (agent limits, grader), or set "
                "train.limits.max_tokens, max_reward or unfit_share; then the same command goes on"
            )
        failures = [entry for entry in self.journal.read() if entry.event == SET_ASIDE]
        if len(failures) > limits.set_aside:
            raise TooManyUnfit(
                f"{len(failures)} steps failed on their batch, the limit is {limits.set_aside}; the last: "
                f"{failures[-1].fields['text']}. For memory lower train.step.packing.token_budget or "
                "train.limits.max_tokens; a raised train.limits.set_aside goes on as it is"
            )

    def step(self, batch: list[Trajectory]) -> None:
        state = self.state
        self.journal.write(BEGAN, step=state.step, episodes=[t.identity.episode_id for t in batch])
        result = sao_step(self.learner, batch, step=state.step, version=state.version.number, history=state.history)
        crash_point("step.after_optimizer")
        metrics = state.versions.corrected(result.metrics, batch, state.updates)
        trained_with = state.version
        self.intake.trained(batch)
        metrics = replace(metrics, lengths=self.intake.lengths(batch))
        alarms, state.health = health.check(metrics, state.health, self.learner.config.health)
        self.journal.write(
            TRAINED,
            step=state.step,
            draws=[trajectory.identity.draw for trajectory in batch],
            episodes=[trajectory.identity.episode_id for trajectory in batch],
            tokens=[sampled(trajectory) for trajectory in batch],
            version=trained_with.number,
            lineage=trained_with.lineage,
            settings=self.settings,
            threads=torch.get_num_threads(),
        )
        crash_point("step.after_journal")
        state.history = result.history
        state.step += 1
        state.updates += not metrics.critic_only
        if state.step % self.config.checkpoint_every == 0:
            self._checkpoint()
        if not metrics.critic_only and state.updates % self.config.publish_every == 0:
            self._publish(state)
        self._report(metrics.to_dict(), alarms, trained_with.number)
        self._progress("running")

    def _checkpoint(self) -> None:
        self.intake.remember()
        self.checkpoints.save(self.learner, self.state, self.settings)

    def _publish(self, state: TrainerState) -> None:
        about = {
            **self.about,
            "step": state.step,
            "updates": state.updates,
            "settings": self.settings,
            **self._probe(),  # an engine that serves these weights must give the same numbers
        }
        self.weights.publish(self.learner.policy, state.version, about)
        self.journal.write("published", step=state.step, version=state.version.number, lineage=state.lineage)
        crash_point("publish.after_journal")

    def _probe(self) -> dict[str, Any]:
        """Of the present weights, over tokens that this trainer draws once: a step moves what is likely a little."""
        about = about_probe(self.learner.policy, self._probe_tokens)
        if about:
            self._probe_tokens = about["probe"]["tokens"]
        return about

    def _report(self, metrics: dict[str, object], alarms: Sequence[Alarm], version: int) -> None:
        for alarm in alarms:
            self.say(
                f"alarm at step {alarm.step}: {alarm.kind} {alarm.value:.4g} (limit {alarm.limit:.4g}): {alarm.text}"
            )
        self.metrics.write(
            {
                **metrics,
                "time": time.time(),
                "weights_version": version,
                "lineage": self.state.lineage,
                "waiting": self.intake.waiting,
                "trained_draws": self.state.ledger.trained,
                "dropped": dict(self.state.ledger.dropped()),
                "repeated": self.intake.repeated,
                "idle_share": self.times.idle_share,
                "alarms": [alarm.to_dict() for alarm in alarms],
            }
        )

    def _progress(self, phase: str) -> None:
        """For the other process: how far rollouts may run ahead, and whether this side is at its end. Not durable: the
        next one replaces it."""
        state = self.state
        values = {
            "phase": phase,
            "step": state.step,
            "steps": self.config.steps,
            "planned": self.config.planned,
            "consumed": len(state.ledger),
            "dropped": dict(state.ledger.dropped()),
            "version": state.version.number,
            "lineage": state.lineage,
            "waiting": self.intake.waiting if hasattr(self, "intake") else 0,
            "idle_share": self.times.idle_share,
            "pid": os.getpid(),
            "time": time.time(),
        }
        replace_file(self.paths.progress, values)
