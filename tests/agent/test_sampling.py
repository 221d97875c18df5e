"""Drawing tokens: the recorded distribution is the one drawn from, at its edges too."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.sampling import UniformStream, check_sampling, sample
from data.trajectory import Sampling

pytestmark = pytest.mark.numeric

LAST = math.nextafter(1.0, 0.0)
ONE = Sampling()


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def draw(logits: torch.Tensor, u: float, sampling: Sampling = ONE) -> tuple[int, float]:
    tokens, logprobs = sample(logits, [u] * len(logits), sampling)
    return tokens[0], logprobs[0]


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.2499, 1), (0.2501, 2), (0.7499, 2), (0.7501, 4), (LAST, 4)]
)  # fmt: skip
def test_inverse_of_the_cumulative_distribution_by_hand(u, token) -> None:
    """0, 1/4, 1/2, 0, 1/4, 0: tokens of probability zero are drawn at no u, not even at both ends."""
    got, logprob = draw(logits_of(0, 0.25, 0.5, 0, 0.25, 0), u)
    assert got == token
    assert logprob == pytest.approx(math.log(0.5 if token == 2 else 0.25), abs=1e-6)


def test_certain_token_has_logprob_zero_not_above() -> None:
    assert draw(torch.tensor([[-1e4, 50.0, -1e4]]), 0.5) == (1, 0.0)


@given(st.floats(0, LAST), st.lists(st.floats(-30, 30), min_size=2, max_size=40), st.integers(0, 5))
def test_a_row_does_not_depend_on_its_neighbours(u, values, others) -> None:
    row = torch.tensor([values])
    alone, logprob = draw(row, u)
    batch = torch.cat([torch.full((others, len(values)), 3.0), row])
    tokens, logprobs = sample(batch, [0.3] * others + [u], ONE)
    assert (tokens[-1], logprobs[-1]) == (alone, logprob)
    assert logprob <= 0
    assert logprob == pytest.approx(float(torch.log_softmax(row[0], -1)[alone]), abs=1e-5)


def test_frequencies_match_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    stream = UniformStream(1)
    n = 20_000
    tokens, _ = sample(probabilities.log().expand(n, 4), [stream.draw() for _ in range(n)], ONE)
    found = torch.bincount(torch.tensor(tokens), minlength=4) / n
    assert (found - probabilities).abs().max() < 0.012  # over three standard deviations


def test_large_vocabulary_reaches_its_last_token() -> None:
    """A fp32 sum over 150,000 tokens loses its tail."""
    size = 150_000
    tokens, _ = sample(torch.zeros(2, size), [LAST, 0.5], ONE)
    assert tokens == [size - 1, size // 2]


def test_temperature_and_nucleus_report_the_distribution_drawn_from() -> None:
    token, logprob = draw(logits_of(0.8, 0.2), 0.99, Sampling(temperature=0.5))
    assert (token, logprob) == (1, pytest.approx(math.log(0.04 / 0.68), abs=1e-5))
    nucleus = Sampling(top_p=0.7)
    for u in (0.0, 0.3, LAST):
        token, logprob = draw(logits_of(0.1, 0.5, 0.25, 0.15), u, nucleus)
        assert token in (1, 2)
        assert logprob == pytest.approx(math.log({1: 0.5, 2: 0.25}[token] / 0.75), abs=1e-5)


def test_greedy() -> None:
    token, logprob = draw(logits_of(0.3, 0.5, 0.2), 0.0, Sampling(temperature=0.0))
    assert (token, logprob) == (1, pytest.approx(math.log(0.5), abs=1e-6))


def test_non_finite_rows_show_as_nan_and_touch_no_other() -> None:
    logits = torch.zeros(3, 5)
    logits[0, 1], logits[1, 2] = float("nan"), float("inf")
    _, logprobs = sample(logits, [0.5] * 3, ONE)
    assert math.isnan(logprobs[0])
    assert math.isnan(logprobs[1])
    assert logprobs[2] == pytest.approx(-math.log(5))


def test_uniform_streams_depend_on_the_seed_alone() -> None:
    one, same, other = UniformStream(5), UniformStream(5), UniformStream(6)
    values = [one.draw() for _ in range(600)]
    assert values == [same.draw() for _ in range(600)]
    assert values[:3] != [other.draw() for _ in range(3)]
    assert all(0 <= value < 1 for value in values)
    UniformStream((1 << 63) - 1).draw()


def test_nonsense_is_refused() -> None:
    for bad in (Sampling(temperature=-1), Sampling(top_p=0.0), Sampling(top_p=1.1), Sampling(temperature=math.nan)):
        with pytest.raises(ValueError, match=r"temperature|top_p"):
            check_sampling(bad)
