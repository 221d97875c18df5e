"""From trajectories to tensors: one flat axis of action tokens for the batch, and micro-batches of right-padded rows.

Promises:
* loss and gradients do not depend on the split into micro-batches, on their order or on padding: every per-token
  quantity lives on the flat action axis, and the denominator is the batch's;
* V(a_t) and log pi(a_t) are read at the position that *predicts* a_t, t - 1, which for the first token of an action is
  the last token of the observation (or prompt) before it; nothing is masked before that shift;
* masks come from recorded versions, never from token ids (pad may equal eos), and the last action token is the last
  *place* of the mask, not its sum;
* a missing log-probability is an error, never filled; infrastructure errors are never trained on.

Rows rather than concatenated sequences: with causal attention, padding on the right needs no mask at all, so any
Hugging Face causal LM (full, sliding or linear attention) gives exact results and keeps its fast kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.contamination import training_refusal
from data.trajectory import SpanKind, Status, Trajectory


class UntrainableError(ValueError):
    """A trajectory that must not be trained on reached the trainer; the text names it and the reason."""


@dataclass(frozen=True)
class ActionAxis:
    """The optimizer batch on one axis of its N action tokens, trajectory after trajectory in batch order."""

    tokens: Tensor
    """[N] int64: ids a_t."""
    positions: Tensor
    """[N] int64: t, the place of a_t in its trajectory; read at t - 1."""
    behaviour: Tensor
    """[N] float32: log-probability recorded when a_t was sampled."""
    versions: Tensor
    """[N] int64: policy version that sampled a_t."""
    rewards: Tensor
    """[N] float64: the outcome's reward on the last action token, else 0."""
    steps: Tensor
    """[N] int64: place of a_t's turn among its trajectory's actions, from 0."""
    trajectory: Tensor
    """[N] int64: place of the trajectory in the batch."""
    lengths: Tensor
    """[B] int64: action tokens by trajectory."""
    outcomes: Tensor
    """[B] float64: reward; NaN for a system cut."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ends_turn(self) -> Tensor:
        """[N] bool: last token of its turn."""
        if not len(self):
            return torch.zeros(0, dtype=torch.bool, device=self.steps.device)
        last = torch.ones_like(self.steps, dtype=torch.bool)
        last[:-1] = (self.steps[1:] != self.steps[:-1]) | (self.trajectory[1:] != self.trajectory[:-1])
        return last

    @property
    def cut(self) -> Tensor:
        """[B] bool: stopped by the system, to be bootstrapped."""
        return self.outcomes.isnan()


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through a model together."""

    tokens: Tensor
    """[b, L] int64, right-padded with 0 (any id: padding is known by place)."""
    gather: Tensor
    """[K] int64: places in the flattened [b * L] whose output belongs to `slots`."""
    slots: Tensor
    """[K] int64: places on the batch's action axis."""
    real_tokens: int
    members: tuple[int, ...]
    """Places in the batch of the rows."""

    def rows(self, hidden: Tensor) -> Tensor:
        """[b, L, H] -> [K, H]."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.gather)


def untrainable_reason(trajectory: Trajectory, *, bootstraps: bool = True) -> str | None:
    """Why the trainer refuses this trajectory, or None. `bootstraps`: a critic is there to value a system cut."""
    status, sampling = trajectory.outcome.status, trajectory.identity.sampling
    if status is Status.IMPORTED:
        return f"{status}: {training_refusal(trajectory)}"
    if status is Status.INFRA_ERROR:
        return f"{status}: the environment or engine failed, which says nothing about the policy"
    if status is Status.CUT and not bootstraps:
        return f"{status}: cut by the system, and without a critic nothing can stand in for the missing reward"
    if sampling.temperature != 1 or sampling.top_p != 1:
        return f"sampled at temperature {sampling.temperature}, top-p {sampling.top_p}: training needs 1 and 1"
    return training_refusal(trajectory) or None


def action_positions(trajectory: Trajectory) -> NDArray[np.int64]:
    """Places of the sampled tokens on the token axis."""
    return np.flatnonzero(trajectory.action_mask)


def token_rewards(trajectory: Trajectory) -> NDArray[np.float64]:
    """[T]: the verifier's reward on the last action token (gap), zero elsewhere and for a system cut."""
    rewards = np.zeros(len(trajectory), dtype=np.float64)
    positions = action_positions(trajectory)
    if len(positions) and trajectory.outcome.reward is not None:
        rewards[positions[-1]] = trajectory.outcome.reward
    return rewards


def turn_of_action(trajectory: Trajectory) -> NDArray[np.int64]:
    """[T]: running number of the action span; -1 outside."""
    turns = np.full(len(trajectory), -1, dtype=np.int64)
    actions = [span for span in trajectory.spans if span.kind is SpanKind.ACTION]
    for number, span in enumerate(actions):
        turns[span.start : span.end] = number
    return turns


