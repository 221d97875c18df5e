"""Each alarm by its limit, and the injected faults end to end through a tiny policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from data.trajectory import Trajectory
from trainer import packing
from trainer.config import HealthConfig
from trainer.critic import Critic
from trainer.freeze import freeze_for_rl
from trainer.health import Alarm, AlarmKind, HealthState, check
from trainer.optim import TrainingSetupError
from trainer.statistics import StepMetrics
from trainer.update import Learner, sao_step

from .tiny import build, step_config, with_logprobs
from .tiny_models import on_policy, plain_logprobs, tiny_policy

pytestmark = pytest.mark.numeric

LIMITS = HealthConfig()
GOOD = StepMetrics(
    step=100, version=100, critic_only=False, trajectories=128, action_tokens=1000, context_tokens=5000,
    padding_share=0.0, trained_tokens=998, reward=0.5, reward_recorded=64.0, reward_on_actions=64.0, cut_trajectories=0,
    rejected_share=0.002, rejected_low_share=0.001, rejected_high_share=0.001, approx_kl=1e-3, ess=0.998,
    log_ratio_abs=1e-2, ratio_min=0.5, ratio_max=2.0, newest_version=99, staleness_mean=1.0, staleness_max=2,
    mixed_version_share=0.1, advantage_mean=0.01, advantage_sd=0.4, whitened=False, policy_loss=0.0,
    policy_grad_norm=0.2, policy_rate=1e-6, value_losses=(0.1, 0.09), critic_grad_norms=(5.0, 4.0), critic_rate=5e-6,
    value_mean=0.5, explained_variance=0.4, explained_variance_after=0.45,
)  # fmt: skip


def kinds(*steps: StepMetrics, limits: HealthConfig = LIMITS) -> list[list[AlarmKind]]:
    state, out = HealthState(), []
    for metrics in steps:
        alarms, state = check(metrics, state, limits)
        out.append([alarm.kind for alarm in alarms])
    return out


def changed(**fields: object) -> StepMetrics:
    return dataclasses.replace(GOOD, **fields)


class TestLimits:
    def test_a_good_step_is_quiet(self) -> None:
        assert kinds(GOOD, GOOD, GOOD) == [[], [], []]

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({"rejected_share": 0.011}, AlarmKind.REJECTED_TOKENS),
            ({"approx_kl": 0.011}, AlarmKind.APPROX_KL),
            ({"approx_kl": float("nan")}, AlarmKind.APPROX_KL),
            ({"ess": 0.98}, AlarmKind.EFFECTIVE_SAMPLE_SIZE),
            ({"trained_tokens": 0}, AlarmKind.NOTHING_TRAINED),
            ({"log_ratio_abs": 0.0}, AlarmKind.RECOMPUTED_LOGPROBS),
            ({"reward_on_actions": 63.0}, AlarmKind.REWARD_LOST),
        ],
    )
    def test_at_once(self, fields: dict[str, object], kind: AlarmKind) -> None:
        assert kinds(changed(**fields)) == [[kind]]

    def test_critic_only_steps_train_nothing_by_design(self) -> None:
        assert kinds(changed(trained_tokens=0, critic_only=True, log_ratio_abs=0.0)) == [[]]

    def test_ratio_one_is_fine_on_policy(self) -> None:
        assert kinds(changed(log_ratio_abs=0.0, version=99)) == [[]]

    def test_ratio_one_is_fine_after_updates_that_changed_nothing(self) -> None:
        """A policy without reward stays as it is: only an update that trained something must show in the ratios."""
        still = changed(trained_tokens=0, log_ratio_abs=0.0)
        quiet = [AlarmKind.NOTHING_TRAINED]
        behind = AlarmKind.RECOMPUTED_LOGPROBS
        lag = GOOD.version - (GOOD.newest_version or 0)
        assert lag == 1
        assert kinds(GOOD, still, still, still) == [[], [behind, *quiet], quiet, quiet]
        assert kinds(still, changed(log_ratio_abs=0.0), changed(log_ratio_abs=0.0))[1:] == [[], [behind]]

    def test_mean_advantage_three_steps_running(self) -> None:
        far = changed(advantage_mean=-0.16)
        assert kinds(far, far, far, far) == [[], [], [AlarmKind.ADVANTAGE_MEAN], [AlarmKind.ADVANTAGE_MEAN]]
        assert kinds(far, far, GOOD, far, far) == [[]] * 5
        assert kinds(*[changed(advantage_mean=-0.16, whitened=True)] * 3) == [[]] * 3
        # with 16 trajectories of sd 0.4 the limit is 4 * 0.4 / 4
        assert kinds(*[changed(advantage_mean=0.39, trajectories=16)] * 3)[2] == []
        assert kinds(*[changed(advantage_mean=0.41, trajectories=16)] * 3)[2] == [AlarmKind.ADVANTAGE_MEAN]

    def test_critic_gradient_three_times(self) -> None:
        big = changed(critic_grad_norms=(3.0, 31.0))
        assert kinds(big, big, big)[2] == [AlarmKind.CRITIC_GRADIENT]
        assert kinds(big, big, GOOD, big)[3] == []

    def test_explained_variance_undefined_neither_raises_nor_resets(self) -> None:
        low, missing = changed(explained_variance=-0.1), changed(explained_variance=None)
        assert kinds(low, low, missing, low, low, low)[-1] == [AlarmKind.EXPLAINED_VARIANCE]
        assert kinds(*[missing] * 6)[-1] == []
        assert kinds(*[changed(explained_variance=-0.1, step=3)] * 6)[-1] == []

    def test_every_limit_is_a_setting(self) -> None:
        loose = HealthConfig(rejected_share=0.5, approx_kl=1, ess=0, recomputed_log_ratio=0, advantage_mean=9)
        bad = changed(rejected_share=0.4, approx_kl=0.9, ess=0.1, advantage_mean=5.0)
        assert kinds(bad, bad, bad, limits=loose) == [[]] * 3

    def test_state_survives_a_checkpoint_and_alarms_are_jsonable(self) -> None:
        import json

        far = changed(advantage_mean=0.5)
        _, state = check(far, HealthState(), LIMITS)
        _, state = check(far, HealthState.from_dict(json.loads(json.dumps(state.to_dict()))), LIMITS)
        alarms, _ = check(far, state, LIMITS)
        saved = json.loads(json.dumps(alarms[0].to_dict()))
        assert saved["kind"] == "advantage_mean"
        assert (saved["value"], saved["limit"], saved["step"]) == (0.5, 0.15, 100)


# --- injected faults --------------------------------------------------------------------------------------------------


def make() -> Learner:
    config = step_config()
    policy = tiny_policy()
    critic = Critic.from_policy(policy)
    freeze_for_rl(critic, config.critic)
    return Learner.build(policy, critic, config)


def episodes(step: int) -> list[Trajectory]:
    layout = [("p", 4), ("a", 3), ("o", 4), ("a", 4), ("o", 2)]
    return [build(layout, reward=float(i % 2), seed=100 * step + i, versions=(step,)) for i in range(8)]


def alarms_of(learner: Learner, batches: Sequence[Sequence[Trajectory]], versions: Sequence[int]) -> set[AlarmKind]:
    state, found = HealthState(), list[Alarm]()
    for step, (batch, version) in enumerate(zip(batches, versions, strict=True)):
        metrics = sao_step(learner, batch, step=step, version=version).metrics
        alarms, state = check(metrics, state, LIMITS)
        found += alarms
    return {alarm.kind for alarm in found}


def test_sound_on_policy_training_raises_no_alarm() -> None:
    learner, state = make(), HealthState()
    for step in range(5):
        metrics = sao_step(learner, on_policy(learner.policy, episodes(step)), step=step, version=step).metrics
        alarms, state = check(metrics, state, LIMITS)
        assert {a.kind for a in alarms} <= {AlarmKind.ADVANTAGE_MEAN}, alarms  # a fresh critic under reward 0/1


def test_fault_stale_head_in_the_engine() -> None:
    learner = make()
    engine = tiny_policy()
    with torch.no_grad():
        engine.lm_head.weight += 0.3 * torch.randn_like(engine.lm_head.weight)
    found = alarms_of(learner, [on_policy(engine, episodes(0))], [0])
    assert {AlarmKind.APPROX_KL, AlarmKind.EFFECTIVE_SAMPLE_SIZE} <= found


def test_fault_dropout_on() -> None:
    learner = make()
    learner.policy.train()
    for layer in learner.policy.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(TrainingSetupError, match="Dropout rejects"):
        alarms_of(learner, [on_policy(tiny_policy(), episodes(0))], [0])


def test_fault_read_shifted_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place that is read, one too late: log pi of another context."""
    learner = make()
    original = packing._rows
    monkeypatch.setattr(
        packing,
        "_rows",
        lambda t, ends, reads, *rest: original(t, [e + 1 for e in ends], [r + 1 for r in reads], *rest),
    )
    found = alarms_of(learner, [on_policy(learner.policy, episodes(0))], [0])
    assert {AlarmKind.APPROX_KL, AlarmKind.REJECTED_TOKENS} <= found


