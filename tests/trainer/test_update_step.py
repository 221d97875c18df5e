"""A whole step of the learner: what it takes, refuses and reports, and the controls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.trainer.update_support import (
    assert_same,
    build_far,
    critic64,
    fixed_advantages,
    learner64,
    make_learner,
    policy_gradient,
    run,
    taken,
)
from trainer import packing, update
from trainer.controls import control
from trainer.critic import Critic
from trainer.optim import NonFiniteGradientError, TrainingSetupError, clipped_step, warmed_rate
from trainer.packing import action_axis, pack
from trainer.passes import accumulate_policy_gradient, accumulate_value_gradient, read_values
from trainer.update import Learner, sao_step

from .tiny import build, mixed_batch, step_config
from .tiny_models import on_policy, plain_logprobs, tiny_policy

pytestmark = pytest.mark.numeric


class TestMaskedMicroBatch:
    def test_same_backward_path_and_zero_gradients_with_no_token_to_train(self, policy64: nn.Module) -> None:
        batch, config, critic = [build([("p", 6)], seed=5)], step_config(), critic64()
        axis = action_axis(batch)
        micro = pack(batch, axis, 100)
        assert len(micro) == 1
        assert len(micro[0].slots) == 0
        none = torch.zeros(0)
        accumulate_policy_gradient(policy64, axis, micro, none, axis.behaviour, 9, config)
        accumulate_value_gradient(critic, micro, none, 9)
        for model in (policy64, critic):
            found = taken(model)
            assert found.keys() == dict(model.named_parameters()).keys()
            assert not any(g.any() for g in found.values())

    def test_all_rejected_is_zero_not_nan(self, policy64: nn.Module) -> None:
        batch = on_policy(policy64, mixed_batch())
        far = [build_far(t) for t in batch]
        loss, got = policy_gradient(policy64, far, torch.cat(fixed_advantages(far)), step_config())
        assert loss == 0
        assert not any(g.any() for g in got.values())


class TestStep:
    def test_on_policy_first_step_is_the_plain_policy_gradient(self, policy64: nn.Module) -> None:
        """Recorded by the same weights: nothing rejected, ratio 1 to fp32 rounding, gradient -sum A grad log pi / N."""
        batch = on_policy(policy64, mixed_batch())
        advantages = fixed_advantages(batch)
        _, ours = policy_gradient(policy64, batch, torch.cat(advantages), step_config())
        total = sum(-(a * plain_logprobs(policy64, t)).sum() for t, a in zip(batch, advantages, strict=True))
        (total / 26).backward()
        assert_same(ours, taken(policy64), atol=1e-6)
        metrics = run(learner64(policy64), batch)
        assert metrics.rejected_share == 0
        assert metrics.ratio_min == pytest.approx(1, abs=1e-6)
        assert metrics.ratio_max == pytest.approx(1, abs=1e-6)
        assert metrics.ess == pytest.approx(1, abs=1e-9)

    def test_order_critic_twice_then_fresh_values_then_actor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events: list[str] = []
        for name in ("critic_update", "actor_update", "read_values"):
            original = getattr(update, name)
            monkeypatch.setattr(update, name, lambda *a, _n=name, _f=original, **k: (events.append(_n), _f(*a, **k))[1])
        run(make_learner(), mixed_batch())
        # the first reading is the bootstrap of the system cut: once, before any update
        assert events == ["read_values", "critic_update", "critic_update", "read_values", "actor_update"]

    def test_targets_stay_fixed_over_the_k_updates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Tensor] = []
        original = update.critic_update
        monkeypatch.setattr(
            update,
            "critic_update",
            lambda c, o, m, targets, **k: (seen.append(targets.clone()), original(c, o, m, targets, **k))[1],
        )
        learner, batch = make_learner(critic={"updates": 3}), mixed_batch()
        nn.init.normal_(learner.critic.head.weight)
        axis = action_axis(batch)
        next_state = read_values(learner.critic, packing.pack_ends(batch, axis, 100), len(batch))[3]
        metrics = run(learner, batch)
        assert len(seen) == len(metrics.value_losses) == 3
        assert torch.equal(seen[0], seen[1])
        assert torch.equal(seen[0], seen[2])
        want = [1.0] * 4 + [0.0] * 5 + [1.0] * 7 + [float(next_state)] * 3 + [0.0] * 7
        np.testing.assert_allclose(seen[0], want, atol=1e-6)
        assert metrics.value_losses[2] < metrics.value_losses[0]

    @pytest.mark.parametrize("mode", ["fresh", "pre_update"])
    def test_advantages_come_from_the_chosen_values(self, mode: str) -> None:
        learner, batch = make_learner(critic={"advantage_values": mode}), [build([("p", 2), ("a", 1)], reward=1.0)]
        before = float(read_values(learner.critic, pack(batch, action_axis(batch), 9), 1))
        result = sao_step(learner, batch, step=0, version=0)
        after = float(read_values(learner.critic, pack(batch, action_axis(batch), 9), 1))
        assert after > before + 0.01
        assert float(result.advantages) == pytest.approx(1 - (after if mode == "fresh" else before), abs=1e-6)

    def test_critic_only_steps_train_the_critic_alone(self) -> None:
        learner = make_learner(critic_only_steps=2)
        start = {n: p.detach().clone() for n, p in learner.policy.named_parameters()}
        metrics = run(learner, mixed_batch(), step=1)
        assert metrics.critic_only
        assert metrics.trained_tokens == 0
        assert metrics.policy_loss is None
        assert metrics.approx_kl is not None  # the on-policy check runs from step 0
        assert all(torch.equal(p, start[n]) for n, p in learner.policy.named_parameters())
        assert learner.critic.head.weight.any()
        assert not run(learner, mixed_batch(), step=2).critic_only
        assert any(not torch.equal(p, start[n]) for n, p in learner.policy.named_parameters())

    def test_warm_up_counts_critic_steps_and_policy_updates(self) -> None:
        optimizer = {"learning_rate": 1e-3, "max_grad_norm": 1.0, "warmup_steps": 4}
        learner = make_learner(critic_only_steps=2, policy_optimizer=optimizer, critic_optimizer=optimizer)
        rates = [(m.critic_rate, m.policy_rate) for m in (run(learner, mixed_batch(), step=s) for s in range(7))]
        assert [r[0] for r in rates] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3, 1e-3])
        assert [r[1] for r in rates[:2]] == [None, None]
        assert [r[1] for r in rates[2:]] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
        assert warmed_rate(step_config().policy_optimizer, 0) == 1e-3

    def test_k_means_optimizer_steps_not_a_doubled_rate(self) -> None:
        learner = make_learner(critic={"updates": 2})
        run(learner, mixed_batch())
        steps = {int(s["step"]) for s in learner.critic_optimizer.state.values()}
        assert steps == {2}
        assert {int(s["step"]) for s in learner.policy_optimizer.state.values()} == {1}

    def test_frozen_attention_stays_through_a_step(self) -> None:
        learner = make_learner()
        nn.init.normal_(learner.critic.head.weight)
        start = {n: p.detach().clone() for n, p in learner.critic.named_parameters()}
        run(learner, mixed_batch())
        moved = {n for n, p in learner.critic.named_parameters() if not torch.equal(p, start[n])}
        assert moved == {n for n in start if ".self_attn." not in n}

    def test_batch_of_one_value_scale_is_global(self) -> None:
        """Ten times the trajectories at the same mean: same gradient norm, not ten times (no per-micro-batch means)."""
        one = build([("p", 3), ("a", 4)], reward=1.0, seed=1)
        norms = [run(make_learner(packing={"token_budget": 7}), [one] * n).critic_grad_norms[0] for n in (1, 10)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)

    def test_denominator_of_several_ranks(self, policy64: nn.Module) -> None:
        """Two ranks with the global N and summed gradients give the gradient of the whole batch."""
        batch, critic = mixed_batch(), critic64()
        targets = torch.linspace(-1, 1, 26, dtype=torch.float64)
        accumulate_value_gradient(critic, pack(batch, action_axis(batch), 50), targets, 26)
        want = taken(critic)
        for part, where in ((batch[:2], slice(0, 9)), (batch[2:], slice(9, 26))):
            accumulate_value_gradient(critic, pack(part, action_axis(part), 50), targets[where], 26)
        assert_same(taken(critic), want)

    def test_metrics_are_jsonable_and_say_what_happened(self) -> None:
        import json

        metrics = run(make_learner(), mixed_batch(), version=3)
        assert json.loads(json.dumps(metrics.to_dict()))["action_tokens"] == 26
        assert metrics.reward == pytest.approx(2 / 5)
        assert metrics.reward_recorded == metrics.reward_on_actions == 2
        assert metrics.cut_trajectories == 1
        assert metrics.staleness_max == 3
        assert metrics.newest_version == 1
        assert metrics.mixed_version_share == pytest.approx(1 / 6)
        assert set(metrics.seconds) == {"pack", "bootstrap", "critic", "values", "actor", "total"}

    def test_explained_variance_is_missing_on_equal_rewards(self) -> None:
        same = [build([("p", 3), ("a", 4)], reward=1.0, seed=i) for i in range(3)]
        assert run(make_learner(), same).explained_variance is None
        assert run(make_learner(), same[:1]).explained_variance is None
        mixed = [*same, build([("p", 3), ("a", 4)], reward=0.0, seed=9)]
        assert run(make_learner(), mixed).explained_variance == pytest.approx(0, abs=1e-6)  # zero head: a constant

    def test_repeatable_bit_for_bit(self) -> None:
        ends = []
        for _ in range(2):
            learner = make_learner()
            for step in range(2):
                run(learner, mixed_batch(), step=step)
            ends.append([p.detach().clone() for p in (*learner.policy.parameters(), *learner.critic.parameters())])
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    def test_bf16_autocast_keeps_fp32_values_and_log_probabilities(self) -> None:
        learner = make_learner(precision="bf16")
        metrics = run(learner, on_policy(learner.policy, mixed_batch()))
        assert metrics.log_ratio_abs is not None
        assert 0 < metrics.log_ratio_abs < 0.1
        assert {p.dtype for p in learner.policy.parameters()} == {torch.float32}


class TestGuards:
    def test_dropout_stops_the_step(self) -> None:
        learner = make_learner()
        learner.critic.body.layers[1].self_attn.attention_dropout = 0.1
        learner.critic.train()
        with pytest.raises(TrainingSetupError, match="attention_dropout"):
            run(learner, mixed_batch())

    def test_optimizer_built_before_freezing_stops_the_step(self) -> None:
        learner = make_learner(critic={"freeze": "none"})
        learner.critic.body.embed_tokens.requires_grad_(False)
        with pytest.raises(TrainingSetupError, match="build it after freezing"):
            run(learner, mixed_batch())

    def test_a_critic_is_needed_for_gae(self) -> None:
        with pytest.raises(TrainingSetupError, match="needs a critic"):
            Learner.build(tiny_policy(), None, step_config())

    def test_non_finite_gradient_leaves_the_weights(self) -> None:
        learner = make_learner()
        start = [p.detach().clone() for p in learner.policy.parameters()]
        for p in learner.policy.parameters():
            p.grad = torch.full_like(p, torch.nan)
        with pytest.raises(NonFiniteGradientError, match="unchanged"):
            clipped_step(learner.policy, learner.policy_optimizer, 1.0)
        assert all(torch.equal(p, s) for p, s in zip(learner.policy.parameters(), start, strict=True))


class TestControlsTrain:
    @pytest.mark.parametrize("name", ["clip_higher", "ppo_one_sided", "step_mean", "step_last", "one_critic_update"])
    def test_with_a_critic(self, name: str) -> None:
        config = control(name, step_config())
        policy = tiny_policy()
        learner = Learner.build(policy, Critic.from_policy(policy), config)
        metrics = run(learner, on_policy(policy, mixed_batch()))
        assert metrics.trained_tokens > 0
        assert len(metrics.value_losses) == (1 if name == "one_critic_update" else 2)

    @pytest.mark.parametrize("name", ["running_mean_prompt", "running_mean_global"])
    def test_without_a_critic(self, name: str) -> None:
        config = control(name, step_config())
        policy = tiny_policy()
        learner = Learner.build(policy, Critic.from_policy(policy), config)
        assert learner.critic is None
        group = [build([("p", 3), ("a", 4)], reward=float(i % 2), seed=i, task="same") for i in range(4)]
        result = sao_step(learner, on_policy(policy, group), step=0, version=0)
        assert result.metrics.trained_tokens == 16
        assert result.metrics.value_losses == ()
        assert result.metrics.explained_variance is None
        assert result.history.count == 4

    def test_latest_old_policy_ignores_the_recorded_one(self) -> None:
        config = step_config(objective={"name": "ppo_clip", "old_policy": "latest"}, advantage={"kind": "group"})
        policy = tiny_policy()
        learner = Learner.build(policy, None, config)
        group = [build([("p", 3), ("a", 4)], reward=float(i % 2), seed=i, task="same") for i in range(4)]
        far = [build_far(t) for t in group]
        metrics = run(learner, far)
        assert metrics.rejected_share == 0
        assert metrics.trained_tokens == 16
