"""Both sides of a run on one device: they take turns, whoever dies when, and the ledger adds up.

The engine is the embedded one with the two verbs of a server that can leave its device; processes, locks, log, weights
and trainer are real. The verbs on real servers: tests/agent/test_vllm_many.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from agent.engines.embedded import EmbeddedPolicy
from sao import train_rollouts
from sao.train import account, finished
from trainer.folders import FolderError
from trainer.gpu_turn import GpuTurn
from trainer.loop import Trainer
from trainer.publish import PublishError, Version, WeightFolder

from .training_sides import joined, make_policy, make_run, start

ENGINE = {"kind": "vllm", "mode": "colocated"}


class Leaving(EmbeddedPolicy):
    """Says when it is away; whoever wants a token then waits."""

    diary: Path

    async def generate(self, *arguments: Any, **named: Any) -> Any:
        await self.here.wait()
        return await super().generate(*arguments, **named)

    async def rest(self) -> None:
        self.here.clear()
        note(self.diary, "rest")

    async def wake(self, source: Any = None, version: int = 0, *, lineage: str | None = None) -> None:
        note(self.diary, "wake")
        if source is not None:
            await self.update_weights(source, version, lineage=lineage)
        self.here.set()


def note(diary: Path, word: str) -> None:
    with diary.open("a") as file:
        file.write(word + "\n")


def both(run: Path, trainer: str = "", rollouts: str = "") -> list[int | None]:
    diary = run / "diary"

    @contextlib.asynccontextmanager
    async def engine(config: Any, folder: Path, *, lineage: str, version: int, **_: Any) -> AsyncIterator[Leaving]:
        note(diary, "up")
        policy = await asyncio.to_thread(
            Leaving.load, folder, device="cpu", lineage=lineage, version=version, max_batch=4, threads=1
        )
        assert isinstance(policy, Leaving)
        policy.diary, policy.here = diary, asyncio.Event()
        policy.here.set()
        try:
            yield policy
        finally:
            await policy.close()
            note(diary, "down")

    step = Trainer.step

    def noted(self: Trainer, batch: Any) -> None:
        note(diary, "step")
        step(self, batch)
        note(diary, "stepped")

    def prepare() -> None:
        train_rollouts.engine_of = engine
        Trainer.step = noted  # type: ignore[method-assign]

    sides = [start("trainer", run, trainer, prepare), start("rollouts", run, rollouts, prepare)]
    codes = joined(sides)
    note(diary, "end")
    return codes


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def check_turns(diary: list[str], deaths: int = 0, engines: int = 0) -> int:
    """No step while an engine is up and awake; returns the number of steps. `deaths`: of trainers inside a step, which
    leave it without its end; `engines`: that died with their side, without a word, so that the trainer may go on."""
    away, steps, inside = True, 0, False
    for word in diary:
        if word in ("up", "wake"):
            deaths -= inside
            assert deaths >= 0, "both had the device"
            away, inside = False, False
        elif word in ("rest", "down"):
            away = True
        elif word == "step":
            engines -= not away
            assert engines >= 0, "a step while the engine had the device"
            away, inside = True, True
            steps += 1
        elif word == "stepped":
            inside = False
        elif word == "end":
            away, inside = True, False  # everybody is dead
    return steps


def test_every_step_has_the_device_for_itself(tmp_path: Path, policy: Path) -> None:
    run, config = make_run(tmp_path, policy, ENGINE)
    assert both(run) == [0, 0]
    assert finished(run)
    assert account(config, run) == []
    diary = (run / "diary").read_text().split()
    assert check_turns(diary) == config.train.steps
    assert diary.count("rest") >= 2
    assert diary.count("rest") - diary.count("wake") in (0, 1)  # the run may end while the engine lies down


@pytest.mark.parametrize(
    ("trainer", "rollouts"),
    [
        ("step.after_optimizer:2", ""),
        ("publish.middle:3", ""),
        ("", "rollout.after_fsync:6"),
        ("step.after_journal:2", "rollout.after_dispatch:11"),
    ],
)
def test_killed_and_started_again(tmp_path: Path, policy: Path, trainer: str, rollouts: str) -> None:
    run, config = make_run(tmp_path, policy, ENGINE)
    assert -9 in both(run, trainer, rollouts)
    assert both(run) == [0, 0]
    assert account(config, run) == []
    check_turns((run / "diary").read_text().split(), deaths=1 if trainer else 0, engines=1 if rollouts else 0)


def test_a_damaged_version_ends_the_side_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    """Nothing newer comes while the servers lie down and the trainer waits for trajectories."""

    class Resting:
        version = 0

        async def rest(self) -> None: ...

        async def wake(self, *_: Any, **__: Any) -> None:
            raise AssertionError("under damaged weights")

    weights = with_a_damaged_version(tmp_path)
    turn = GpuTurn(tmp_path)
    with pytest.raises(FolderError, match="is not what was written"):
        asyncio.run(train_rollouts.leave_device(Resting(), weights, turn))  # type: ignore[arg-type]
    turn.close()


def test_a_damaged_version_is_named_once_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where trainer and engine each have their own device, the trainer goes on and replaces it."""

    class Playing:
        version = 0

        async def update_weights(self, folder: Path, version: int, *, lineage: str) -> None:
            self.version = version

    weights, engine = with_a_damaged_version(tmp_path), Playing()

    async def look(damaged: int) -> int:
        return await train_rollouts.take_newest(engine, weights, damaged)  # type: ignore[arg-type]

    assert asyncio.run(look(0)) == 1
    said = capsys.readouterr().out
    assert "is not what was written" in said
    assert "under version 0" in said
    assert asyncio.run(look(1)) == 1
    assert capsys.readouterr().out == ""
    weights.publish(AutoModelForCausalLM.from_pretrained(tmp_path / "policy"), Version(2, "line"), {})
    assert asyncio.run(look(1)) == 1
    assert engine.version == 2


def with_a_damaged_version(tmp_path: Path) -> WeightFolder:
    weights = WeightFolder(tmp_path / "weights")
    weights.open_for_writing()
    model = AutoModelForCausalLM.from_pretrained(make_policy(tmp_path / "policy"))
    weights.publish(model, Version(1, "line"), {})
    with (weights.path(1) / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    return weights


def test_a_version_pruned_before_it_is_fetched_does_not_leave_the_engine_asleep(tmp_path: Path) -> None:
    """The next look finds a newer one, or none; either way the engine wakes."""
    woken: list[int] = []

    class Resting:
        version = 0

        async def rest(self) -> None: ...

        async def wake(self, _: Any = None, version: int = 0, **__: Any) -> None:
            woken.append(version)

    class Pruned:
        looks = 0

        def newest(self) -> Version | None:
            self.looks += 1
            return Version(1, "line") if self.looks == 1 else None

        def fetch(self, _: Version) -> Any:
            raise PublishError("pruned")

    turn = GpuTurn(tmp_path)
    asyncio.run(train_rollouts.leave_device(Resting(), Pruned(), turn))  # type: ignore[arg-type]
    turn.close()
    assert woken == [0]
