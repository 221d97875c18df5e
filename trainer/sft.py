"""Supervised fine-tuning of any Hugging Face causal LM in its own chat format (`sao sft`): on demonstrations of the
tool protocol, or on conversations.

    sao sft --model FOLDER --out runs/sft --tasks micro-swe --steps 6000
    sao sft --model FOLDER --out runs/chat --chats smoltalk --steps 2000

    out/  metrics.jsonl · checkpoints/s000500/ · model/ (model, tokenizer, manifest.json)

Promises:
* the loss is the mean over *all action tokens of the batch*, in however many parts it is computed; prompt, observations
  and padding have no gradient;
* dropout is an error, not a setting; weights and optimizer are fp32 (arithmetic: trainer/precision.py);
* same settings, data, thread count and machine kind: same weights; a killed run goes on from its last checkpoint to the
  very weights of an undisturbed one (no scheduler, no random state: batch n and rate n are functions of n);
* safetensors and JSON only; model/ is there whole or not at all, with hashes of base model, tokenizer and data.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent.tokenizer import Tokenizer, load_tokenizer
from data.reading import read_object
from trainer.folders import new_folder, only_writer, sha256, sweep
from trainer.logprobs import body_of, check_head, chunk_rows, head_of, hidden_states, weighted_logprobs
from trainer.metrics import MetricsWriter
from trainer.optim import (
    TrainingSetupError,
    build_optimizer,
    check_dropout_off,
    clipped_step,
    set_rate,
    trainable,
)
from trainer.precision import autocast, resolve
from trainer.sft_batches import Batch, BatchStream, collate
from trainer.sft_config import SftConfig, rate_at
from trainer.sft_data import SftData, data_of, progress_bar
from trainer.sft_state import load_state, newest_state, save_state, settings_of

FORMAT = "sao-sft/1"


def sft_loss(
    model: nn.Module, batch: Batch, denominator: int | None = None, precision: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(sum of the negative log-probabilities of the batch's action tokens / denominator, log-probabilities [K] without
    gradient). `denominator`: action tokens of the whole batch where this is a part of it."""
    weight, bias = head_of(model)
    with autocast(weight.device, precision):
        hidden = hidden_states(body_of(model), batch.tokens)[:, :-1][batch.predicts]
    share = 1.0 / (denominator or len(hidden))
    loss, logprobs = weighted_logprobs(
        hidden, weight, batch.targets, lambda values, _: torch.full_like(values, share), bias, precision=precision
    )
    return loss, logprobs


@torch.no_grad()
def teacher_forced(model: nn.Module, *parts: Batch, precision: str = "auto") -> dict[str, float]:
    """Over all parts together: mean loss of the action tokens, and greedy agreement: share of action tokens (guesses
    left out), and of rows in which every token that is no guess is right (`protocol_exact`)."""
    weight, bias = head_of(model)
    loss, tokens, right_tokens, asked, exact, rows = 0.0, 0, 0, 0, 0, 0
    for batch in parts:
        with autocast(weight.device, precision):
            hidden = hidden_states(body_of(model), batch.tokens)[:, :-1]
        best, logprobs = [], []
        size = chunk_rows(weight)
        for part, targets in zip(hidden[batch.predicts].split(size), batch.targets.split(size), strict=True):
            logits = part.to(weight.dtype) @ weight.T + (0 if bias is None else bias)
            best.append(logits.argmax(-1))
            logprobs.append(logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1))
        right = torch.ones_like(batch.predicts)
        right[batch.predicts] = torch.cat(best) == batch.targets
        known = batch.predicts & ~batch.free
        loss -= float(torch.cat(logprobs).double().sum())
        tokens += batch.learned
        right_tokens, asked = right_tokens + int(right[known].sum()), asked + int(known.sum())
        exact, rows = exact + int((right | batch.free).all(dim=1).sum()), rows + len(right)
    return {
        "loss": loss / tokens if tokens else float("nan"),
        "token_accuracy": right_tokens / asked if asked else float("nan"),
        "protocol_exact": exact / rows,
    }


def run_sft(config: SftConfig, *, report: Callable[[str], None] = print) -> Path:
    """Train; returns the finished model's folder. Raises TrainingSetupError, FolderError, ModelRefused, and what
    `data_of` raises."""
    finished = config.out / "model"
    if finished.exists():
        raise TrainingSetupError(f"{finished} exists: this run is finished. Use it, or name another --out")
    torch.set_num_threads(config.threads)
    tokenizer = load_tokenizer(config.model)
    data = data_of(config, tokenizer, _positions(config.model))
    report(data.said)
    with only_writer(config.out):
        return _run(config, tokenizer, data, finished, report)


