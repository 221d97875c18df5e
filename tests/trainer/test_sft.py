"""Supervised fine-tuning: the loss by hand, what has no gradient, and a killed run that ends with the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from agent.demo_model import write_start
from trainer.config import OptimizerConfig
from trainer.demonstrations import Demonstration
from trainer.folders import FolderError, only_writer, verify
from trainer.metrics import read_metrics
from trainer.optim import TrainingSetupError
from trainer.sft import FORMAT, run_sft, sft_loss, teacher_forced
from trainer.sft_batches import WINDOW, BatchStream, collate, data_hash
from trainer.sft_config import SftConfig, rate_at

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, max_grad_norm=1.0, warmup_steps=2)


def demonstration(length: int, action: tuple[int, ...], free: tuple[int, ...] = (), start: int = 1) -> Demonstration:
    tokens = np.arange(start, start + length, dtype=np.int32) % 90
    masks = [np.isin(np.arange(length), marked) for marked in (action, free)]
    return Demonstration(tokens, *masks)


@pytest.fixture
def tiny() -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    config = Qwen3Config(vocab_size=97, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    return Qwen3ForCausalLM(config).double()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("start")
    write_start(folder, seed=1, tasks=128)
    return folder


def config(start: Path, out: Path, **changes: object) -> SftConfig:
    usual: dict[str, object] = {"steps": 4, "batch": 2, "train_tasks": 20, "measure_tasks": 4, "checkpoint_every": 2}
    return SftConfig(model=start, out=out, optimizer=OPTIMIZER, **{**usual, **changes})


def test_loss_is_the_mean_over_all_action_tokens(tiny: torch.nn.Module) -> None:
    """Two episodes with 3 and 1 action tokens: four equal shares, not two means."""
    batch = collate([demonstration(8, (4, 5, 7)), demonstration(5, (3,), start=30)])
    assert batch.tokens.shape == (2, 8)
    assert batch.real_tokens == 13
    assert batch.targets.tolist() == [5, 6, 8, 33]
    logits = tiny(input_ids=batch.tokens).logits.log_softmax(-1)
    by_hand = -(logits[0, 3, 5] + logits[0, 4, 6] + logits[0, 6, 8] + logits[1, 2, 33]) / 4
    loss, logprobs = sft_loss(tiny, batch)
    assert torch.allclose(loss, by_hand, atol=1e-12)
    assert torch.allclose(-logprobs.mean(), by_hand, atol=1e-12)


def test_a_batch_in_parts_has_the_same_loss_and_gradient(tiny: torch.nn.Module) -> None:
    """One denominator: parts of 1, 2 and 3 rows give what the whole gives, whatever their shares of action tokens."""
    rows = [demonstration(12, (4, 5, 7, 11)), demonstration(5, (3,), start=30), demonstration(9, (2, 8), start=50)]
    batch = collate(rows)

    def gradient(budget: int) -> tuple[float, torch.Tensor]:
        tiny.zero_grad()
        losses = [sft_loss(tiny, part, batch.learned)[0] for part in batch.parts(budget)]
        for loss in losses:
            loss.backward()
        return sum(float(loss.detach()) for loss in losses), torch.cat(
            [parameter.grad.flatten() for parameter in tiny.parameters()]
        )

    whole, wanted = gradient(36)
    for budget, count in ((24, 2), (12, 3), (1, 3)):
        assert len(batch.parts(budget)) == count
        loss, found = gradient(budget)
        assert loss == pytest.approx(whole, abs=1e-12)
        assert torch.allclose(found, wanted, atol=1e-12)
    one, parts = teacher_forced(tiny, batch), teacher_forced(tiny, *batch.parts(12))
    assert one == pytest.approx(parts, abs=1e-9)
    assert one["loss"] == pytest.approx(whole, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 40), st.integers(1, 39)), min_size=1, max_size=12), st.integers(1, 200))
def test_parts_hold_every_row_once_within_the_budget(sizes: list[tuple[int, int]], budget: int) -> None:
    rows = [demonstration(size, (action % size,), start=number * 40) for number, (size, action) in enumerate(sizes)]
    parts = collate(rows).parts(budget)
    assert sorted(length for part in parts for length in part.lengths) == sorted(map(len, rows))
    assert all(part.tokens.numel() <= budget or len(part.tokens) == 1 for part in parts)
    assert sum(part.learned for part in parts) == collate(rows).learned
    found = sorted(
        tuple(row[:length].tolist()) for part in parts for row, length in zip(part.tokens, part.lengths, strict=True)
    )
    assert found == sorted(tuple(one.tokens.tolist()) for one in rows)


def test_gradient_ignores_padding_and_what_follows_the_last_action(tiny: torch.nn.Module) -> None:
    def gradient(*demonstrations: Demonstration) -> torch.Tensor:
        tiny.zero_grad()
        loss, _ = sft_loss(tiny, collate(demonstrations))
        loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in tiny.parameters()])

    short, long = demonstration(5, (2, 3)), demonstration(9, (2, 3))
    padded = gradient(short, demonstration(20, (), start=40))
    assert torch.allclose(gradient(short), padded, atol=1e-12)
    assert torch.allclose(gradient(short), gradient(long), atol=1e-12)
    assert not torch.allclose(gradient(short), gradient(demonstration(5, (2, 3, 4))), atol=1e-6)


def test_protocol_is_exact_when_only_guesses_differ(tiny: torch.nn.Module) -> None:
    one = demonstration(6, (2, 3, 4))
    best = tiny(input_ids=torch.tensor([one.tokens.tolist()])).logits[0, 1:4].argmax(-1)
    assert teacher_forced(tiny, collate([one]))["protocol_exact"] == float((best == torch.tensor([3, 4, 5])).all())
    free = demonstration(6, (2, 3, 4), free=(2, 3, 4))
    assert teacher_forced(tiny, collate([free]))["protocol_exact"] == 1.0


def test_rate_warms_up_stays_and_falls() -> None:
    chosen = SftConfig(
        model=Path("a"),
        out=Path("b"),
        steps=100,
        decay_share=0.5,
        optimizer=OPTIMIZER.model_copy(update={"warmup_steps": 10}),
    )
    assert rate_at(chosen, 0) == pytest.approx(1e-4)
    assert rate_at(chosen, 9) == rate_at(chosen, 50) == pytest.approx(1e-3)
    assert rate_at(chosen, 75) == pytest.approx(5e-4)
    assert rate_at(chosen, 99) == pytest.approx(5e-5)


def test_batches_of_a_window_use_each_demonstration_once_and_hardly_pad() -> None:
    made: list[int] = []

    def make(number: int) -> Demonstration:
        made.append(number)
        return demonstration(10 + number * 7 % 50, (2,), start=number)

    stream = BatchStream(make, 4, seed=0)
    batches = [stream[index] for index in range(WINDOW)]
    assert sorted(made) == list(range(4 * WINDOW))
    assert sum(batch.tokens.numel() for batch in batches) < 1.1 * sum(batch.real_tokens for batch in batches)
    again = BatchStream(make, 4, seed=0)[17]
    assert torch.equal(again.tokens, batches[17].tokens)


def test_killed_run_ends_with_the_weights_of_an_undisturbed_one(start: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of writing the second checkpoint; the same command goes on from the first."""
    undisturbed = run_sft(config(start, tmp_path / "whole", steps=6))
    killed = tmp_path / "killed"
    arguments = ["--model", start, "--out", killed, "--steps", 6, "--batch", 2, "--train-tasks", 20]
    arguments += ["--checkpoint-every", 2, "--learning-rate", 1e-3]
    program = (
        "import sys, trainer.sft_cli as cli, trainer.sft as sft\n"
        "parsed = cli.parse(sys.argv[1:])\n"
        "optimizer = parsed.optimizer.model_copy(update={'warmup_steps': 2, 'weight_decay': 0.0})\n"
        "sft.run_sft(parsed.model_copy(update={'optimizer': optimizer, 'measure_tasks': 4}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "SAO_CRASH_AT": "sft_state.before_rename:2", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == -9, result.stderr.decode()
    assert not (killed / "model").exists()
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # a kill may come in the middle of a line
    said: list[str] = []
    finished = run_sft(config(start, killed, steps=6), report=said.append)
    assert sum("step 2 of 6" in line for line in said) == 1
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (finished, undisturbed))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert verify(finished, FORMAT)["settings"]["steps"] == 6
    lines, whole = (read_metrics(folder / "metrics.jsonl") for folder in (killed, tmp_path / "whole"))
    measured = [[(line["step"], line["heldout/loss"]) for line in each] for each in (lines, whole)]
    assert measured[0] == measured[1]
    assert [step for step, _ in measured[0]] == [0, 2, 4, 6]
    assert 0 <= lines[-1]["heldout/protocol_exact"] <= 1


