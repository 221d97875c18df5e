"""What fine-tuning learns from: micro-SWE demonstrations, or conversations, in the chat format of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agent.presets import load_preset
from agent.renderers.choose import renderer_for
from agent.tokenizer import Tokenizer
from trainer.chats import prepare_chats, read_chats
from trainer.demonstrations import Demonstration, Demonstrator, micro_swe_demonstrations
from trainer.optim import TrainingSetupError
from trainer.sft_batches import data_hash
from trainer.sft_config import SftConfig

_HASHED = 256
"""Demonstrations that stand for the data in its hash."""


@dataclass(frozen=True)
class SftData:
    make: Callable[[int], Demonstration]
    """Number -> what is trained on, a pure function."""
    measured: Mapping[str, Sequence[Demonstration]]
    """By name, never trained on."""
    said: str
    """For the user: how much there is."""
    fingerprint: str
    """What tells the data from other data under the same settings."""
    facts: Callable[[], dict[str, Any]]
    """For the manifest."""


def data_of(config: SftConfig, tokenizer: Tokenizer, positions: int | None) -> SftData:
    """`positions`: the longest input that the model takes. Raises TaskError, PresetError, RendererRefused and
    TrainingSetupError, before anything is trained."""
    return _chats(config, tokenizer, positions) if config.chats else _micro_swe(config, tokenizer, positions)


def _micro_swe(config: SftConfig, tokenizer: Tokenizer, positions: int | None) -> SftData:
    preset = load_preset(config.preset)
    demonstrator = Demonstrator(renderer_for(tokenizer, thinking=preset.thinking), preset)
    make = micro_swe_demonstrations(
        demonstrator,
        split="train",
        tasks=config.train_tasks,
        seed=config.seed,
        drill_share=config.drill_share,
        drill_lists=config.drill_lists,
    )

    def measured(split: str) -> list[Demonstration]:
        """Tasks that training never sees: the held-out split, and the train templates beyond `train_tasks`."""
        shown = micro_swe_demonstrations(
            demonstrator,
            split=split,
            tasks=config.measure_tasks,
            offset=config.train_tasks if split == "train" else 0,
            seed=config.seed + 1,
        )
        return [shown(number) for number in range(config.measure_tasks)]

    parts = {split: measured(split) for split in ("train", "heldout")}
    longest = max(len(one) for part in parts.values() for one in part)
    if positions is not None and longest > positions:
        raise TrainingSetupError(
            f"a demonstration takes {longest} tokens with preset {preset.name}, and the model has {positions} "
            "positions: take a preset with a shorter prompt"
        )
    said = f"{demonstrator.renderer.family} format, preset {preset.name}: demonstrations of up to {longest} tokens"
    return SftData(make, parts, said, "", lambda: {"data_sha256": data_hash(make, _HASHED), "data_hashed": _HASHED})


def _chats(config: SftConfig, tokenizer: Tokenizer, positions: int | None) -> SftData:
    if positions is not None and config.max_length > positions:
        raise TrainingSetupError(
            f"max_length is {config.max_length} tokens, and the model has {positions} positions: give a smaller one "
            "(--max-length)"
        )
    renderer = renderer_for(tokenizer)
    rows = read_chats(config.chats, config.chat_split, config.chat_limit)
    with progress_bar() as progress:
        bar = progress.add_task("encode", total=len(rows), note="")
        data = prepare_chats(
            renderer,
            rows,
            max_length=config.max_length,
            measure=config.measure_tasks,
            seed=config.seed,
            tick=lambda: progress.advance(bar),
        )
    counts = data.counts
    times = config.steps * config.batch / counts.trained
    return SftData(
        data.make,
        {"heldout": data.heldout},
        f"{renderer.family} format: {counts.text(config.max_length)}. {config.steps:,} steps of {config.batch} go "
        f"{times:.2g} times through them",
        data.fingerprint,
        lambda: {
            "chats": [Path(name).name for name in config.chats],
            "data_sha256": data.fingerprint,
            "counts": vars(counts),
        },
    )


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        refresh_per_second=2,
    )
