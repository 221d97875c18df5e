"""A run's trajectories as sections of an evaluation page: span by span, in the words of `sao replay`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from data.log import TrajectoryLog
from data.trajectory import Status, Trajectory
from eval.page import Section, shortened
from sao.replay import span_head


def turns_of(
    log: Path, decode: Callable[[list[int]], str], key: Callable[[Trajectory], str], longest: int = 80_000
) -> dict[str, list[Section]]:
    """Of graded episodes, by `key`; a later one takes the place of an earlier. `longest`: characters of a trajectory;
    longer ones keep head and tail of every span."""
    turns: dict[str, list[Section]] = {}
    for trajectory in TrajectoryLog(log).read():
        if trajectory.outcome.status is not Status.GRADED:
            continue
        room = max(longest // max(len(trajectory.spans), 1), 400)
        turns[key(trajectory)] = [
            Section(
                span_head(trajectory, span),
                shortened(decode(trajectory.tokens[span.start : span.end].tolist()), room),
                str(span.kind),
                open=True,
            )
            for span in trajectory.spans
        ]
    return turns
