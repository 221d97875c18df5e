"""Command line of `python -m trainer.sft`; `sao sft` builds the same `SftConfig`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.sft import SftConfig


def parse(arguments: list[str] | None = None) -> SftConfig:
    defaults = {name: field.default for name, field in SftConfig.model_fields.items()}
    rate = defaults["optimizer"]
    parser = argparse.ArgumentParser(
        prog="python -m trainer.sft",
        description="Fine-tune a Hugging Face causal LM on demonstrations of the tool protocol.",
        epilog="Example: python -m trainer.sft --model runs/demo-start --out runs/sft --steps 6000",
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model and its tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="run folder; an unfinished run there goes on")
    parser.add_argument("--tasks", default=defaults["tasks"], choices=["micro-swe"], help="task set (%(default)s)")
    parser.add_argument("--preset", default=defaults["preset"], help="agent preset (%(default)s)")
    for name, help_text in (
        ("steps", "optimizer steps"),
        ("batch", "demonstrations per step"),
        ("train_tasks", "tasks of the train split"),
        ("drill_share", "share of copying drills, 0 to 1"),
        ("decay_share", "last share of the steps, over which the rate falls"),
        ("seed", "seed of the demonstrations"),
        ("threads", "CPU threads"),
        ("checkpoint_every", "steps between checkpoints"),
        ("measure_tasks", "tasks of each held-out measurement"),
        ("log_every", "steps averaged in one line of metrics.jsonl"),
    ):
        default = defaults[name]
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, help=f"{help_text} (%(default)s)")
    lists = defaults["drill_lists"]
    parser.add_argument(
        "--drill-lists", action=argparse.BooleanOptionalAction, default=lists, help="argument lists too"
    )
    parser.add_argument("--learning-rate", type=float, default=rate.learning_rate, help="peak rate (%(default)s)")
    parser.add_argument(
        "--warmup-steps", type=int, default=rate.warmup_steps, help="steps until the peak rate (%(default)s)"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    given = vars(parser.parse_args(arguments))
    optimizer = rate.model_copy(update={name: given.pop(name) for name in ("learning_rate", "warmup_steps")})
    return SftConfig(**given, optimizer=optimizer)
