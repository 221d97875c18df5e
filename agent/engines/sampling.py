"""Drawing tokens from a batch of logits, one uniform number per token.

Promises: the log-probability returned with a token is that of the distribution the token was drawn from, computed in
fp32 and clamped to <= 0; a token of probability zero is never drawn; a row's draw depends on its own logits and its
own uniform only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data.trajectory import Sampling

_BLOCK = 256


class UniformStream:
    """Uniform numbers in [0, 1) fixed by `seed` alone: the n-th is the same however many are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed % (1 << 64)))
        self._block: list[float] = []
        self._next = 0

    def draw(self) -> float:
        if self._next == len(self._block):
            self._block = self._generator.random(_BLOCK).tolist()
            self._next = 0
        value = self._block[self._next]
        self._next += 1
        return value


def check_sampling(sampling: Sampling) -> None:
    if not sampling.temperature >= 0:
        raise ValueError(f"temperature {sampling.temperature} is below 0: use 0 for greedy, 1 for training")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p {sampling.top_p} is outside (0, 1]: use 1 for the whole distribution")


def sample(logits: Tensor, uniforms: Sequence[float], sampling: Sampling) -> tuple[list[int], list[float]]:
    """logits [B, V], uniforms [B] → token ids and log-probabilities, B of each.

    Temperature 0 takes the most likely token and reports its log-probability at temperature 1 (what the model gave
    it); such tokens are for evaluation, not for training. A row with non-finite logits yields log-probability NaN.
    """
    scores = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        scores = scores / sampling.temperature
    logprobs = torch.log_softmax(scores, dim=-1)
    if sampling.temperature == 0:
        chosen = logprobs.argmax(dim=-1, keepdim=True)
    else:
        if sampling.top_p < 1:
            logprobs = _nucleus(logprobs, sampling.top_p)
        # Inverse of the cumulative distribution, in float64: in fp32 the sum over a large vocabulary drifts by 1e-4.
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        total = cumulative[:, -1:]
        target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * total
        # Strictly below the total, then the first entry above the target always has a positive probability.
        target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
        chosen = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    taken = logprobs.gather(1, chosen).squeeze(1).clamp(max=0.0)
    return chosen.squeeze(1).tolist(), taken.tolist()


def _nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Smallest set of most likely tokens with probability >= top_p, renormalised; the rest gets -inf."""
    ordered, order = logprobs.sort(dim=-1, descending=True)
    before = ordered.double().exp().cumsum(dim=-1) - ordered.double().exp()
    kept = torch.where(before < top_p, ordered, -torch.inf)
    return torch.log_softmax(torch.full_like(logprobs, -torch.inf).scatter(1, order, kept), dim=-1)
