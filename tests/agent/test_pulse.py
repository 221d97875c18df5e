"""The loop's delays: measured, counted, told with their place."""

from __future__ import annotations

import asyncio
import time

from agent.pulse import Pulse, PulseWatch, Stall


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_stall_is_counted_and_named() -> None:
    told: list[Stall] = []

    async def go() -> Pulse:
        async with PulseWatch(told.append) as watch:
            await asyncio.sleep(0.05)
            spin(0.5)
            await asyncio.sleep(0.05)
        return watch.pulse

    pulse = asyncio.run(go())
    assert pulse.stalls == len(told) == 1
    assert pulse.worst_s >= 0.4
    assert "spin" in told[0].where
    assert sum(pulse.counts) == pulse.beats
    summary = pulse.summary()
    assert summary["stalls"] == 1
    assert summary["longest"][0]["where"] == told[0].where
    assert "1 over 200 ms" in pulse.line()


def test_waiting_is_no_stall() -> None:
    """The loop's thread did not work: that is measured but accuses nobody."""

    async def go() -> Pulse:
        async with PulseWatch() as watch:
            await asyncio.sleep(0.05)
            time.sleep(0.5)  # noqa: ASYNC251
            await asyncio.sleep(0.05)
        return watch.pulse

    pulse = asyncio.run(go())
    assert pulse.worst_s >= 0.4
    assert pulse.stalls == 0


def test_histogram_by_hand() -> None:
    pulse = Pulse()
    for ms in (1, 9, 11, 60, 150, 250, 700, 2000, 9000):
        pulse.add(ms / 1000)
    assert pulse.counts == [2, 1, 1, 1, 1, 1, 1, 1]
    assert pulse.summary()["delays"] == {
        "<= 10 ms": 2,
        **{f"<= {bound} ms": 1 for bound in (50, 100, 200, 500, 1000, 5000)},
        "> 5000 ms": 1,
    }
