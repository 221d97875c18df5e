"""Command line of `sao sft` (also `python -m trainer.sft`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from trainer.sft_config import SftConfig

CHAT_RATE = 2e-5
_CHAT_STEPS = 500
_EXAMPLES = """examples:
  sao sft --model runs/demo-start --out runs/sft --steps 6000
  sao sft --model build/smollm2 --out runs/smol --preset micro --steps 72 --batch 4 --drill-share 0 --learning-rate 2e-4
  sao sft --model my/model --out runs/chat --chats smoltalk --chat-limit 20000 --steps 2000
  sao sft --model my/model --out runs/chat --chats mine.jsonl yours.parquet --max-length 1024
"""


def parse(arguments: list[str] | None = None) -> SftConfig:
    defaults = {name: field.default for name, field in SftConfig.model_fields.items()}
    rate = defaults["optimizer"]
    parser = argparse.ArgumentParser(
        prog="sao sft",
        description="Fine-tune a Hugging Face causal LM in its own chat format: on micro-SWE demonstrations of the "
        "tool protocol, or on conversations (--chats). An unfinished run goes on from its last checkpoint.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model and its tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="run folder; an unfinished run there goes on")
    parser.add_argument("--tasks", choices=["micro-swe"], help=f"task set ({defaults['tasks']}, unless --chats)")
    parser.add_argument(
        "--chats",
        nargs="+",
        metavar="NAME|FILE",
        default=[],
        help="conversations instead: smoltalk, or .jsonl, .json, .parquet files with a column messages",
    )
    parser.add_argument("--chat-split", default=defaults["chat_split"], help="split of known sets (%(default)s)")
    for name, help_text in (
        ("chat_limit", "conversations read of each set"),
        ("max_length", "tokens of a conversation; longer ones are cut there, and counted"),
        ("batch", "demonstrations or conversations per step"),
        ("token_budget", "tokens of one forward and backward; larger batches are done in parts"),
        ("train_tasks", "tasks of the train split"),
        ("drill_share", "share of copying drills, 0 to 1"),
        ("decay_share", "last share of the steps, over which the rate falls"),
        ("seed", "seed of the demonstrations, or of the order of the conversations"),
        ("threads", "CPU threads"),
        ("checkpoint_every", "steps between checkpoints"),
        ("measure_tasks", "tasks or conversations of each held-out measurement"),
        ("log_every", "steps averaged in one line of metrics.jsonl"),
    ):
        default = defaults[name]
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, help=f"{help_text} (%(default)s)")
    parser.add_argument("--steps", type=int, help=f"optimizer steps ({defaults['steps']}; with --chats {_CHAT_STEPS})")
    parser.add_argument("--preset", help=f"agent preset of the demonstrations ({defaults['preset']})")
    parser.add_argument(
        "--drill-lists",
        action=argparse.BooleanOptionalAction,
        default=defaults["drill_lists"],
        help="argument lists too",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        help=f"peak rate ({rate.learning_rate:g}, right for a million parameters; with --chats {CHAT_RATE:g})",
    )
    parser.add_argument(
        "--warmup-steps", type=int, default=rate.warmup_steps, help="steps until the peak rate (%(default)s)"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument(
        "--precision",
        default="auto",
        choices=["auto", "fp32", "bf16"],
        help="arithmetic; auto: bf16 on a GPU that has it, fp32 on a CPU",
    )
    given = vars(parser.parse_args(arguments))
    chats = bool(given["chats"])
    if chats and (other := next((name for name in ("tasks", "preset") if given[name] is not None), "")):
        parser.error(f"--{other} is for demonstrations: give it or --chats")
    fallback = {
        "tasks": defaults["tasks"],
        "preset": defaults["preset"],
        "steps": _CHAT_STEPS if chats else defaults["steps"],
        "learning_rate": CHAT_RATE if chats else rate.learning_rate,
    }
    given |= {name: value for name, value in fallback.items() if given[name] is None}
    try:
        optimizer = type(rate)(
            **{**rate.model_dump(), **{name: given.pop(name) for name in ("learning_rate", "warmup_steps")}}
        )
        return SftConfig(**given, optimizer=optimizer)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}" for item in error.errors())
        parser.error("; ".join(problems))
