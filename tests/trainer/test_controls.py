from __future__ import annotations

import json
import math

import pytest
import torch

from trainer.config import AdvantageConfig, AdvantageKind, ObjectiveName, StepConfig
from trainer.controls import (
    CONTROLS,
    REFUSED,
    ControlError,
    RewardHistory,
    check_plan,
    control,
    critic_free_advantages,
    group_advantages,
    leave_one_out_advantages,
    running_mean_advantages,
)
from trainer.gae import policy_advantages

pytestmark = pytest.mark.numeric

PROMPT, GLOBAL = AdvantageKind.RUNNING_PROMPT, AdvantageKind.RUNNING_GLOBAL


class TestPresets:
    @pytest.mark.parametrize("name", list(CONTROLS))
    def test_each_is_a_valid_variant_of_the_runs_own(self, name: str) -> None:
        base = StepConfig.model_validate({"packing": {"token_budget": 123}})
        assert control(name, base).packing.token_budget == 123
        assert (control(name, base) == base) is (name == "sao")

    def test_what_differs(self) -> None:
        base = StepConfig()
        clip = control("clip_higher", base)
        assert (clip.objective.name, clip.objective.eps_low, clip.objective.eps_high) == (
            ObjectiveName.PPO_CLIP,
            0.2,
            0.28,
        )
        assert (clip.advantage, clip.critic) == (base.advantage, base.critic), "its clip and nothing else"
        assert control("running_mean_prompt", base).advantage.window == 8
        assert control("running_mean_global", base).advantage.window == 128
        assert control("one_critic_update", base).critic.updates == 1
        assert control("full_critic", base).critic.freeze == "none"

    def test_unknown(self) -> None:
        with pytest.raises(ControlError, match="choose one of sao"):
            control("gspo", StepConfig())

    @pytest.mark.parametrize("name", list(REFUSED))
    def test_a_control_that_cannot_be_what_it_is_called_is_refused_with_the_reason(self, name: str) -> None:
        with pytest.raises(ControlError, match=r"cannot be run: .*There are: sao, "):
            control(name, StepConfig())

    def test_groups_are_refused_however_they_are_asked_for(self) -> None:
        groups = StepConfig.model_validate({"advantage": {"kind": "group"}, "critic_only_steps": 0})
        with pytest.raises(ControlError, match="no group would be whole"):
            control("sao", groups)

    def test_a_mean_per_prompt_needs_prompts_that_come_again(self) -> None:
        with pytest.raises(ControlError, match="4096 prompts and 3840 draws: 0 draws"):
            check_plan(PROMPT, 3840, 4096)
        check_plan(PROMPT, 3840, 1920)
        check_plan(GLOBAL, 3840, 4096)


class TestGroup:
    def test_by_hand(self) -> None:
        got = group_advantages([1, 0, 0, 1, 1], ["a", "b", "a", "b", "a"])
        sd = math.sqrt(((1 / 3) ** 2 * 2 + (2 / 3) ** 2) / 2)
        want = [1 / 3 / sd, -0.5 / math.sqrt(0.5), -2 / 3 / sd, 0.5 / math.sqrt(0.5), 1 / 3 / sd]
        assert got == pytest.approx(want, abs=1e-5)

    def test_equal_rewards_are_zero(self) -> None:
        assert group_advantages([1, 1], ["a", "a"]) == [0, 0]

    def test_a_group_of_one_is_an_error(self) -> None:
        with pytest.raises(ControlError, match="'b' and 0 more have one trajectory"):
            group_advantages([1, 1, 0], ["a", "a", "b"])


class TestRunningMean:
    def test_per_prompt_window(self) -> None:
        history = RewardHistory({"a": (0.0, 1.0, 1.0)}, (0.0, 1.0, 1.0), 3, 2.0)
        got, after = running_mean_advantages([1.0], ["a"], history, PROMPT, 3)
        assert got == pytest.approx([1 - 2 / 3])
        assert after.by_prompt["a"] == (1.0, 1.0, 1.0)
        assert history.by_prompt["a"] == (0.0, 1.0, 1.0)

    def test_the_own_reward_never_enters_its_baseline(self) -> None:
        first, after = running_mean_advantages([1.0, 0.0, 0.0], ["a", "b", "c"], RewardHistory(), PROMPT, 8)
        assert first == pytest.approx([1.0, -0.5, -0.5])  # no past: the mean of the others
        second, _ = running_mean_advantages([1.0, 1.0], ["a", "new"], after, PROMPT, 8)
        assert second == pytest.approx([0.0, 1 - 1 / 3])  # own past; a new prompt: everyone's past
        assert running_mean_advantages([1.0], ["a"], RewardHistory(), PROMPT, 8)[0] == [1.0]

    def test_a_new_prompt_has_all_of_the_past_not_the_last_few(self) -> None:
        history = RewardHistory()
        for prompt in range(10):
            history = history.extended([float(prompt == 0)], [str(prompt)], 2)
        assert history.overall == (0.0, 0.0)
        assert running_mean_advantages([0.0], ["new"], history, PROMPT, 2)[0] == pytest.approx([-0.1])

    def test_global_window(self) -> None:
        history = RewardHistory({"a": (1.0,)}, (0.0, 0.0, 1.0, 1.0))
        got, after = running_mean_advantages([1.0, 0.0], ["a", "a"], history, GLOBAL, 4)
        assert got == pytest.approx([0.5, -0.5])
        assert after.overall == (1.0, 1.0, 1.0, 0.0)

    def test_history_is_a_plain_value(self) -> None:
        history = RewardHistory().extended([1.0, 0.0], ["a", "b"], 8)
        assert RewardHistory.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def test_every_action_token_gets_its_trajectorys_advantage() -> None:
    running = AdvantageConfig(kind=GLOBAL)
    got, _ = critic_free_advantages([1.0, 0.0], ["a", "a"], torch.tensor([2, 1]), RewardHistory(), running)
    assert got.tolist() == [1.0, 1.0, -1.0]
    assert got.dtype == torch.float32


class TestBatchLeaveOneOut:
    def test_by_hand(self) -> None:
        assert leave_one_out_advantages([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])
        assert leave_one_out_advantages([1.0]) == [0.0]

    def test_decays_to_the_last_token(self) -> None:
        """lambda = 1 - 1 / (1.5 l): 1/3 for one token, 2/3 for two."""
        config = AdvantageConfig(kind=AdvantageKind.BATCH_LEAVE_ONE_OUT)
        got, _ = critic_free_advantages([1.0, 0.0], ["a", "b"], torch.tensor([2, 1]), RewardHistory(), config)
        assert got.tolist() == pytest.approx([2 / 3, 1.0, -1.0])

    def test_is_sao_with_a_critic_that_says_the_mean_of_the_others(self) -> None:
        rewards, lengths = [1.0, 0.0, 1.0], torch.tensor([5, 400, 2])
        for lam in (None, 1.0, 0.9):
            config = AdvantageConfig(kind=AdvantageKind.BATCH_LEAVE_ONE_OUT, lambda_policy=lam)
            got, _ = critic_free_advantages(rewards, ["a", "b", "c"], lengths, RewardHistory(), config)
            means = torch.tensor([0.5, 1.0, 0.5], dtype=torch.float64)
            ends = torch.zeros(407)
            ends[lengths.cumsum(0) - 1] = torch.tensor(rewards)
            want = policy_advantages(
                torch.repeat_interleave(means, lengths), ends, lengths, torch.zeros(3),
                AdvantageConfig(lambda_policy=lam), torch.zeros(407),
            )  # fmt: skip
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
