from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.config import ObjectiveConfig, ObjectiveName
from trainer.objective import OBJECTIVES, dis, policy_loss, ppo_clip, token_terms, value_loss

pytestmark = pytest.mark.numeric

MATHS = ObjectiveConfig(eps_low=0.3, eps_high=5.0)
CODING = ObjectiveConfig()


def weights(ratios: list[float], advantages: list[float] | float, config: ObjectiveConfig) -> list[float]:
    log_ratio = torch.tensor(ratios, dtype=torch.float64).log()
    a = torch.as_tensor(advantages, dtype=torch.float64).expand(len(ratios))
    return token_terms(log_ratio - 2, torch.full_like(log_ratio, -2), a, config).weight.tolist()


class TestDis:
    def test_golden_numbers_of_the_maths_band(self) -> None:
        got = weights([0.71, 1, 5.99, 0.69, 6.01], 1.0, MATHS)
        np.testing.assert_allclose(got, [0.71, 1, 5.99, 0, 0], rtol=1e-12)

    def test_coding_band_and_epsilons_are_not_bounds(self) -> None:
        np.testing.assert_allclose(weights([0.21, 0.19, 3.9, 4.1], 1.0, CODING), [0.21, 0, 3.9, 0], rtol=1e-12)
        # with eps taken as bounds (0.8, 3.0), 0.5 and 3.5 would be rejected
        np.testing.assert_allclose(weights([0.5, 3.5], 1.0, CODING), [0.5, 3.5], rtol=1e-12)

    def test_both_sides_whatever_the_sign_of_the_advantage(self) -> None:
        assert weights([0.1, 9.0], -1.0, CODING) == weights([0.1, 9.0], 1.0, CODING) == [0, 0]

    def test_ratio_stays_as_weight_neither_clamp_nor_mask(self) -> None:
        np.testing.assert_allclose(weights([0.5, 2.0], [3.0, -3.0], CODING), [1.5, -6.0], rtol=1e-12)

    def test_no_gradient_through_the_ratio(self) -> None:
        logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
        old = torch.tensor([-1.5, -1.9], dtype=torch.float64)
        policy_loss(logp, old, torch.tensor([2.0, -1.0], dtype=torch.float64), CODING, 2).backward()
        r = [math.exp(0.5), math.exp(-0.1)]
        # through ratio and log pi it would be r A (1 + log pi) / N
        np.testing.assert_allclose(logp.grad, [-r[0] * 2 / 2, r[1] * 1 / 2], rtol=1e-12)

    def test_rejected_tokens_stay_in_the_denominator(self) -> None:
        logp = torch.tensor([-1.0, -1.0], requires_grad=True)
        old = torch.tensor([-1.0, -11.0])
        policy_loss(logp, old, torch.ones(2), CODING, 2).backward()
        assert logp.grad.tolist() == [-0.5, 0]

    @pytest.mark.parametrize("far", [200.0, -200.0])
    def test_far_ratios_give_zero_never_nan(self, far: float) -> None:
        logp = torch.tensor([-1.0, -300.0 if far < 0 else -1.0], requires_grad=True)
        old = torch.tensor([-1.0, float(logp[1].detach()) - far])
        policy_loss(logp, old, torch.tensor([1.0, -1.0]), CODING, 2).backward()
        assert logp.grad.tolist() == [-0.5, 0.0]

    def test_compared_in_fp32_even_when_given_bf16(self) -> None:
        logp = torch.tensor([-1.0], dtype=torch.bfloat16)
        terms = dis(logp, torch.tensor([-1.001]), torch.ones(1, dtype=torch.bfloat16), CODING)
        assert terms.weight.dtype == torch.float32
        assert abs(float(terms.weight) - math.exp(0.001)) < 1e-6

    def test_eps_low_of_one_keeps_every_small_ratio(self) -> None:
        got = weights([1e-30], 1.0, ObjectiveConfig(eps_low=1.0))
        np.testing.assert_allclose(got, [1e-30], rtol=1e-9)

    def test_sides_are_told_apart(self) -> None:
        terms = dis(torch.tensor([-9.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -9.0]), torch.ones(3), CODING)
        assert terms.rejected_low.tolist() == [True, False, False]
        assert terms.rejected_high.tolist() == [False, False, True]
        assert terms.kept.tolist() == [False, True, False]


