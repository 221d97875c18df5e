"""Training again from a log alone.

`exact`: the recorded batches, from the starting weights, under the recorded settings: bit-equal weights (same thread
count and library versions). `offpolicy`: another algorithm over an old log, in its order; the policy moves away from
the one that sampled, so the rejected share is reported at every step and above a limit the replay ends.
Promises: neither touches the run it reads; a batch that cannot be made again is an error that names the episode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from data.contamination import training_refusal
from data.journal import Entry
from data.trajectory import Trajectory
from trainer.controls import RewardHistory
from trainer.ledger import RESUMED, TRAINED
from trainer.publish import distinct_tensors
from trainer.statistics import StepMetrics
from trainer.unfit import ANY, Limits
from trainer.update import Learner, sao_step


class ReplayError(RuntimeError):
    """The replay cannot be made, or went beyond its limit; the text says which and why."""


@dataclass(frozen=True)
class Recorded:
    """One step of the final lineage."""

    step: int
    episodes: tuple[str, ...]
    settings: str
    threads: int


def recorded_steps(entries: Iterable[Entry]) -> list[Recorded]:
    """In order; steps that a crash took back appear only as they were made again."""
    steps: dict[int, Recorded] = {}
    for entry in entries:
        if entry.event == RESUMED:
            steps = {step: made for step, made in steps.items() if step < int(entry.fields["step"])}
        elif entry.event == TRAINED:
            step = int(entry.fields["step"])
            fields = entry.fields
            steps[step] = Recorded(step, tuple(fields["episodes"]), fields["settings"], int(fields["threads"]))
    if sorted(steps) != list(range(len(steps))):
        raise ReplayError(f"the journal's steps are not 0 to {len(steps) - 1}: it was cut or merged; nothing to replay")
    return [steps[step] for step in sorted(steps)]


def weights_digest(model: nn.Module | Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes and bytes: equal exactly when all weights are bit-equal."""
    tensors = distinct_tensors(model) if isinstance(model, nn.Module) else dict(model)
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


@dataclass
class ReplayReport:
    steps: int = 0
    digest: str = ""
    """Of the policy's weights at the end."""
    rejected: list[float] = field(default_factory=list)
    """Share of action tokens outside the band, by step."""
    rewards: list[float | None] = field(default_factory=list)


def replay_exact(
    steps: Sequence[Recorded],
    trajectories: Mapping[str, Trajectory],
    learner: Learner,
    settings: str,
    *,
    on_step: Callable[[StepMetrics], None] = lambda _: None,
) -> ReplayReport:
    """Train `learner` (fresh, with the run's starting weights) on the recorded batches, in place."""
    for made in steps:
        if made.settings != settings:
            raise ReplayError(
                f"step {made.step} was made under settings {made.settings}, now {settings}: use the run's own"
            )
        if made.threads != torch.get_num_threads():
            raise ReplayError(
                f"step {made.step} was made with {made.threads} threads, this process has {torch.get_num_threads()}: "
                "sums round differently. Set train.threads to the recorded number"
            )
    report, history, updates = ReplayReport(), RewardHistory(), 0
    for made in steps:
        result = sao_step(learner, _batch(made, trajectories), step=made.step, version=updates, history=history)
        history = result.history
        updates += not result.metrics.critic_only
        _note(report, result.metrics, on_step)
    report.digest = weights_digest(learner.policy)
    return report


def replay_offpolicy(
    trajectories: Iterable[Trajectory],
    learner: Learner,
    batch: int,
    *,
    limit: float,
    admitted: Limits = ANY,
    max_steps: int | None = None,
    on_step: Callable[[StepMetrics], None] = lambda _: None,
) -> ReplayReport:
    """Train on a whole log in its order, `batch` at a time; what cannot be trained on is left out. Raises ReplayError
    when the rejected share of a step is above `limit`: the policy has left what the log can teach."""
    report, history, updates = ReplayReport(), RewardHistory(), 0
    waiting: list[Trajectory] = []
    for trajectory in trajectories:
        if refusal := training_refusal(trajectory):
            raise ReplayError(refusal)
        bootstraps = learner.critic is not None
        if trajectory.oldest_version is None or admitted.refusal(trajectory, bootstraps=bootstraps):
            continue
        waiting.append(trajectory)
        if len(waiting) < batch:
            continue
        result = sao_step(learner, waiting, step=report.steps, version=updates, history=history)
        waiting, history = [], result.history
        updates += not result.metrics.critic_only
        _note(report, result.metrics, on_step)
        share = report.rejected[-1]
        if share > limit:
            raise ReplayError(
                f"step {report.steps - 1} rejects {100 * share:.1f} % of its action tokens, the limit is "
                f"{100 * limit:.1f} %: the policy has moved away from the one that made this log. Stop earlier, lower "
                "the rate, or make new rollouts"
            )
        if max_steps is not None and report.steps >= max_steps:
            break
    report.digest = weights_digest(learner.policy)
    return report


def _batch(made: Recorded, trajectories: Mapping[str, Trajectory]) -> list[Trajectory]:
    missing = [episode for episode in made.episodes if episode not in trajectories]
    if missing:
        raise ReplayError(f"step {made.step} was trained on episode {missing[0]}, which is not in the log")
    batch = [trajectories[episode] for episode in made.episodes]
    if refusal := next(filter(None, map(training_refusal, batch)), ""):
        raise ReplayError(refusal)
    return batch


def _note(report: ReplayReport, metrics: StepMetrics, on_step: Callable[[StepMetrics], None]) -> None:
    report.steps += 1
    report.rejected.append(metrics.rejected_share or 0.0)
    report.rewards.append(metrics.reward)
    on_step(metrics)