def test_other_settings_do_not_go_on(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("trainer.sft._finish", stop)
        with pytest.raises(KeyboardInterrupt):
            run_sft(config(start, tmp_path))
    with pytest.raises(FolderError, match=r"seed: 0 then, 5 now"):
        run_sft(config(start, tmp_path, seed=5))


def test_finished_run_is_not_overwritten(start: Path, tmp_path: Path) -> None:
    run_sft(config(start, tmp_path, steps=1))
    with pytest.raises(TrainingSetupError, match="is finished"):
        run_sft(config(start, tmp_path, steps=1))


def test_two_at_once_in_one_folder_are_refused(start: Path, tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(FolderError, match="another process writes to"):
        run_sft(config(start, tmp_path, steps=1))
    run_sft(config(start, tmp_path, steps=1))


def test_dropout_is_refused(start: Path, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    for file in start.iterdir():
        (noisy / file.name).write_bytes(file.read_bytes())
    described = json.loads((noisy / "config.json").read_text())
    (noisy / "config.json").write_text(json.dumps({**described, "attention_dropout": 0.1}))
    with pytest.raises(TrainingSetupError, match=r"dropout = 0\.1"):
        run_sft(config(noisy, tmp_path / "out"))


def test_out_must_not_be_the_model(start: Path) -> None:
    with pytest.raises(ValueError, match="base model's folder"):
        config(start, start)


def test_data_hash_tells_data_apart() -> None:
    assert data_hash(lambda n: demonstration(5 + n, (2,)), 3) == data_hash(lambda n: demonstration(5 + n, (2,)), 3)
    assert data_hash(lambda n: demonstration(5 + n, (2,)), 3) != data_hash(lambda n: demonstration(5 + n, (3,)), 3)
