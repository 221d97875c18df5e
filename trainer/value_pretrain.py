"""Value pretraining: a critic that knows how a *frozen* policy's episodes end, before that policy starts to move.

Target R on every action token (lambda_critic = 1, gamma = 1), the whole critic trainable, optimizer of its own.
Promises: the log must come from one version of one policy (values of a mixture mean nothing); held-out trajectories are
never trained on and differ by task; the critic is handed over only when its explained variance there is above the gate,
measured where rewards differ; what is handed over is weights and a manifest (tokenizer, base model, data), never an
optimizer's moments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.contamination import training_refusal
from data.trajectory import Status, Trajectory
from trainer.critic import Critic, save_critic
from trainer.folders import content_hash
from trainer.freeze import freeze
from trainer.optim import TrainingSetupError, build_optimizer, check_dropout_off, warmed_rate
from trainer.packing import action_axis, pack
from trainer.passes import critic_update, read_values
from trainer.statistics import explained_variance
from trainer.train_config import ValueConfig


class ValueDataError(TrainingSetupError):
    """The log cannot teach a critic; the text says why."""


class GateError(TrainingSetupError):
    """The critic predicts no better than the gate; nothing was handed over."""


@dataclass(frozen=True)
class Measurement:
    step: int
    loss: float | None
    """Training loss of the step before; None at the start."""
    explained_variance: float
    """On the held-out trajectories, over their action tokens."""
    mean_value: float
    mean_reward: float


@dataclass(frozen=True)
class ValueResult:
    best: Measurement
    measured: list[Measurement]
    trained_on: int
    held_out: int
    data: str
    """Hash over the episode ids and rewards."""

    def provenance(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "trained_on": self.trained_on,
            "held_out": self.held_out,
            "best": asdict(self.best),
        }


def usable(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Graded ones with action tokens. Raises ValueDataError when they come from several versions or tokenizers."""
    trajectories = list(trajectories)
    if refusal := next(filter(None, map(training_refusal, trajectories)), ""):
        raise ValueDataError(refusal)
    kept = [t for t in trajectories if t.outcome.status is Status.GRADED and t.oldest_version is not None]
    sources = {(t.identity.lineage, int(v)) for t in kept for v in np.unique(t.versions[t.action_mask])}
    if len(sources) > 1:
        shown = ", ".join(f"{lineage} version {version}" for lineage, version in sorted(sources)[:3])
        raise ValueDataError(
            f"the log holds tokens of {len(sources)} policies ({shown}): value pretraining needs one frozen policy. "
            "Make a log with `sao rollout` and pass that"
        )
    tokenizers = {t.identity.tokenizer for t in kept}
    if len(tokenizers) > 1:
        raise ValueDataError(f"the log holds ids of {len(tokenizers)} tokenizers: use one log per model")
    if len(kept) < 4:
        raise ValueDataError(
            f"the log holds {len(kept)} graded trajectories with action tokens: make more with `sao rollout`"
        )
    return kept


def split(trajectories: Sequence[Trajectory], share: float, seed: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """(train, held out) by task, so that no task stands on both sides. Raises ValueDataError when the held-out rewards
    are all alike: explained variance is undefined there."""

    def place(task: str) -> float:
        return int.from_bytes(hashlib.sha256(f"{seed}\0{task}".encode()).digest()[:8], "big") / 2**64

    held = [t for t in trajectories if place(t.identity.task_id) < share]
    train = [t for t in trajectories if place(t.identity.task_id) >= share]
    if not train or len({t.outcome.reward for t in held}) < 2:
        raise ValueDataError(
            f"{len(train)} trajectories to train on and {len(held)} held out with "
            f"{len({t.outcome.reward for t in held})} different rewards: explained variance needs both outcomes. Use a "
            "longer log, another held_out share or seed, or tasks that the policy sometimes solves"
        )
    return train, held


def measure(
    critic: Critic, trajectories: Sequence[Trajectory], budget: int, precision: str = "auto"
) -> tuple[float, float, float]:
    """(explained variance, mean value, mean reward) over the action tokens."""
    device = critic.head.weight.device
    axis = action_axis(trajectories, device)
    values = read_values(critic, pack(trajectories, axis, budget), len(axis), precision)
    target = axis.outcomes[axis.trajectory]
    explained = explained_variance(values, target)
    if explained is None:
        raise ValueDataError("all held-out rewards are alike: explained variance is undefined there")
    return explained, float(values.mean()), float(target.mean())


def pretrain_value(
    critic: Critic,
    trajectories: Sequence[Trajectory],
    config: ValueConfig,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> ValueResult:
    """Train in place and leave the weights of the best measurement in `critic`. Raises ValueDataError, GateError."""
    train, held = split(usable(trajectories), config.held_out, config.seed)
    freeze(critic, "none")
    critic.eval()
    check_dropout_off(critic)
    optimizer = build_optimizer(critic, config.optimizer)
    order = _order(len(train), config)
    first = Measurement(0, None, *measure(critic, held, config.token_budget, config.precision))
    measured, best, weights = [first], None, None
    for step in range(config.steps):
        batch = [train[i] for i in order[step]]
        axis = action_axis(batch, critic.head.weight.device)
        update = critic_update(
            critic,
            optimizer,
            pack(batch, axis, config.token_budget),
            axis.outcomes[axis.trajectory].float(),
            denominator=len(axis),
            rate=warmed_rate(config.optimizer, step),
            max_grad_norm=config.optimizer.max_grad_norm,
            precision=config.precision,
        )
        if (step + 1) % config.evaluate_every and step + 1 != config.steps:
            continue
        now = Measurement(step + 1, update.loss, *measure(critic, held, config.token_budget, config.precision))
        measured.append(now)
        say(
            f"step {now.step}/{config.steps}: loss {update.loss:.4f}, held-out explained variance "
            f"{now.explained_variance:.3f}, mean value {now.mean_value:.3f} (reward {now.mean_reward:.3f})"
        )
        if best is None or now.explained_variance > best.explained_variance:
            best = now
            weights = {name: tensor.detach().clone() for name, tensor in critic.state_dict().items()}
    assert best is not None
    assert weights is not None
    if best.explained_variance <= config.gate:
        raise GateError(
            f"best held-out explained variance {best.explained_variance:.3f} (step {best.step}) is not above the gate "
            f"{config.gate:g}: nothing was handed over. Use a longer log, more steps or another rate"
        )
    critic.load_state_dict(weights)
    lines = sorted(f"{t.identity.episode_id} {t.outcome.reward}\n" for t in [*train, *held])
    return ValueResult(best, measured, len(train), len(held), content_hash(line.encode() for line in lines))


def _order(count: int, config: ValueConfig) -> list[list[int]]:
    """Batches for every step: whole shuffles of the data one after the other."""
    rng = np.random.default_rng(config.seed)
    size = min(config.batch, count)
    flow: list[int] = []
    while len(flow) < size * config.steps:
        flow += rng.permutation(count).tolist()
    return [flow[step * size : (step + 1) * size] for step in range(config.steps)]


def hand_over(
    critic: Critic, result: ValueResult, target: Path, *, tokenizer: str, base_model: str, config: ValueConfig
) -> Path:
    """Weights and manifest as a new folder; what `train.critic` points at."""
    about = {"tokenizer": tokenizer, "base_model": base_model, "config": config.model_dump(mode="json")}
    return save_critic(critic, target, {**about, **result.provenance()})
