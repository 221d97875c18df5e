"""One SAO step, timed: random episodes, a random Qwen3-shaped policy. `python benchmarks/sao_step.py --help`."""

from __future__ import annotations

import argparse
import json
import statistics as st
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from data.trajectory import ExitReason, Identity, Outcome, Status, Trajectory, TrajectoryBuilder
from trainer.config import StepConfig
from trainer.critic import Critic, load_critic, save_critic
from trainer.freeze import freeze_for_rl
from trainer.update import Learner, sao_step

SHAPES = {
    "demo": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024, "tie_word_embeddings": True},
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
}  # fmt: skip


def episode(rng: np.random.Generator, vocabulary: int, index: int, tokens: int) -> Trajectory:
    """About `tokens` tokens, 55 of 250 of them sampled, in two turns."""

    def ids(share: float) -> list[int]:
        return rng.integers(0, vocabulary, max(1, int(tokens * share * rng.uniform(0.8, 1.2)))).tolist()

    builder = TrajectoryBuilder(ids(0.6))
    for share in (0.08, 0.14):
        action = ids(share)
        builder.append_action(action, [-float(np.log(vocabulary))] * len(action), [0] * len(action))
        builder.append_observation(ids(0.09))
    outcome = Outcome(Status.GRADED, ExitReason.SUBMITTED, float(index % 2))
    return builder.finish(outcome, Identity(f"e{index}", f"t{index}", index, 0, "random"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="demo")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=250, help="per episode, about")
    parser.add_argument("--budget", type=int, default=8192, help="tokens per micro-batch, padding included")
    parser.add_argument("--steps", type=int, default=4, help="the first one is not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = StepConfig.model_validate(
        {"critic_only_steps": 0, "packing": {"token_budget": args.budget}, "precision": args.precision}
    )
    policy = Qwen3ForCausalLM(Qwen3Config(**SHAPES[args.shape], initializer_range=0.02)).eval().to(device)
    critic = Critic.from_policy(policy)
    if args.shape == "demo":  # what a run starts from rests on disk
        with TemporaryDirectory() as folder:
            critic = load_critic(save_critic(critic, Path(folder) / "critic"), device)
    print(freeze_for_rl(critic, config.critic))
    learner = Learner.build(policy, critic, config)
    rng = np.random.default_rng(0)
    batch = [episode(rng, SHAPES[args.shape]["vocab_size"], i, args.tokens) for i in range(args.episodes)]
    steps, cpu = [], []
    for i in range(args.steps):
        start = time.process_time()
        steps.append(sao_step(learner, batch, step=i, version=i).metrics)
        cpu.append(time.process_time() - start)
    steps, cpu = steps[1:], cpu[1:]
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {args.threads} thread(s)",
                "parameters": sum(p.numel() for p in policy.parameters()),
                "episodes": args.episodes,
                "context_tokens": steps[0].context_tokens,
                "action_tokens": steps[0].action_tokens,
                "padding_share": round(steps[0].padding_share, 3),
                "tokens_per_second": round(st.median(m.tokens_per_second for m in steps)),
                # on a shared machine the wall clock also counts others' work
                "tokens_per_cpu_second": round(steps[0].context_tokens / st.median(cpu)),
                "seconds": {k: round(st.median(m.seconds[k] for m in steps), 3) for k in steps[0].seconds},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