def action_axis(
    trajectories: Sequence[Trajectory], device: torch.device | str = "cpu", *, bootstraps: bool = True
) -> ActionAxis:
    """Raises `UntrainableError` naming the first trajectory that must not be here."""
    columns: dict[str, list[NDArray]] = {name: [] for name in _COLUMNS}
    for index, trajectory in enumerate(trajectories):
        reason = untrainable_reason(trajectory, bootstraps=bootstraps)
        where = f"batch[{index}] (episode {trajectory.identity.episode_id}, task {trajectory.identity.task_id})"
        if reason:
            raise UntrainableError(f"{where}: {reason}. Drop it, with this reason, before the batch is made")
        at = action_positions(trajectory)
        behaviour = trajectory.logprobs[at]
        missing = at[~np.isfinite(behaviour)]
        if missing.size or (at.size and at[0] == 0):
            raise UntrainableError(
                f"{where}: token {missing[0] if missing.size else 0} is to be trained but has no recorded "
                "log-probability or nothing before it. It is never filled or recomputed: the mask and the engine's "
                "records disagree"
            )
        columns["tokens"].append(trajectory.tokens[at])
        columns["positions"].append(at)
        columns["behaviour"].append(behaviour)
        columns["versions"].append(trajectory.versions[at])
        columns["rewards"].append(token_rewards(trajectory)[at])
        columns["steps"].append(turn_of_action(trajectory)[at])
        columns["trajectory"].append(np.full(len(at), index))
    flat = {
        name: torch.from_numpy(np.concatenate(parts).astype(_COLUMNS[name]) if parts else np.empty(0, _COLUMNS[name]))
        for name, parts in columns.items()
    }
    lengths = torch.tensor([len(part) for part in columns["tokens"]], dtype=torch.int64)
    outcomes = [float("nan") if t.outcome.reward is None else t.outcome.reward for t in trajectories]
    return ActionAxis(
        **{name: column.to(device) for name, column in flat.items()},
        lengths=lengths.to(device),
        outcomes=torch.tensor(outcomes, dtype=torch.float64, device=device),
    )


_COLUMNS: dict[str, type] = {
    "tokens": np.int64,
    "positions": np.int64,
    "behaviour": np.float32,
    "versions": np.int64,
    "rewards": np.float64,
    "steps": np.int64,
    "trajectory": np.int64,
}


def pack(trajectories: Sequence[Trajectory], axis: ActionAxis, token_budget: int) -> list[MicroBatch]:
    """Micro-batches over all action tokens: rows of similar length, rows * longest <= token_budget, longest first.

    A row ends before its last action token: what follows predicts nothing that is trained, and with causal attention
    nothing before it can see it. A row longer than the budget is a micro-batch of its own.
    """
    positions = axis.positions.cpu().numpy()
    lengths = axis.lengths.cpu().numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ends = [int(positions[starts[i + 1] - 1]) if lengths[i] else 1 for i in range(len(trajectories))]
    reads = [positions[starts[i] : starts[i + 1]] - 1 for i in range(len(trajectories))]
    slots = [np.arange(starts[i], starts[i + 1]) for i in range(len(trajectories))]
    return _rows(trajectories, ends, reads, slots, range(len(trajectories)), token_budget, axis.tokens.device)


def pack_ends(trajectories: Sequence[Trajectory], axis: ActionAxis, token_budget: int) -> list[MicroBatch]:
    """Micro-batches over the system cuts only, read at the last token of the trajectory: V(next state). `slots` are
    places in the batch."""
    chosen = axis.cut.nonzero().flatten().tolist()
    cut = [trajectories[i] for i in chosen]
    ends = [len(t) for t in cut]
    reads = [np.array([end - 1]) for end in ends]
    return _rows(cut, ends, reads, [np.array([i]) for i in chosen], chosen, token_budget, axis.tokens.device)


def rows_within(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Numbers of rows that go together: rows * longest <= token_budget, longest first. A longer row is alone."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    while order:
        count = max(1, token_budget // lengths[order[0]])
        groups.append(order[:count])
        order = order[count:]
    return groups


def _rows(
    trajectories: Sequence[Trajectory],
    ends: Sequence[int],
    reads: Sequence[NDArray],
    slots: Sequence[NDArray],
    places: Sequence[int],
    token_budget: int,
    device: torch.device,
) -> list[MicroBatch]:
    micro: list[MicroBatch] = []
    for chosen in rows_within(ends, token_budget):
        longest = ends[chosen[0]]
        tokens = np.zeros((len(chosen), longest), dtype=np.int64)
        for row, i in enumerate(chosen):
            tokens[row, : ends[i]] = trajectories[i].tokens[: ends[i]]
        gather = np.concatenate([reads[i] + row * longest for row, i in enumerate(chosen)])
        where = np.concatenate([slots[i] for i in chosen])
        micro.append(
            MicroBatch(
                tokens=torch.from_numpy(tokens).to(device),
                gather=torch.from_numpy(gather.astype(np.int64)).to(device),
                slots=torch.from_numpy(where.astype(np.int64)).to(device),
                real_tokens=sum(ends[i] for i in chosen),
                members=tuple(places[i] for i in chosen),
            )
        )
    return micro