class TestControls:
    def test_dis_has_no_ppo_clip_underneath(self) -> None:
        """A > 0, r = 3: PPO's clip would stop it."""
        assert weights([3.0], 1.0, CODING) == pytest.approx([3.0])

    def test_ppo_is_one_sided(self) -> None:
        config = ObjectiveConfig(name=ObjectiveName.PPO_CLIP, eps_low=0.2, eps_high=0.28)
        ratios = [1.27, 1.29, 0.5, 1.29, 0.81, 0.79]
        got = weights(ratios, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0], config)
        np.testing.assert_allclose(got, [1.27, 0, 0.5, -1.29, -0.81, 0], rtol=1e-12)

    @settings(max_examples=60, deadline=None)
    @given(
        log_ratio=st.floats(-3, 3).filter(lambda x: abs(x - math.log(1.28)) > 1e-3 and abs(x - math.log(0.8)) > 1e-3),
        advantage=st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3),
    )
    def test_ppo_weight_is_the_gradient_of_its_surrogate(self, log_ratio: float, advantage: float) -> None:
        config = ObjectiveConfig(name=ObjectiveName.PPO_CLIP, eps_low=0.2, eps_high=0.28)
        logp = torch.tensor([log_ratio - 1], dtype=torch.float64, requires_grad=True)
        a = torch.tensor([advantage], dtype=torch.float64)
        ratio = (logp + 1).exp()
        surrogate = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
        surrogate.sum().backward()
        terms = ppo_clip(logp, torch.tensor([-1.0], dtype=torch.float64), a, config)
        torch.testing.assert_close(terms.weight, -logp.grad)
        torch.testing.assert_close(terms.loss, surrogate.detach())

    def test_registry_is_whole(self) -> None:
        assert set(OBJECTIVES) == set(ObjectiveName)


class TestOnPolicy:
    @pytest.mark.parametrize("name", list(ObjectiveName))
    def test_ratio_one_gives_the_plain_policy_gradient(self, name: ObjectiveName) -> None:
        config = ObjectiveConfig(name=name, eps_low=0.2)
        logp, a = torch.tensor([-1.0, -2.0, -0.1]), torch.tensor([1.0, -2.0, 0.5])
        assert token_terms(logp, logp, a, config).weight.tolist() == a.tolist()


class TestParts:
    @settings(max_examples=30, deadline=None)
    @given(cut=st.integers(0, 9), seed=st.integers(0, 100))
    def test_parts_of_a_batch_add_up(self, cut: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        logp, old, a, v = (torch.randn(9, generator=g, dtype=torch.float64) for _ in range(4))
        whole = policy_loss(logp, old, a, CODING, 9), value_loss(v, a, 9)
        split = [
            (policy_loss(logp[s], old[s], a[s], CODING, 9), value_loss(v[s], a[s], 9))
            for s in (slice(0, cut), slice(cut, 9))
        ]
        torch.testing.assert_close(whole[0], split[0][0] + split[1][0])
        torch.testing.assert_close(whole[1], split[0][1] + split[1][1])

    def test_value_loss_by_hand_and_unclipped(self) -> None:
        v = torch.tensor([0.0, 5.0], requires_grad=True)
        loss = value_loss(v, torch.tensor([1.0, 1.0]), 4)
        loss.backward()
        assert loss.item() == 0.5 * (1 + 16) / 4
        assert v.grad.tolist() == [-0.25, 1.0]


class TestConfig:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"eps_low": 1.2}, "an epsilon"),
            ({"eps_low": 0}, "greater than 0"),
            ({"old_policy": "latest"}, "recorded at sampling time"),
            ({"name": "ppo_clip", "eps_low": 1.0}, "needs 1 - eps_low"),
            ({"epsilon": 0.2}, "Extra inputs"),
        ],
    )
    def test_refused(self, fields: dict[str, object], text: str) -> None:
        with pytest.raises(ValidationError, match=text):
            ObjectiveConfig.model_validate(fields)
