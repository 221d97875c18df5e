"""Length bias: worked by hand, and in a simulated run with lognormal lengths."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from trainer import health
from trainer.config import HealthConfig
from trainer.health import AlarmKind, HealthState
from trainer.lengths import Lengths, lengths

from .test_health import GOOD


def test_by_hand() -> None:
    found = lengths([10, 20], trained={0: 10, 1: 20, 4: 6}, dropped={2: 60}, waiting={6: 4})
    assert found == Lengths(
        batch=15.0,
        dispatched=30.0,  # draws 0, 1, 2; draw 3 is not in
        dispatched_draws=3,
        finished=20.0,
        trained=12.0,
        dropped=60.0,
        dropped_draws=0.25,
        dropped_tokens=60 / 96,
        overtaken=2 / 7,  # draws 3 and 5
    )
    assert found.bias == 0.5


def test_nothing_is_known_before_anything_came_in() -> None:
    empty = lengths([], {}, {}, {})
    assert (empty.batch, empty.dispatched, empty.finished, empty.bias, empty.overtaken) == (None, None, None, None, 0.0)


def _simulated(sigma: float, at_once: int, batch: int, steps: int) -> list[Lengths]:
    """Episodes of lognormal length played side by side; what finishes first trains first."""
    rng = np.random.default_rng(0)
    sizes = np.maximum(1, np.exp(rng.normal(5, sigma, at_once + batch * steps))).astype(int)
    running = [(int(sizes[draw]), draw) for draw in range(at_once)]
    heapq.heapify(running)
    trained: dict[int, int] = {}
    made: list[Lengths] = []
    following = at_once
    for _ in range(steps):
        now = []
        while len(now) < batch:
            time, draw = heapq.heappop(running)
            now.append(draw)
            heapq.heappush(running, (time + int(sizes[following]), following))
            following += 1
        trained |= {draw: int(sizes[draw]) for draw in now}
        made.append(lengths([int(sizes[draw]) for draw in now], trained, {}, {}))
    return made


def _alarms(of: Lengths) -> set[AlarmKind]:
    alarms, _ = health.check(replace(GOOD, lengths=of), HealthState(), HealthConfig())
    return {alarm.kind for alarm in alarms}


def test_a_first_batch_of_short_episodes_is_alarmed() -> None:
    first = _simulated(sigma=1.0, at_once=512, batch=128, steps=1)[0]
    true_mean = float(np.exp(5 + 0.5))
    assert first.batch is not None
    assert first.batch < 0.4 * true_mean, "the simulation has the bias that is to be seen"
    assert AlarmKind.OVERTAKEN in _alarms(first)


def test_equal_lengths_and_few_at_once_raise_nothing() -> None:
    for of in (*_simulated(0.0, 16, 32, 3), *_simulated(0.5, 8, 32, 3)):
        assert not _alarms(of) & {AlarmKind.OVERTAKEN, AlarmKind.TOKENS_DROPPED}


def test_two_per_cent_of_the_draws_can_be_a_seventh_of_the_tokens() -> None:
    of = lengths([10], trained=dict.fromkeys(range(98), 100), dropped={98: 800, 99: 800}, waiting={})
    assert (of.dropped_draws, round(of.dropped_tokens, 2)) == (0.02, 0.14)
    assert AlarmKind.TOKENS_DROPPED in _alarms(of)


def test_bias_needs_steps_running_and_a_known_mean() -> None:
    short = lengths([10], trained=dict.fromkeys(range(200), 100), dropped={}, waiting={})
    state, kinds = HealthState(), []
    for _ in range(3):
        alarms, state = health.check(replace(GOOD, lengths=short), state, HealthConfig())
        kinds.append({alarm.kind for alarm in alarms})
    assert [AlarmKind.LENGTH_BIAS in found for found in kinds] == [False, False, True]
    unknown = lengths([10], trained=dict.fromkeys(range(100, 300), 100), dropped={}, waiting={})
    _, state = health.check(replace(GOOD, lengths=unknown), state, HealthConfig())
    assert state.running[AlarmKind.LENGTH_BIAS.value] == 3
