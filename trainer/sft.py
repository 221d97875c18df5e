"""Supervised fine-tuning of any Hugging Face causal LM on demonstrations of the tool protocol (`sao sft`).

    python -m trainer.sft --model FOLDER --out runs/sft --tasks micro-swe --steps 6000

    out/  metrics.jsonl · checkpoints/s000500/ · model/ (model, tokenizer, manifest.json)

Promises:
* the loss is the mean over *all action tokens of the batch*; prompt, observations and padding have no gradient;
* dropout is an error, not a setting; weights and optimizer are fp32 (bf16 arithmetic on a GPU);
* same settings, thread count and machine kind: same weights; a killed run goes on from its last checkpoint to the very
  weights of an undisturbed one (no scheduler, no random state: batch n and rate n are functions of n);
* safetensors and JSON only; model/ is there whole or not at all, with hashes of base model, tokenizer and data.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from agent.presets import load_preset
from agent.renderers.choose import renderer_for
from agent.tokenizer import Tokenizer, load_tokenizer
from trainer.config import OptimizerConfig, Settings
from trainer.demonstrations import Demonstration, Demonstrator, micro_swe_demonstrations
from trainer.folders import new_folder, sha256, sweep
from trainer.logprobs import body_of, check_head, chunk_rows, head_of, hidden_states, weighted_logprobs
from trainer.optim import (
    TrainingSetupError,
    build_optimizer,
    check_dropout_off,
    clipped_step,
    set_rate,
    trainable,
    warmed_rate,
)
from trainer.sft_batches import Batch, BatchStream, collate, data_hash
from trainer.sft_state import load_state, newest_state, save_state

FORMAT = "sao-sft/1"
_HASHED = 256
"""Demonstrations that stand for the data in its hash."""


class SftConfig(Settings):
    model: Path
    """Folder of the base model: config.json, safetensors, fast tokenizer with a chat template."""
    out: Path
    """Run folder. An unfinished run there goes on from its last checkpoint."""
    tasks: Literal["micro-swe"] = "micro-swe"
    """Task set that demonstrations are written for: needs a known bug place and candidate fixes."""
    train_tasks: int = Field(32768, ge=1)
    """Tasks of the train split that demonstrations are drawn from."""
    preset: str = "demo"
    """Agent preset: prompt, tools, limits. Use the same for rollouts."""
    drill_share: float = Field(0.4, ge=0, le=1)
    """Share of copying drills (trainer/drills.py) among the demonstrations."""
    drill_lists: bool = True
    """Drills may also change the order of an argument list."""
    steps: int = Field(6000, ge=1)
    batch: int = Field(8, ge=1)
    """Demonstrations of one optimizer step."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=1.5e-3, max_grad_norm=1.0, warmup_steps=100, weight_decay=0.01
    )
    decay_share: float = Field(0.4, ge=0, le=1)
    """Last share of the steps, over which the rate falls linearly to a twentieth."""
    seed: int = Field(0, ge=0)
    threads: int = Field(1, ge=1)
    """CPU threads."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    checkpoint_every: int = Field(500, ge=1)
    """Steps between two checkpoints and two held-out measurements."""
    log_every: int = Field(20, ge=1)
    """Steps averaged in one line of metrics.jsonl."""
    measure_tasks: int = Field(64, ge=1)
    """Tasks of each held-out measurement."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model.resolve() == self.out.resolve():
            raise ValueError(f"out {self.out} is the base model's folder: name another one")
        return self


def rate_at(config: SftConfig, step: int) -> float:
    """Rate of the update after `step` earlier ones: warm-up, constant, linear to 5 %."""
    left = (config.steps - step) / max(config.steps * config.decay_share, 1e-9)
    return warmed_rate(config.optimizer, step) * max(0.05, min(1.0, left))


def sft_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """(mean negative log-probability over the batch's action tokens, log-probabilities [K] without gradient)."""
    hidden = hidden_states(body_of(model), batch.tokens)[:, :-1][batch.predicts]
    weight, bias = head_of(model)
    share = 1.0 / len(hidden)
    loss, logprobs = weighted_logprobs(
        hidden, weight, batch.targets, lambda values, _: torch.full_like(values, share), bias
    )
    return loss, logprobs


