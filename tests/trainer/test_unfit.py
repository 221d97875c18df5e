"""What cannot be trained on is set aside with its reason, and the run goes on as if it had never been there."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data.crashpoints import VARIABLE
from data.journal import Journal
from data.log import TrajectoryLog
from data.trajectory import Trajectory
from trainer import passes
from trainer.ledger import SET_ASIDE, DropReason, Ledger, audit, fatal_batches, from_journal
from trainer.loop import Trainer
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths
from trainer.publish import WEIGHTS, WeightFolder
from trainer.replay import recorded_steps, replay_exact, weights_digest
from trainer.setup import build_learner
from trainer.train_config import TrainConfig
from trainer.unfit import Limits, TooManyUnfit

from .loop_runner import config
from .tiny import build
from .tiny_models import on_policy, tiny_policy

DRAWS, BATCH, LONG = 24, 4, 40


def settings(**changes: object) -> TrainConfig:
    return config(**{"max_staleness": 20, "ahead": 2, **changes})


def draws(*, long: int = -1, rewards: dict[int, float] | None = None) -> list[Trajectory]:
    made = [
        build(
            [("p", 3), ("a", LONG if draw == long else 3), ("o", 2), ("a", 2)],
            seed=draw,
            reward=(rewards or {}).get(draw, float(draw % 2)),
        )
        for draw in range(DRAWS)
    ]
    return on_policy(tiny_policy(tied=True), made, noise=0.05)


def trainer(run: Path, made: list[Trajectory], train: TrainConfig, said: list[str] | None = None) -> Trainer:
    torch.set_num_threads(1)
    if not (run / "log").exists():
        with TrajectoryLog(run / "log") as log:
            for trajectory in made:
                log.append(trajectory)
    learner = build_learner(tiny_policy(tied=True), train.resolved_step())
    say = (said if said is not None else []).append
    return Trainer(TrainerPaths(run), [run / "log"], learner, train, lineage="tiny", say=say)


def train(run: Path, made: list[Trajectory], settings: TrainConfig, said: list[str] | None = None) -> None:
    running = trainer(run, made, settings, said)
    try:
        assert running.run()
    finally:
        running.close()


def ledger_of(run: Path) -> Ledger:
    ledger = from_journal(Journal(TrainerPaths(run).journal).read())
    logged = {t.identity.episode_id: t.identity.draw for t in TrajectoryLog(run / "log").read()}
    assert audit(ledger, DRAWS, logged) == []
    return ledger


def digest(run: Path) -> str:
    weights = WeightFolder(TrainerPaths(run).weights)
    newest = weights.newest()
    assert newest is not None
    with weights.fetch(newest) as folder:
        return weights_digest(load_file(folder / WEIGHTS))


def replayed(run: Path, train: TrainConfig) -> str:
    recorded = recorded_steps(Journal(TrainerPaths(run).journal).read())
    by_id = {t.identity.episode_id: t for t in TrajectoryLog(run / "log").read()}
    learner = build_learner(tiny_policy(tied=True), train.resolved_step())
    return replay_exact(recorded, by_id, learner, train.settings_hash()).digest


def test_intake_drops_what_is_too_long_or_rewarded_without_bounds(tmp_path: Path) -> None:
    made = draws(long=6, rewards={9: 3e38, 10: -101.0, 11: 3e38})
    limited, said = settings(limits={"max_tokens": 20}), list[str]()
    train(tmp_path, made, limited, said)
    refused = {"too_long": 1, "reward_out_of_bounds": 3}
    assert ledger_of(tmp_path).dropped() == refused
    assert "up to 20 tokens with rewards within ±100" in said[0]
    assert any("draw 9" in text and "3e+38" in text for text in said)
    assert read_metrics(TrainerPaths(tmp_path).metrics)[-1]["dropped"] == refused
    recorded = recorded_steps(Journal(TrainerPaths(tmp_path).journal).read())
    trained = [episode for step in recorded for episode in step.episodes]
    assert trained == [f"e{draw}" for draw in range(DRAWS) if draw not in (6, 9, 10, 11)]
    assert digest(tmp_path) == replayed(tmp_path, limited)


def test_the_models_positions_are_the_limit_where_none_is_set() -> None:
    policy = tiny_policy()
    policy.config.max_position_embeddings = 30
    limits = Limits.of(settings().limits, policy)
    refusal = limits.refusal(build([("p", 20), ("a", 11)], reward=1.0), bootstraps=True)
    assert refusal is not None
    assert refusal[0] is DropReason.TOO_LONG
    assert limits.refusal(build([("p", 20), ("a", 10)], reward=1.0), bootstraps=True) is None


UNBOUNDED = {"max_reward": 3.4e38}


@pytest.mark.parametrize("every", [1, 2, 100])
def test_a_gradient_that_is_no_number_costs_its_batch_alone(tmp_path: Path, every: int) -> None:
    """The critic's loss overflows on it, wherever the last checkpoint is."""
    made = draws(rewards={13: 3e38})
    unbounded, said = settings(limits=UNBOUNDED, checkpoint_every=every), list[str]()
    train(tmp_path, made, unbounded, said)
    ledger = ledger_of(tmp_path)
    assert {draw for draw, fate in ledger.fates.items() if fate.dropped is DropReason.NON_FINITE} == {12, 13, 14, 15}
    assert ledger.trained == DRAWS - BATCH
    assert any("step 3 failed" in text and "non_finite" in text for text in said)
    assert digest(tmp_path) == replayed(tmp_path, unbounded), "the failed step left no trace in the weights"


