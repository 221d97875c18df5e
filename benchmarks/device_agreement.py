"""The same SAO steps on the CPU and on the GPU: do they agree? `python -m benchmarks.device_agreement`

Both sides start from the same random Qwen3-shaped policy and critic in fp32 and train on the same random episodes.
Compared after each step: loss, gradient norms, explained variance; at the end: every weight. Without a GPU the CPU is
compared with itself at another thread count (sums in another order), and the result says so. Exit code 1 when a
difference is above `--limit`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.sao_step import SHAPES, episode
from trainer.config import StepConfig
from trainer.critic import Critic
from trainer.freeze import freeze_for_rl
from trainer.update import Learner, sao_step


def run(policy: torch.nn.Module, device: str, threads: int, batch: list, steps: int) -> tuple[list[list[float]], dict]:
    """Per step the figures compared, and the policy's weights at the end, on the CPU."""
    torch.set_num_threads(threads)
    config = StepConfig.model_validate(
        {
            "critic_only_steps": 0,
            "policy_optimizer": {"learning_rate": 1e-4, "warmup_steps": 0, "max_grad_norm": 1.0},
            "critic_optimizer": {"learning_rate": 1e-4, "warmup_steps": 0, "max_grad_norm": 1.0},
        }
    )
    own = copy.deepcopy(policy).to(device)
    critic = Critic.from_policy(own)
    freeze_for_rl(critic, config.critic)
    learner = Learner.build(own, critic, config)
    figures = []
    for step in range(steps):
        metrics = sao_step(learner, batch, step=step, version=step).metrics
        named = (metrics.policy_loss, metrics.policy_grad_norm, *metrics.value_losses, *metrics.critic_grad_norms)
        figures.append([float(value) for value in named if value is not None])
    return figures, {name: value.detach().cpu() for name, value in own.state_dict().items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1e-3, help="largest relative difference of any figure")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    policy = Qwen3ForCausalLM(Qwen3Config(**SHAPES["demo"], initializer_range=0.05)).eval()
    rng = np.random.default_rng(0)
    batch = [episode(rng, SHAPES["demo"]["vocab_size"], index, 200) for index in range(arguments.episodes)]
    gpu = torch.cuda.is_available()
    sides = [("cpu", 1), ("cuda", 1) if gpu else ("cpu", 2)]
    (ours, weights), (theirs, others) = (run(policy, *side, batch, arguments.steps) for side in sides)
    worst = max(
        abs(a - b) / max(abs(a), 1e-3)
        for one, two in zip(ours, theirs, strict=True)
        for a, b in zip(one, two, strict=True)
    )
    moved = max(float((weights[name] - others[name]).abs().max()) for name in weights)
    result = {
        "compared": [
            torch.cuda.get_device_name() if name == "cuda" else f"cpu, {threads} threads" for name, threads in sides
        ],
        "gpu": gpu,
        "steps": arguments.steps,
        "largest_relative_difference": worst,
        "largest_weight_difference": moved,
        "agrees": worst <= arguments.limit,
    }
    print(json.dumps(result))
    return 0 if result["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