def test_fault_reward_on_an_observation_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_last_token(trajectory: Trajectory) -> np.ndarray:
        rewards = np.zeros(len(trajectory))
        rewards[-1] = trajectory.outcome.reward or 0.0
        return rewards

    monkeypatch.setattr(packing, "token_rewards", on_last_token)
    learner = make()
    assert AlarmKind.REWARD_LOST in alarms_of(learner, [on_policy(learner.policy, episodes(0))], [0])


def test_fault_log_probabilities_recomputed_by_the_trainer() -> None:
    """Every batch's records replaced by the trainer's own: versions lag, ratios do not."""
    learner, state, found = make(), HealthState(), set()
    nn.init.normal_(learner.critic.head.weight)
    for step in range(3):
        batch = episodes(0)
        with torch.no_grad():
            recomputed = [with_logprobs(t, plain_logprobs(learner.policy, t).numpy()) for t in batch]
        metrics = sao_step(learner, recomputed, step=step, version=step).metrics
        alarms, state = check(metrics, state, LIMITS)
        found |= {(alarm.kind, alarm.step) for alarm in alarms if alarm.kind is AlarmKind.RECOMPUTED_LOGPROBS}
    assert found == {(AlarmKind.RECOMPUTED_LOGPROBS, 1), (AlarmKind.RECOMPUTED_LOGPROBS, 2)}


def test_honest_lag_is_not_taken_for_recomputation() -> None:
    learner = make()
    batch = on_policy(learner.policy, episodes(0))
    assert AlarmKind.RECOMPUTED_LOGPROBS not in alarms_of(learner, [batch] * 3, [0, 1, 2])
