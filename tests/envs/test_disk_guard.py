"""The disk guard without a sandbox: what counts as a look."""

from __future__ import annotations

import asyncio

import pytest

from envs.sandbox import disk_guard
from envs.sandbox.contract import ExecResult, OutOfDisk
from envs.sandbox.disk_guard import LOOK_AFTER, DiskGuard
from tests.patience import PATIENCE_S

LIMIT = 1 << 20


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_sees_nothing_puts_none_off(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Commands that end while the engine still counts, or whose count fails, must not fill the disk for ever."""
    monkeypatch.setattr(disk_guard, "LOOK_EVERY_S", 0.0)

    async def test() -> None:
        began = asyncio.Event()
        runs = False

        async def used() -> int:
            began.set()
            if runs and fails:
                raise OSError("no answer")
            if runs:
                await asyncio.Event().wait()
            return 100 * LIMIT

        async def command() -> ExecResult:
            nonlocal runs
            runs = True
            began.clear()
            await began.wait()
            runs = False
            return ExecResult(b"", 0, 0.0)

        guard = DiskGuard(used, lambda: LIMIT)
        for _ in range(LOOK_AFTER - 1):
            await guard.run(command(), lambda: None)
        with pytest.raises(OutOfDisk):
            await guard.run(command(), lambda: None)

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))