def test_memory_that_runs_out_costs_the_one_trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails in the actor's pass, when the critic has been updated twice."""

    def hungry(real: Callable[..., object]) -> Callable[..., object]:
        def forward(hidden: torch.Tensor, *rest: object, **named: object) -> object:
            if len(hidden) >= LONG:
                torch.empty(1 << 60)  # the allocator's own refusal
            return real(hidden, *rest, **named)

        return forward

    monkeypatch.setattr(passes, "weighted_logprobs", hungry(passes.weighted_logprobs))
    small = settings(step={**settings().step.model_dump(), "packing": {"token_budget": 16}})
    train(tmp_path, draws(long=9), small)
    ledger = ledger_of(tmp_path)
    assert {d: f.dropped for d, f in ledger.fates.items() if f.dropped} == {9: DropReason.OUT_OF_MEMORY}
    monkeypatch.undo()
    assert digest(tmp_path) == replayed(tmp_path, small)


def in_fork(work: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def test_killed_while_a_batch_is_set_aside(tmp_path: Path) -> None:
    made, unbounded = draws(rewards={13: 3e38}), settings(limits=UNBOUNDED)
    train(tmp_path / "undisturbed", made, unbounded)

    def killed() -> None:
        os.environ[VARIABLE] = "set_aside.after_journal"
        train(tmp_path / "run", made, unbounded)

    assert in_fork(killed) == -9
    train(tmp_path / "run", made, unbounded)
    expected = {draw: fate.dropped for draw, fate in ledger_of(tmp_path / "undisturbed").fates.items()}
    assert {draw: fate.dropped for draw, fate in ledger_of(tmp_path / "run").fates.items()} == expected
    assert digest(tmp_path / "run") == digest(tmp_path / "undisturbed")


def test_a_batch_in_which_the_process_dies_again_and_again(tmp_path: Path) -> None:
    made = draws()

    def killed() -> None:
        os.environ[VARIABLE] = "step.after_optimizer:3"
        train(tmp_path, made, settings(checkpoint_every=100))

    for _ in range(2):
        assert in_fork(killed) == -9
    journal = Journal(TrainerPaths(tmp_path).journal)
    assert [step for step, _ in fatal_batches(journal.read(), 2)] == [2]
    assert in_fork(killed) == -9
    train(tmp_path, made, settings(checkpoint_every=100))
    ledger = ledger_of(tmp_path)
    assert {d for d, f in ledger.fates.items() if f.dropped is DropReason.KILLED_TRAINER} == {8, 9, 10, 11}
    assert ledger.trained == DRAWS - BATCH


def test_too_much_stops_the_run_and_a_raised_limit_goes_on(tmp_path: Path) -> None:
    made = draws(rewards=dict.fromkeys(range(8, 14), 3e38))
    with pytest.raises(TooManyUnfit, match="6 reward_out_of_bounds"):
        train(tmp_path, made, settings())
    train(tmp_path, made, settings(limits={"unfit_share": 0.5}))
    assert ledger_of(tmp_path).dropped() == {"reward_out_of_bounds": 6}


def test_too_many_failing_steps_stop_the_run(tmp_path: Path) -> None:
    made = draws(rewards={4: 3e38, 13: 3e38})
    limits = {**UNBOUNDED, "unfit_share": 1.0, "set_aside": 1}
    with pytest.raises(TooManyUnfit, match="2 steps failed"):
        train(tmp_path, made, settings(limits=limits))
    asides = [entry for entry in Journal(TrainerPaths(tmp_path).journal).read() if entry.event == SET_ASIDE]
    assert [entry.fields["reason"] for entry in asides] == ["non_finite"] * 2
    train(tmp_path, made, settings(limits={**limits, "set_aside": 2}))
    assert ledger_of(tmp_path).dropped() == {"non_finite": 8}


def test_a_bug_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(passes, "weighted_logprobs", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        train(tmp_path, draws(), settings())


def test_old_rows_of_the_ledger_are_read() -> None:
    ledger = Ledger.from_rows([[0, "a", 0, None], [1, "b", 0, "stale", 7]])
    assert [fate.tokens for fate in ledger.fates.values()] == [0, 7]


def test_a_replaced_reward_keeps_its_trajectory() -> None:
    """Bounds look at size, either sign, and at nothing else."""
    limits = Limits(max_reward=2.0)
    for reward, fits in ((2.0, True), (-2.0, True), (2.1, False), (-2.1, False), (0.0, True)):
        one = build([("p", 1), ("a", 1)], reward=reward)
        assert (limits.refusal(one, bootstraps=True) is None) is fits
    cut = replace(build([("p", 1), ("a", 1)], reward=None))
    assert limits.refusal(cut, bootstraps=True) is None
    assert np.isfinite(limits.max_reward)
