"""From folders to a learner: policy in fp32, critic loaded or made from it, frozen, optimizers built last.

Promises: a critic folder is refused unless it was trained for this tokenizer and base model; models are in evaluation
mode (no dropout) and on the chosen device; missing or foreign weights are an error, never filled at random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agent.engines.model_files import check_model_folder
from trainer.config import StepConfig
from trainer.critic import Critic, load_critic, read_manifest
from trainer.folders import sha256
from trainer.freeze import freeze_for_rl
from trainer.optim import TrainingSetupError
from trainer.update import Learner


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_policy(folder: Path, device: torch.device) -> nn.Module:
    """A Hugging Face causal LM from safetensors, fp32. Raises TrainingSetupError, ModelRefused (before it is built)."""
    check_model_folder(folder)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise TrainingSetupError(f"{folder}: cannot load the policy ({type(error).__name__}: {error})") from error
    model, info = loaded
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(kind):
            raise TrainingSetupError(
                f"{folder}: weights do not fit config.json, {kind}: {sorted(map(str, info[kind]))[:3]}"
            )
    return model.to(device).eval()


def model_hash(folder: Path) -> str:
    """sha256 over config.json and the safetensors of a model folder, by name."""
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(f"{path.name}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def build_learner(
    policy: nn.Module,
    config: StepConfig,
    *,
    critic_folder: Path | None = None,
    tokenizer: str = "",
    base_model: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Learner:
    """`tokenizer` and `base_model`: what a critic folder must be made for. Raises CriticError, TrainingSetupError."""
    critic: Critic | None = None
    if config.advantage.kind.needs_critic:
        device = next(policy.parameters()).device
        if critic_folder is None:
            critic = Critic.from_policy(policy)
        else:
            _check_provenance(critic_folder, tokenizer, base_model)
            critic = load_critic(critic_folder, device)
        say(str(freeze_for_rl(critic, config.critic)))
        critic.eval()
    return Learner.build(policy, critic, config)


def _check_provenance(folder: Path, tokenizer: str, base_model: str) -> None:
    provenance = read_manifest(folder).get("provenance", {})
    for name, wanted in (("tokenizer", tokenizer), ("base_model", base_model)):
        found = provenance.get(name)
        if wanted and found and found != wanted:
            raise TrainingSetupError(
                f"{folder} was trained for {name.replace('_', ' ')} {found[:12]}, this run has {wanted[:12]}: its "
                "values mean nothing here. Run `sao pretrain-value` on a log of this run's model"
            )
