"""What the tests of the embedded engine share: its answers held against the plain model, one request at a time."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agent.engines.embedded import EmbeddedPolicy
from agent.policy import Generation

STOP = 7
TOLERANCE = 1e-4
"""Nats. Two right fp32 computations of a log-probability differ by the order of their sums, which batch, kernel and
processor choose: eps (1.2e-7) times numbers up to 10, times the square root of some hundred chained sums, and then ten
times that. A wrong row, position or weight is off by 1e-2 and more."""


def reference(model, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1]: log-probability of each token given those before it, by the model's own full forward."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def check_exact(models: dict[int, object], prompt: list[int], made: Generation) -> None:
    """Each sampled token against the model of its own version."""
    ids = [*prompt, *made.tokens]
    by_version = {version: reference(models[version], ids) for version in set(made.versions)}
    assert made.logprobs, "nothing was sampled"
    for at, (logprob, version) in enumerate(zip(made.logprobs, made.versions, strict=True)):
        expected = float(by_version[version][len(prompt) + at - 1])
        assert logprob <= 0
        assert logprob == pytest.approx(expected, abs=TOLERANCE), f"token {at} of {len(made.tokens)}, version {version}"


def prompt_of(seed: int, length: int, vocab: int = 97) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(vocab) for i in range(length)]


def make(model, **options) -> EmbeddedPolicy:
    return EmbeddedPolicy(model, threads=1, **options)


async def sampled(policy, tokens: int) -> None:
    while policy.stats.sampled_tokens < tokens:  # noqa: ASYNC110 - the engine lives in another thread
        await asyncio.sleep(0.001)


async def ask(policy, prompt, seed=0, n=20, episode="", stop=(STOP,)):
    return await policy.generate(prompt, max_new_tokens=n, stop_ids=stop, seed=seed, episode_id=episode)
