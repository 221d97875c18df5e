"""Servers that lie down while the trainer has their device (one GPU for both): what they must be able to; a clock.

    rollouts ──► pause · drop caches · sleep ──► training step, new version ──► wake · load · prove ──► rollouts go on

The phases are `VllmPolicy.rest` and `wake`, over `sync.lay_down` and `sync.bring`; who has the device when is settled
between the two processes of a run by trainer/gpu_turn.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerRefused


class EngineClock:
    """Seconds that stand still while the servers rest: a training step must not count as an episode's time."""

    def __init__(self) -> None:
        self._away = 0.0
        self._stopped: float | None = None

    def now(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._away

    def stop(self) -> None:
        if self._stopped is None:
            self._stopped = time.monotonic()

    def go(self) -> None:
        if self._stopped is not None:
            self._away += time.monotonic() - self._stopped
            self._stopped = None


async def check_sleepers(clients: Sequence[VllmClient], timeout_s: float) -> None:
    """Raises ServerRefused for a GPU server that cannot give its memory back. One on a CPU has none to give: there the
    phases run all the same."""
    abilities = await asyncio.gather(*(client.sleep_ability(timeout_s) for client in clients))
    for client, ability in zip(clients, abilities, strict=True):
        if ability == "off":
            raise ServerRefused(
                f"{client.url} was started without --enable-sleep-mode, so it cannot leave its GPU to the trainer. "
                'Start it with `sao serve --set engine.mode=colocated`, or use engine.mode = "split".'
            )