@torch.no_grad()
def teacher_forced(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Greedy agreement with the demonstrations: share of action tokens, and of episodes in which every token that is
    no guess is right (`protocol_exact`)."""
    hidden = hidden_states(body_of(model), batch.tokens)[:, :-1]
    weight, bias = head_of(model)
    rows = hidden[batch.predicts].split(chunk_rows(weight, 1 << 24))
    best = torch.cat([(part @ weight.T.to(part.dtype) + (0 if bias is None else bias)).argmax(-1) for part in rows])
    right = torch.ones_like(batch.predicts)
    right[batch.predicts] = best == batch.targets
    exact = (right | batch.free).all(dim=1)
    return {
        "token_accuracy": float(right[batch.predicts & ~batch.free].float().mean()),
        "protocol_exact": float(exact.float().mean()),
    }


def run_sft(config: SftConfig, *, report: Callable[[str], None] = print) -> Path:
    """Train; returns the finished model's folder. Raises TrainingSetupError, FolderError, ModelRefused."""
    finished = config.out / "model"
    if finished.exists():
        raise TrainingSetupError(f"{finished} exists: this run is finished. Use it, or name another --out")
    torch.set_num_threads(config.threads)
    tokenizer = load_tokenizer(config.model)
    model, device = _load(config)
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
    measured = {split: _measured(demonstrator, split, config).to(device) for split in ("train", "heldout")}
    optimizer = build_optimizer(model, config.optimizer)
    settings = _settings(config, tokenizer)
    config.out.mkdir(parents=True, exist_ok=True)
    sweep(config.out)
    states = config.out / "checkpoints"
    found = newest_state(states)
    step = load_state(found, model, optimizer, settings) if found else 0
    if step:
        report(f"going on from {found}, step {step} of {config.steps}")
    stream = BatchStream(make, config.batch, config.seed)
    _train(config, model, optimizer, stream, measured, step, device, settings)
    _finish(config, model, tokenizer, make, measured)
    shutil.rmtree(states, ignore_errors=True)
    return finished


def _train(
    config: SftConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stream: BatchStream,
    measured: Mapping[str, Batch],
    step: int,
    device: torch.device,
    settings: str,
) -> None:
    model.train()
    check_dropout_off(model)
    losses: list[float] = []
    tokens, since = 0, time.monotonic()
    with _progress() as progress, (config.out / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        bar = progress.add_task("sft", total=config.steps, completed=step, note="")
        while step < config.steps:
            batch = stream[step].to(device)
            set_rate(optimizer, rate_at(config, step))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss, _ = sft_loss(model, batch)
            loss.backward()
            norm = clipped_step(model, optimizer, config.optimizer.max_grad_norm)
            step += 1
            tokens += batch.real_tokens
            losses.append(float(loss.detach()))
            line: dict[str, Any] = {}
            if step % config.log_every == 0 or step == config.steps:
                seconds, now = time.monotonic() - since, time.monotonic()
                line = {
                    "step": step,
                    "loss": round(sum(losses) / len(losses), 5),
                    "gradient_norm": round(norm, 4),
                    "learning_rate": rate_at(config, step - 1),
                    "tokens_per_second": round(tokens / seconds, 1),
                }
                losses, tokens, since = [], 0, now
            if step % config.checkpoint_every == 0 or step == config.steps:
                model.eval()
                line = {"step": step, **line, **_measure(model, measured)}
                model.train()
                save_state(states_folder(config) / f"s{step:06d}", model, optimizer, step, settings)
                since = time.monotonic()
            if line:
                metrics.write(json.dumps(line) + "\n")
                metrics.flush()
                shown = {key: line[key] for key in ("loss", "heldout/protocol_exact") if key in line}
                progress.update(bar, note="  ".join(f"{key} {value:.3f}" for key, value in shown.items()))
            progress.update(bar, completed=step)
    model.eval()


def states_folder(config: SftConfig) -> Path:
    return config.out / "checkpoints"


def _load(config: SftConfig) -> tuple[nn.Module, torch.device]:
    from agent.engines.weights import choose_device, load_model

    device = choose_device(None if config.device == "auto" else config.device)
    model = load_model(config.model, device, torch.float32)
    check_head(model)
    return model, device


def _measured(demonstrator: Demonstrator, split: str, config: SftConfig) -> Batch:
    """Tasks that training never sees: the held-out split, and the train templates beyond `train_tasks`."""
    make = micro_swe_demonstrations(
        demonstrator,
        split=split,
        tasks=config.measure_tasks,
        offset=config.train_tasks if split == "train" else 0,
        seed=config.seed + 1,
    )
    return collate([make(number) for number in range(config.measure_tasks)])


def _measure(model: nn.Module, measured: Mapping[str, Batch]) -> dict[str, float]:
    return {
        f"{split}/{name}": round(value, 4)
        for split, batch in measured.items()
        for name, value in teacher_forced(model, batch).items()
    }


def _settings(config: SftConfig, tokenizer: Tokenizer) -> str:
    """Names everything that decides the weights."""
    chosen = config.model_dump(mode="json", exclude={"out", "model", "checkpoint_every", "log_every", "measure_tasks"})
    return json.dumps({**chosen, "base": base_hash(config.model), "tokenizer": tokenizer.fingerprint}, sort_keys=True)


def base_hash(folder: Path) -> str:
    """sha256 of the base model's weight files, joined in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    return "-".join(sha256(file)[:16] for file in files)


def _finish(
    config: SftConfig,
    model: Any,
    tokenizer: Tokenizer,
    make: Callable[[int], Demonstration],
    measured: Mapping[str, Batch],
) -> None:
    manifest = {
        "format": FORMAT,
        "settings": config.model_dump(mode="json", exclude={"out", "model"}),
        "base_sha256": base_hash(config.model),
        "tokenizer": tokenizer.fingerprint,
        "data_sha256": data_hash(make, _HASHED),
        "data_hashed": _HASHED,
        "parameters": sum(parameter.numel() for parameter in trainable(model)),
        "teacher_forced": _measure(model, measured),
        "torch": torch.__version__,
    }
    with new_folder(config.out / "model", manifest, "sft") as folder:
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
            if (config.model / name).is_file():
                shutil.copy2(config.model / name, folder / name)


def _progress() -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

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


def main(arguments: list[str] | None = None) -> None:
    from trainer.sft_cli import parse

    config = parse(arguments)
    print(f"done: {run_sft(config)}")


if __name__ == "__main__":
    main()
