"""`TrajectoryLog`: the queue between rollouts and training, and the archive of both.

Finished trajectories are appended to a write-ahead log and sealed into Parquet shards of a few hundred. Promises:
* what `append` returned for is never lost: not by SIGKILL, not by a full disk, not in the middle of sealing;
* a reader sees each episode once, whether it reads the whole log, follows it while it is written, or goes on from a
  position it remembered;
* no torn tail, damaged record or foreign file stops a reader: each is named in `report`. Another format version and a
  damaged shard do stop it, by a typed error that says the way out.

    directory/  writer.lock · wal-<first>.log · shard-<first>-<end>.parquet
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data import shards
from data.log_report import (
    DuplicateEpisode,
    LogCorrupt,
    LogError,
    LogFormatError,
    LogFull,
    LogLocked,
    LogMissing,
    LogProblem,
    LogReport,
    ProblemKind,
)
from data.log_writer import LogWriter
from data.tail import Listing, LogTail
from data.trajectory import Trajectory

__all__ = [
    "DuplicateEpisode",
    "LogCorrupt",
    "LogError",
    "LogFormatError",
    "LogFull",
    "LogLocked",
    "LogMissing",
    "LogProblem",
    "LogReport",
    "LogTail",
    "ProblemKind",
    "TrajectoryLog",
    "read_logs",
]

_LOST = (ProblemKind.CORRUPT_RECORD, ProblemKind.BAD_ROW, ProblemKind.GAP)


class TrajectoryLog:
    """A log in `directory`. Reading needs no lock; the first `append` or `seal` (or `open`) takes the writer's lock,
    makes the directory if need be and recovers from a crash. Use as a context manager, or `close`."""

    def __init__(self, directory: str | os.PathLike[str], *, shard_size: int = 256) -> None:
        if shard_size < 1:
            raise LogError(f"shard_size is {shard_size}: a shard holds at least one episode")
        self.directory = Path(directory)
        self.shard_size = shard_size
        self.report = LogReport()
        """Everything that was wrong and worked around, by name; grows as the log is read and written."""
        self._writer: LogWriter | None = None
        self._opening = threading.Lock()

    def open(self) -> TrajectoryLog:
        """Become the writer now. Raises LogLocked, LogFull, LogFormatError, LogCorrupt, LogError."""
        with self._opening:
            if self._writer is None:
                self._writer = LogWriter(self.directory, self.shard_size, self.report)
        return self

    def append(self, trajectory: Trajectory) -> int:
        """Store durably (fsync); returns the position after it. Full write-ahead logs are sealed by themselves.

        Raises DuplicateEpisode, LogFull (nothing torn, nothing lost before it), TrajectoryError, LogError."""
        return self._open_writer().append(trajectory)

    def seal(self) -> Path | None:
        """Move what is in the write-ahead log into a Parquet shard; None when there is nothing to move."""
        return self._open_writer().seal()

    def _open_writer(self) -> LogWriter:
        self.open()
        assert self._writer is not None
        return self._writer

    def read(self, *, strict: bool = False) -> Iterator[Trajectory]:
        """All trajectories in the order of their appending. Raises LogMissing; `strict` ends in LogCorrupt when any
        stored episode could not be read."""
        self._check_exists()
        with LogTail(self.directory, report=self.report) as tail:
            for trajectory, _ in tail.poll():
                yield trajectory
        lost = [problem for problem in self.report if problem.kind in _LOST]
        if strict and lost:
            raise LogCorrupt("\n".join(str(problem) for problem in lost))

    __iter__ = read

    def tail(
        self,
        position: int = 0,
        *,
        follow: bool = False,
        poll_s: float = 0.1,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[tuple[Trajectory, int]]:
        """(trajectory, position after it) from `position` on, while others write. Ends at the end of the log; with
        `follow`, waits there for more until `stop()` is true. The log need not exist yet."""
        with LogTail(self.directory, position, self.report) as tail:
            while True:
                stopping = stop is not None and stop()
                yield from tail.poll()
                if not follow or stopping:
                    return
                time.sleep(poll_s)

    def episode_ids(self) -> list[str]:
        """Every id, in order. Reads one column of the shards, and the write-ahead log."""
        if self._writer is not None:
            return list(self._writer.episode_ids)
        ids: dict[str, None] = {}
        self._check_exists()
        listing = Listing.of(self.directory)
        for shard in listing.shards:
            ids.update(dict.fromkeys(shards.read_episode_ids(shard.path)))
        with LogTail(self.directory, listing.sealed_end, self.report) as tail:
            ids.update(dict.fromkeys(trajectory.identity.episode_id for trajectory, _ in tail.poll()))
        return list(ids)

    def verify(self) -> LogReport:
        """Read everything; returns the report."""
        for _ in self.read():
            pass
        return self.report

    def __len__(self) -> int:
        return len(self.episode_ids())

    def __bool__(self) -> bool:
        return True  # an empty log is a log

    def _check_exists(self) -> None:
        listing = Listing.of(self.directory)
        if not self.directory.is_dir():
            raise LogMissing(f"there is no trajectory log at {self.directory}: no such directory")
        if not (listing.shards or listing.wals or self._writer):
            inner = self.directory / "log"
            hint = f"; did you mean {inner}?" if inner.is_dir() else ""
            raise LogMissing(f"{self.directory} holds no trajectory log (no wal-*.log, no shard-*.parquet){hint}")

    def close(self) -> None:
        """Let another process write. What was appended is durable already, sealed or not."""
        with self._opening:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def __enter__(self) -> TrajectoryLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_logs(
    directories: Iterable[str | os.PathLike[str]],
    *,
    strict: bool = False,
    report: LogReport | None = None,
) -> Iterator[Trajectory]:
    """Several logs (one per rollout worker) as one: directory after directory, each episode id once."""
    seen: set[str] = set()
    for directory in directories:
        log = TrajectoryLog(directory)
        if report is not None:
            log.report = report
        for trajectory in log.read(strict=strict):
            if trajectory.identity.episode_id not in seen:
                seen.add(trajectory.identity.episode_id)
                yield trajectory