def _run(config: SftConfig, tokenizer: Tokenizer, data: SftData, finished: Path, report: Callable[[str], None]) -> Path:
    model, device = _load(config)
    states = states_folder(config)
    sweep(config.out)
    found = newest_state(states)
    kept = settings_of(found).get("precision", "auto") if found and config.precision == "auto" else config.precision
    config = config.model_copy(update={"precision": resolve(kept, device)})
    report(f"arithmetic: {config.precision} on {device}")
    measured = {
        name: [part.to(device) for part in collate(shown).parts(config.token_budget)]
        for name, shown in data.measured.items()
    }
    optimizer = build_optimizer(model, config.optimizer)
    settings = _settings(config, tokenizer, data)
    step = load_state(found, model, optimizer, settings) if found else 0
    if step:
        report(f"going on from {found}, step {step} of {config.steps}")
    stream = BatchStream(data.make, config.batch, config.seed)
    scores = _train(config, model, optimizer, stream, measured, step, device, settings) or _measure(
        config, model, measured
    )
    report(", ".join(f"{name} {value:.4g}" for name, value in scores.items()))
    _finish(config, model, tokenizer, data, scores)
    shutil.rmtree(states, ignore_errors=True)
    return finished


def _train(
    config: SftConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stream: BatchStream,
    measured: Mapping[str, Sequence[Batch]],
    step: int,
    device: torch.device,
    settings: str,
) -> dict[str, float]:
    """The last measurement; empty where no step was left to do."""
    model.train()
    check_dropout_off(model)
    losses: list[float] = []
    scores: dict[str, float] = {}
    tokens, since = 0, time.monotonic()
    writer = MetricsWriter(config.out / "metrics.jsonl")
    with progress_bar() as progress, contextlib.closing(writer) as metrics:
        bar = progress.add_task("sft", total=config.steps, completed=step, note="")

        def write(line: Mapping[str, Any]) -> None:
            metrics.write(line)
            shown = {key: line[key] for key in ("loss", "heldout/loss", "heldout/protocol_exact") if key in line}
            progress.update(bar, note="  ".join(f"{key} {value:.3f}" for key, value in shown.items()))

        if step == 0:
            model.eval()
            write({"step": 0, **_measure(config, model, measured)})
            model.train()
            since = time.monotonic()
        while step < config.steps:
            batch = stream[step]
            set_rate(optimizer, rate_at(config, step))
            losses.append(0.0)
            for part in batch.parts(config.token_budget):
                loss, _ = sft_loss(model, part.to(device), batch.learned, config.precision)
                loss.backward()
                losses[-1] += float(loss.detach())
            norm = clipped_step(model, optimizer, config.optimizer.max_grad_norm)
            step += 1
            tokens += batch.real_tokens
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
            keep = step % config.checkpoint_every == 0 or step == config.steps
            if keep:
                model.eval()
                scores = _measure(config, model, measured)
                line = {"step": step, **line, **scores}
                model.train()
            if line:
                write(line)  # before the checkpoint: a run that goes on from it would not write this again
            if keep:
                save_state(states_folder(config) / f"s{step:06d}", model, optimizer, step, settings)
                since = time.monotonic()
            progress.update(bar, completed=step)
    model.eval()
    return scores


def states_folder(config: SftConfig) -> Path:
    return config.out / "checkpoints"


def _load(config: SftConfig) -> tuple[nn.Module, torch.device]:
    from agent.engines.weights import choose_device, load_model

    device = choose_device(None if config.device == "auto" else config.device)
    model = load_model(config.model, device, torch.float32)
    check_head(model)
    return model, device


def _measure(config: SftConfig, model: nn.Module, measured: Mapping[str, Sequence[Batch]]) -> dict[str, float]:
    return {
        f"{split}/{name}": round(value, 4)
        for split, parts in measured.items()
        for name, value in teacher_forced(model, *parts, precision=config.precision).items()
    }


def _settings(config: SftConfig, tokenizer: Tokenizer, data: SftData) -> str:
    """Names everything that decides the weights."""
    free = {"out", "model", "checkpoint_every", "log_every", *(() if config.chats else ("measure_tasks",))}
    chosen = config.model_dump(mode="json", exclude=free)
    named = {"base": base_hash(config.model), "tokenizer": tokenizer.fingerprint, "data": data.fingerprint}
    return json.dumps({**chosen, **named}, sort_keys=True)


def base_hash(folder: Path) -> str:
    """sha256 of the base model's weight files, joined in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    return "-".join(sha256(file)[:16] for file in files)


def _positions(folder: Path) -> int | None:
    """The longest input of the model; None where its configuration does not say."""
    file = folder / "config.json"
    found = read_object(file).get("max_position_embeddings") if file.is_file() else None
    return found if isinstance(found, int) and found > 0 else None


def _finish(config: SftConfig, model: Any, tokenizer: Tokenizer, data: SftData, scores: Mapping[str, float]) -> None:
    manifest = {
        "format": FORMAT,
        "settings": config.model_dump(mode="json", exclude={"out", "model", "chats"}),
        "base_sha256": base_hash(config.model),
        "tokenizer": tokenizer.fingerprint,
        **data.facts(),
        "parameters": sum(parameter.numel() for parameter in trainable(model)),
        "teacher_forced": scores,
        "torch": torch.__version__,
    }
    with new_folder(config.out / "model", manifest, "sft") as folder:
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
            if (config.model / name).is_file():
                shutil.copy2(config.model / name, folder / name)


def main(arguments: list[str] | None = None) -> None:
    from trainer.sft_cli import parse

    config = parse(arguments)
    print(f"done: {run_sft(config)}")


if __name__ == "__main__":
    main()
