"""Skip-observation GAE: advantages and value targets over the compact sequence of action tokens.

Promises:
* observations, padding and other trajectories change no advantage: one gamma * lambda factor crosses a whole
  observation, however long;
* lambda, the recursion and every intermediate are float64 (in bf16 the adaptive lambda is 1.0 from 342 tokens on, in
  fp32 it is off by 7e-4 at 131,072); results are cast to float32 by the caller-facing functions;
* value targets come from raw values with lambda_critic, never from whitened advantages.

Layout: the batch's N action tokens lie on one flat axis, trajectory after trajectory; `lengths` [B] cuts it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config import AdvantageConfig, AdvantageKind


class AdvantageError(ValueError):
    """Rewards, values and lengths do not fit together; the text says which."""


def adaptive_lambda(units: Tensor, alpha: float = 1.5) -> Tensor:
    """[B] float64: 1 - 1 / (alpha * l) clamped at 0 (paper; that l counts a trajectory's own action tokens is ours)."""
    return (1 - 1 / (alpha * units.to(torch.float64).clamp(min=1))).clamp(min=0)


def suffix_sums(deltas: Tensor, lengths: Tensor, factor: Tensor) -> Tensor:
    """[N] -> [N] float64: S_t = delta_t + c S_{t+1} within each trajectory, with c per trajectory [B].

    Linear in N, in time and memory, however ragged: every trajectory is cut into blocks of equal size (its last one
    padded), the blocks are summed by doubling, all at once, and what follows a block is carried in from the right.
    """
    total = int(lengths.sum())
    if not total:
        return deltas.to(torch.float64)
    device, c = deltas.device, factor.to(torch.float64)
    # Blocks of about a mean trajectory: their padding is less than the tokens, or than one block a trajectory.
    size = min(_BLOCK, 1 << max(0, total // max(int((lengths > 0).sum()), 1) - 1).bit_length())
    blocks = (lengths + size - 1) // size
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), blocks)
    within = torch.arange(len(owner), device=device) - (blocks.cumsum(0) - blocks)[owner]
    filled = (lengths[owner] - within * size).clamp(max=size)
    rows = torch.zeros(len(owner), size, dtype=torch.float64, device=device)
    mask = torch.arange(size, device=device) < filled[:, None]
    rows[mask] = deltas.to(torch.float64)
    power, reach = c[owner][:, None], 1
    while reach < size:
        rows[:, :-reach] += power * rows[:, reach:]
        power, reach = power * power, 2 * reach
    carried = _carried(rows[:, 0], c[owner] ** filled, within)
    left = (filled[:, None] - torch.arange(size, device=device)).clamp(min=0)
    return (rows + c[owner][:, None] ** left * carried[:, None])[mask]


_BLOCK = 512


def _carried(first: Tensor, decay: Tensor, within: Tensor) -> Tensor:
    """[blocks]: the suffix sum at the start of the *next* block of the same trajectory, 0 after its last one. One
    number a block, so a plain loop is fast."""
    sums, factors, places = first.tolist(), decay.tolist(), within.tolist()
    carried = [0.0] * len(sums)
    for block in range(len(sums) - 2, -1, -1):
        if places[block + 1]:
            carried[block] = sums[block + 1] + factors[block + 1] * carried[block + 1]
    return torch.tensor(carried, dtype=torch.float64, device=first.device)


def _last_actions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Places on the flat axis of the trajectories' last action tokens, and which trajectories have one."""
    ends = lengths > 0
    return lengths.cumsum(0)[ends] - 1, ends


def gae(values: Tensor, rewards: Tensor, lengths: Tensor, lam: Tensor, gamma: float, bootstrap: Tensor) -> Tensor:
    """Plain GAE on compact sequences. values, rewards [N]; lengths, lam, bootstrap [B]. Returns [N] float64.

    delta_t = r_t + gamma V_{t+1} - V_t, where t + 1 is the trajectory's next *action* token (paper) and, after the
    last one, `bootstrap`: 0 for a finished trajectory, V(next state) for one cut by the system.
    """
    if not (values.shape == rewards.shape == (int(lengths.sum()),)):
        raise AdvantageError(
            f"values {tuple(values.shape)}, rewards {tuple(rewards.shape)} and {int(lengths.sum())} action tokens"
        )
    v = values.detach().to(torch.float64)
    following = torch.cat([v[1:], v[:1]])  # its last place is a trajectory's end, too
    last, ends = _last_actions(lengths)
    following[last] = bootstrap.detach().to(torch.float64)[ends]
    deltas = rewards.detach().to(torch.float64) + gamma * following - v
    return suffix_sums(deltas, lengths, gamma * lam.to(torch.float64))


def discounted_rewards(rewards: Tensor, lengths: Tensor, gamma: float, bootstrap: Tensor) -> Tensor:
    """[N] float64: value targets for lambda_critic = 1, which need no values at all: the sum of later rewards, plus
    the discounted bootstrap. With gamma = 1: R on every action token of a finished trajectory, V(next state) on every
    one of a cut."""
    later = rewards.detach().to(torch.float64).clone()
    last, ends = _last_actions(lengths)
    later[last] += gamma * bootstrap.detach().to(torch.float64)[ends]
    factor = torch.full((len(lengths),), gamma, dtype=torch.float64, device=lengths.device)
    return suffix_sums(later, lengths, factor)


def value_targets(
    rewards: Tensor, lengths: Tensor, bootstrap: Tensor, config: AdvantageConfig, values: Tensor | None = None
) -> Tensor:
    """[N] float32, fixed over the K critic updates. `values` (before the first update) only if lambda_critic < 1."""
    if config.lambda_critic == 1:
        return discounted_rewards(rewards, lengths, config.gamma, bootstrap).float()
    if values is None:
        raise AdvantageError(f"lambda_critic {config.lambda_critic}: value targets need the values before the update")
    lam = torch.full((len(lengths),), config.lambda_critic, dtype=torch.float64, device=lengths.device)
    advantages = gae(values, rewards, lengths, lam, config.gamma, bootstrap)
    return (advantages + values.detach().to(torch.float64)).float()


def policy_advantages(
    values: Tensor, rewards: Tensor, lengths: Tensor, bootstrap: Tensor, config: AdvantageConfig, steps: Tensor
) -> Tensor:
    """[N] float32, not whitened. `steps` [N]: place of the token's turn among the trajectory's actions, from 0."""
    if config.kind is AdvantageKind.GAE:
        lam = _lambda_policy(lengths, config)
        return gae(values, rewards, lengths, lam, config.gamma, bootstrap).float()
    if config.kind in (AdvantageKind.STEP_MEAN, AdvantageKind.STEP_LAST):
        return _step_gae(values, rewards, lengths, bootstrap, config, steps).float()
    raise AdvantageError(f"advantage kind '{config.kind}' has no critic: trainer.controls computes it")


def _lambda_policy(units: Tensor, config: AdvantageConfig) -> Tensor:
    if config.lambda_policy is None:
        return adaptive_lambda(units, config.alpha)
    return torch.full((len(units),), config.lambda_policy, dtype=torch.float64, device=units.device)


def decay_to_end(lengths: Tensor, config: AdvantageConfig) -> Tensor:
    """[N] float64: (gamma * lambda)^(l - t) for token t = 1 .. l of each trajectory, 1 at its last one. This is what
    GAE makes of a reward at the end where every value is the same (and gamma is 1)."""
    ends = torch.repeat_interleave(lengths.cumsum(0), lengths)
    left = ends - 1 - torch.arange(len(ends), device=lengths.device)
    factor = config.gamma * _lambda_policy(lengths, config)
    return torch.repeat_interleave(factor, lengths) ** left


def _step_gae(
    values: Tensor, rewards: Tensor, lengths: Tensor, bootstrap: Tensor, config: AdvantageConfig, steps: Tensor
) -> Tensor:
    """Control: GAE over turns. A turn's value is the mean over its tokens or that of its last token, its reward the
    sum; every token of the turn gets the turn's advantage; l counts turns (gap)."""
    trajectory = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    if not values.numel():
        return values.to(torch.float64)
    first = torch.ones_like(steps, dtype=torch.bool)
    first[1:] = (steps[1:] != steps[:-1]) | (trajectory[1:] != trajectory[:-1])
    unit = first.cumsum(0) - 1
    count = int(unit[-1]) + 1
    sizes = torch.bincount(unit, minlength=count)
    zeros = torch.zeros(count, dtype=torch.float64, device=values.device)
    if config.kind is AdvantageKind.STEP_MEAN:
        unit_values = zeros.index_add(0, unit, values.detach().to(torch.float64)) / sizes
    else:
        unit_values = values.detach().to(torch.float64)[sizes.cumsum(0) - 1]
    unit_rewards = zeros.index_add(0, unit, rewards.to(torch.float64))
    units = torch.bincount(trajectory[first], minlength=len(lengths))
    lam = _lambda_policy(units, config)
    return gae(unit_values, unit_rewards, units, lam, config.gamma, bootstrap)[unit]


def whiten(advantages: Tensor, mode: str) -> Tensor:
    """[N] float32. `off`; `mean`: minus the mean over all action tokens; `batch`: also divided by their standard
    deviation (gap). Equal advantages become 0, never NaN."""
    if mode == "off" or not advantages.numel():
        return advantages
    exact = advantages.to(torch.float64)
    centred = exact - exact.mean()
    if mode == "batch":
        centred = centred / (centred.square().mean().sqrt() + 1e-8)
    return centred.float()
