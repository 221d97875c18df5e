"""Intervals and rates. Pure functions over plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def wilson_interval(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a proportion (95 % by default); (0, 1) without trials.

    Raises ValueError unless 0 <= successes <= trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value that two systems which disagree on so many instances are equally good; 1 where they never
    disagree. (McNemar's test, binomial with 1/2, not the chi-squared approximation.)

    Raises ValueError for negative counts."""
    if only_first < 0 or only_second < 0:
        raise ValueError(f"counts {only_first} and {only_second}: neither may be negative")
    trials, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(trials, count) for count in range(least + 1))
    return min(1.0, 2 * tail / 2**trials)


@dataclass(frozen=True)
class Difference:
    """Mean of (second - first) over the pairs, with a percentile bootstrap interval."""

    mean: float
    low: float
    high: float


def paired_bootstrap(
    first: Sequence[float], second: Sequence[float], *, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Instances are drawn with replacement, both systems' scores of an instance together. Same seed, same interval.

    Raises ValueError for no pairs, lists of different length, fewer than 1 draw, or a level outside (0, 1)."""
    import numpy as np

    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} scores: pairs are needed, at least one")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"{draws} draws at level {level}: at least 1 draw, level between 0 and 1")
    gaps = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    values, counts = np.unique(gaps, return_counts=True)  # few different gaps: draw how often each comes
    drawn = np.random.default_rng(seed).multinomial(len(gaps), counts / len(gaps), size=draws)
    low, high = np.quantile(drawn @ values / len(gaps), [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(gaps.mean()), float(low), float(high))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate, from `samples` draws of which `correct` were right, that at least one of k draws is right
    (Chen et al. 2021, arXiv 2107.03374): 1 - C(n - c, k) / C(n, k).

    Raises ValueError unless 0 <= correct <= samples and 1 <= k <= samples."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {correct} correct: needs 0 <= correct <= samples and 1 <= k")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def bootstrap_mean(
    values: Sequence[float], *, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; `values` are drawn with replacement. Same seed, same interval.

    Raises ValueError as paired_bootstrap."""
    found = paired_bootstrap([0.0] * len(values), values, draws=draws, level=level, seed=seed)
    return found.low, found.high
