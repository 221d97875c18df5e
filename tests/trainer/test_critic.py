from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.critic import Critic, CriticError, load_critic, read_manifest, save_critic
from trainer.freeze import freeze
from trainer.optim import TrainingSetupError, build_optimizer, check_dropout_off, check_optimizer

from .tiny import step_config
from .tiny_models import tiny_policy

pytestmark = pytest.mark.numeric

TOKENS = torch.tensor([[1, 2, 3, 4]])


class TestModel:
    def test_starts_at_zero_with_an_fp32_head_on_its_own_copy_of_the_body(self) -> None:
        policy = tiny_policy()
        critic = Critic.from_policy(policy.to(torch.bfloat16))
        assert critic.head.weight.dtype == torch.float32
        assert critic(TOKENS).dtype == torch.float32
        assert not critic(TOKENS).any()
        ours, theirs = dict(critic.body.named_parameters()), dict(policy.model.named_parameters())
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[n], theirs[n]) and ours[n] is not theirs[n] for n in ours)

    def test_values_at_chosen_places(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        torch.nn.init.normal_(critic.head.weight)
        everywhere = critic(TOKENS)
        torch.testing.assert_close(critic(TOKENS, torch.tensor([3, 1])), everywhere[0, [3, 1]])


class TestOptimizer:
    def test_optimizer_built_before_freezing_is_found(self) -> None:
        critic = Critic.from_policy(tiny_policy())
        optimizer = build_optimizer(critic, step_config().critic_optimizer)
        check_optimizer(critic, optimizer)
        freeze(critic, "full_except_attention")
        with pytest.raises(TrainingSetupError, match="build it after freezing"):
            check_optimizer(critic, optimizer)

    def test_half_precision_weights_are_not_trained(self) -> None:
        with pytest.raises(TrainingSetupError, match="lost to rounding"):
            build_optimizer(tiny_policy().to(torch.bfloat16), step_config().policy_optimizer)


class TestDropout:
    def test_functional_dropout_in_training_mode_is_found(self) -> None:
        policy = tiny_policy()
        policy.model.layers[0].self_attn.attention_dropout = 0.1
        check_dropout_off(policy)  # eval mode: no effect
        with pytest.raises(TrainingSetupError, match=r"layers\.0\.self_attn has attention_dropout = 0\.1"):
            check_dropout_off(policy.train())

    def test_module_dropout(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.2))
        with pytest.raises(TrainingSetupError, match=r"1 has p = 0\.2"):
            check_dropout_off(model)
        check_dropout_off(torch.nn.Sequential(torch.nn.Dropout(0.0)))


class TestDisk:
    def made(self, tmp_path, **kwargs):
        critic = Critic.from_policy(tiny_policy())
        torch.nn.init.normal_(critic.head.weight)
        return critic, save_critic(critic, tmp_path / "critic", {"tokenizer": "tok", "data": "abc"})

    def test_round_trip_is_exact_head_included(self, tmp_path) -> None:
        critic, path = self.made(tmp_path)
        loaded = load_critic(path)
        assert torch.equal(loaded(TOKENS), critic(TOKENS))
        assert loaded.head.weight.any()
        assert not loaded.training
        manifest = read_manifest(path)
        assert manifest["provenance"] == {"tokenizer": "tok", "data": "abc"}
        assert sorted(p.name for p in path.iterdir()) == ["config.json", "critic.safetensors", "manifest.json"]
        assert [p.name for p in tmp_path.iterdir()] == ["critic"]

    def test_a_missing_head_is_an_error_not_a_new_head(self, tmp_path) -> None:
        _, path = self.made(tmp_path)
        weights = {k: v for k, v in load_file(path / "critic.safetensors").items() if not k.startswith("head")}
        save_file(weights, path / "critic.safetensors")
        with pytest.raises(CriticError, match="its manifest says"):
            load_critic(path)
        import hashlib

        manifest = json.loads((path / "manifest.json").read_text())
        manifest["sha256"] = hashlib.sha256((path / "critic.safetensors").read_bytes()).hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CriticError, match=r"lacks \['head.weight', 'head.bias'\]"):
            load_critic(path)

    def test_errors_name_the_file(self, tmp_path) -> None:
        with pytest.raises(CriticError, match="no critic folder"):
            load_critic(tmp_path)
        _, path = self.made(tmp_path)
        with pytest.raises(CriticError, match="written once"):
            save_critic(Critic.from_policy(tiny_policy()), path)
        (path / "manifest.json").write_text('{"format": "sao-critic/9"}')
        with pytest.raises(CriticError, match="sao-critic/9"):
            load_critic(path)
        (path / "manifest.json").write_text("{")
        with pytest.raises(CriticError, match="no valid JSON"):
            load_critic(path)
