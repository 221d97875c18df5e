"""How far two right computations of the same weights differ, and how far wrong ones: the limits of the served-weights
proof (agent/engines/vllm/proof.py) are set between the two.

    python -m benchmarks.served_weights                 # the shipped policy and two that it makes and trains a little
    python -m benchmarks.served_weights build/smollm2   # and these model folders

The reference is fp32 with fp32 arithmetic, as the trainer computes its probe; the other side computes in fp32 (over
other kernels), bf16 or fp16, with the right weights or with one fault: a layer of the old weights kept after an update,
the head kept, a layer lost. The update is a step of AdamW's size. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agent.engines.vllm.proof import difference, limits_for, natural_tokens, probe_of
from agent.engines.weights import load_model
from sao.paths import DEMO_POLICY

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STEP = 1e-3
"""Largest change of one parameter by the update, as a share of its tensor's root mean square: a step at a low rate."""


def made_model(kind: str, steps: int) -> Any:
    """A small one from a configuration, trained on the text of Python's standard library, by bytes."""
    import random

    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 256, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 10,
        "eos_token_id": 10,
    }  # fmt: skip
    if kind == "qwen3_moe":
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.float32)
    text = b"".join(file.read_bytes() for file in sorted(Path(json.__file__).parents[1].glob("*.py"))[:60])
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        starts = [chance.randrange(len(text) - 129) for _ in range(16)]
        ids = torch.tensor([list(text[start : start + 128]) for start in starts])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{kind}: loss {float(loss.detach()):.2f} a byte after {steps} steps", file=sys.stderr)
    return model.eval()


def served(model: Any, dtype: torch.dtype, tokens: list[int]) -> list[float]:
    """Log-probabilities as a server computes them: weights and arithmetic in `dtype`, the softmax in fp32."""
    other = copy.deepcopy(model).to(dtype)
    if dtype is torch.float32:  # other kernels, as a server has: attention written out, one token after the other
        other.set_attn_implementation("eager")
    return list(probe_of(other, tokens)["logprobs"])


def updated(model: Any) -> Any:
    new = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in new.parameters():
            size = STEP * parameter.square().mean().sqrt()
            parameter.add_(size * torch.sign(torch.randn_like(parameter)))
    return new


def faults(old: Any, new: Any) -> Iterator[tuple[str, Any]]:
    middle = old.config.num_hidden_layers // 2
    parts = {"stale step": "", "stale layer": f"layers.{middle}.", "stale head": "lm_head"}
    for name, part in parts.items():
        wrong = copy.deepcopy(new)
        source = dict(old.named_parameters())
        with torch.no_grad():
            hit = [p.copy_(source[n]) for n, p in wrong.named_parameters() if part in n]
        if hit:
            yield name, wrong
    lost = copy.deepcopy(new)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in lost.named_parameters():
            if f"layers.{middle}." in name and parameter.ndim > 1:
                parameter.normal_(std=0.02)  # what a layer holds that was never loaded
    yield "lost layer", lost
    lost = copy.deepcopy(new)
    with torch.no_grad():
        name, parameter = next((n, p) for n, p in lost.named_parameters() if f"layers.{middle}." in n and "o_proj" in n)
        parameter.zero_()
    yield "lost output projection", lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="model folders to measure too")
    parser.add_argument("--steps", type=int, default=100, help="of training for the made models")
    parser.add_argument("--seeds", type=int, default=3, help="probes of each model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # several would wait for one another on a busy machine
    models: dict[str, Any] = {"demo": load_model(DEMO_POLICY, torch.device("cpu"), torch.float32).eval()}
    models |= {kind: made_model(kind, arguments.steps) for kind in ("qwen3", "qwen3_moe")}
    for folder in arguments.folders:
        models[folder.name] = load_model(folder, torch.device("cpu"), torch.float32).eval()
    result: dict[str, Any] = {}
    alarms, missed = 0, 0
    for name, old in models.items():
        new = updated(old)
        for seed in range(arguments.seeds):
            tokens = natural_tokens(old, seed=seed)
            probe = probe_of(new, tokens)
            for key, dtype in DTYPES.items():
                right = difference(probe, served(new, dtype, tokens))
                alarms += not right.within(limits_for(key))
                rows = {"right": right}
                rows |= {fault: difference(probe, served(wrong, dtype, tokens)) for fault, wrong in faults(old, new)}
                for fault, found in rows.items():
                    caught = not found.within(limits_for(key))
                    missed += fault.startswith("lost") and not caught
                    worst = result.setdefault(f"{name} {key} {fault}", [])
                    worst.append([round(found.mean, 7), round(found.quantile, 7), round(found.worst, 7), caught])
        for key in DTYPES:
            for row, found in result.items():
                if row.startswith(f"{name} {key} "):
                    print(f"{row:45s} " + "  ".join(f"{m:.2g}/{q:.2g}/{w:.2g}{'!' * c}" for m, q, w, c in found))
    print(json.dumps({"false_alarms": alarms, "lost_parts_missed": missed, "mean_quantile_worst_caught": result}))
    return 1 if alarms or missed else 0


if __name__ == "__main__":
    sys.exit(main())
