"""Two sides on one device: never both, whoever dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import PATIENCE_S
from trainer.gpu_turn import GpuTurn

ROOT = Path(__file__).parents[2]


def other_side(folder: Path, code: str) -> subprocess.Popen[str]:
    """A process that runs `code` with `turn` and says a line when it has come to its `print`."""
    program = f"""
import asyncio, time
from pathlib import Path
from trainer.gpu_turn import GpuTurn
turn = GpuTurn(Path({str(folder)!r}))
{code}"""
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


STEP = """
with turn.step(lambda: False) as ours:
    print("step", ours, flush=True)
    time.sleep(600)
"""
HOLD = """
asyncio.run(turn.take())
print("held", flush=True)
time.sleep(600)
"""


def test_a_whole_round(tmp_path: Path) -> None:
    async def test() -> None:
        rollouts, trainer = GpuTurn(tmp_path), GpuTurn(tmp_path)
        await rollouts.take()
        assert not rollouts.wanted()
        log: list[str] = []

        def step() -> None:
            with trainer.step(lambda: False) as ours:
                assert ours
                log.append("training")
                time.sleep(0.2)
                log.append("published")

        stepping = asyncio.create_task(asyncio.to_thread(step))
        while not rollouts.wanted():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert log == []  # it waits for us
        log.append("asleep")
        rollouts.give()
        await rollouts.take()
        log.append("awake")
        assert log == ["asleep", "training", "published", "awake"]
        assert not rollouts.wanted()
        await stepping
        rollouts.close()
        trainer.close()

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def test_a_trainer_that_is_told_to_stop_waits_no_longer(tmp_path: Path) -> None:
    rollouts, trainer = GpuTurn(tmp_path), GpuTurn(tmp_path)
    asyncio.run(rollouts.take())
    until = time.monotonic() + 0.3
    with trainer.step(lambda: time.monotonic() > until) as ours:
        assert not ours
    assert not rollouts.wanted()


def test_a_killed_trainer_holds_nothing(tmp_path: Path) -> None:
    process = other_side(tmp_path, STEP)
    assert heard(process) == "step True"
    rollouts = GpuTurn(tmp_path)
    assert rollouts.wanted()
    process.kill()
    process.wait()
    asyncio.run(asyncio.wait_for(rollouts.take(), PATIENCE_S))


def test_killed_rollouts_hold_nothing(tmp_path: Path) -> None:
    process = other_side(tmp_path, HOLD)
    assert heard(process) == "held"
    process.kill()
    process.wait()
    with GpuTurn(tmp_path).step(lambda: False) as ours:
        assert ours


def test_rollouts_that_start_while_a_step_is_made_wait_for_its_end(tmp_path: Path) -> None:
    trainer = GpuTurn(tmp_path)
    with trainer.step(lambda: False):
        process = other_side(tmp_path, HOLD)
        time.sleep(1.0)
        assert process.poll() is None
        began = time.monotonic()
    assert heard(process) == "held"
    assert time.monotonic() - began < 20
    process.kill()
    process.wait()
