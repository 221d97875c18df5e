from __future__ import annotations

import numpy as np
import pytest
import torch

from data.trajectory import Status
from trainer import packing
from trainer.packing import UntrainableError, action_axis, pack, pack_ends, untrainable_reason

from .tiny import build, mixed_batch

pytestmark = pytest.mark.numeric


def test_action_axis_is_the_sampled_tokens_in_batch_order() -> None:
    batch = mixed_batch()
    axis = action_axis(batch)
    assert axis.lengths.tolist() == [4, 5, 7, 3, 0, 7]
    assert len(axis) == 26
    np.testing.assert_array_equal(axis.tokens, np.concatenate([t.tokens[t.action_mask] for t in batch]))
    assert axis.trajectory.tolist() == [0] * 4 + [1] * 5 + [2] * 7 + [3] * 3 + [5] * 7
    assert axis.steps[4:16].tolist() == [0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 2, 2]
    assert axis.versions[4:9].tolist() == [0, 0, 1, 1, 1]
    assert axis.cut.tolist() == [False, False, False, True, False, False]
    assert axis.rewards.nonzero().flatten().tolist() == [3, 15]


def test_read_at_the_position_that_predicts() -> None:
    trajectory = build([("p", 2), ("a", 2), ("o", 3), ("a", 2)])
    axis = action_axis([trajectory])
    (micro,) = pack([trajectory], axis, 1000)
    # a0 a0 lie at 2, 3; a1 a1 at 7, 8: the first token of a1 is read on the last observation token
    assert micro.gather.tolist() == [1, 2, 6, 7]
    assert micro.tokens.tolist() == [trajectory.tokens[:8].tolist()]


@pytest.mark.parametrize("budget", [1, 20, 40, 10_000])
def test_micro_batches_read_every_action_token_once(budget: int) -> None:
    batch = mixed_batch()
    axis = action_axis(batch)
    micro = pack(batch, axis, budget)
    slots = torch.cat([part.slots for part in micro])
    assert sorted(slots.tolist()) == list(range(len(axis)))
    for part in micro:
        assert part.tokens.numel() <= budget or len(part.tokens) == 1
        # the place that is read holds the token before the action token, in the right row
        at = axis.trajectory[part.slots].tolist()
        before = [batch[t].tokens[p - 1] for t, p in zip(at, axis.positions[part.slots].tolist(), strict=True)]
        assert part.tokens.flatten()[part.gather].tolist() == before


def test_longest_first_and_budget_counts_padding() -> None:
    batch = [build([("p", n), ("a", 1)], seed=n) for n in (3, 9, 4, 10)]
    micro = pack(batch, action_axis(batch), 20)
    assert [tuple(part.tokens.shape) for part in micro] == [(2, 10), (2, 4)]
    assert [part.real_tokens for part in micro] == [19, 7]


def test_a_pad_id_that_equals_a_sampled_id_loses_no_token() -> None:
    """pad == eos: masks come from versions, never from ids."""
    trajectory = build([("p", 2), ("a", 3)])
    zeros = type(trajectory)(
        np.zeros_like(trajectory.tokens),
        trajectory.logprobs,
        trajectory.versions,
        trajectory.spans,
        trajectory.outcome,
        trajectory.identity,
    )
    assert len(action_axis([zeros])) == 3


def test_cuts_are_read_at_the_last_token_of_the_trajectory() -> None:
    batch = mixed_batch()
    (part,) = pack_ends(batch, action_axis(batch), 1000)
    assert part.slots.tolist() == [3]
    assert part.gather.tolist() == [len(batch[3]) - 1]
    assert part.tokens.tolist() == [batch[3].tokens.tolist()]


class TestRefused:
    def test_infrastructure_errors_are_never_trained_on(self) -> None:
        bad = build([("p", 2), ("a", 1)], reward=None, status=Status.INFRA_ERROR, seed=8)
        with pytest.raises(UntrainableError, match=r"batch\[1\] \(episode e8.*infra_error"):
            action_axis([build([("p", 2), ("a", 1)]), bad])

    def test_out_of_budget_is_an_outcome_and_trains(self) -> None:
        assert untrainable_reason(build([("p", 2), ("a", 1)], reward=0.0)) is None

    def test_another_temperature(self) -> None:
        warm = build([("p", 2), ("a", 1)], temperature=0.7)
        with pytest.raises(UntrainableError, match=r"temperature 0\.7"):
            action_axis([warm])

    def test_a_cut_needs_a_critic(self) -> None:
        cut = build([("p", 2), ("a", 1)], reward=None)
        assert untrainable_reason(cut) is None
        with pytest.raises(UntrainableError, match="without a critic"):
            action_axis([cut], bootstraps=False)

    def test_mask_shifted_by_one_meets_missing_log_probabilities_and_stops(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packing, "action_positions", lambda t: np.flatnonzero(t.action_mask) - 1)
        with pytest.raises(UntrainableError, match="token 1 is to be trained but has no recorded log-probability"):
            action_axis([build([("p", 2), ("a", 2)])])
