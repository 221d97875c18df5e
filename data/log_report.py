"""What can be wrong with a trajectory log, by name: problems a reader works around, errors it stops at.

A `LogProblem` says which file, where in it, how many bytes and what was done about it. Readers collect problems in a
`LogReport` and go on. A `LogError` is raised only where going on would lose or repeat an episode; its text says what,
where and the way out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class LogError(RuntimeError):
    """The trajectory log cannot be used as asked."""


class LogMissing(LogError):
    """There is no log at the given place."""


class LogFormatError(LogError):
    """A file of the log is of another format version."""


class LogCorrupt(LogError):
    """A file of the log is damaged in a way that no crash of a writer explains."""


class LogFull(LogError):
    """The storage took no more bytes; everything appended before is whole and safe."""


class LogLocked(LogError):
    """Another process writes to this log."""


class DuplicateEpisode(LogError):
    """The log holds an episode of this id already."""


class ProblemKind(enum.StrEnum):
    TORN_TAIL = "torn tail"
    """Bytes after the last whole record: a writer was killed in the middle of one (or is at it now)."""
    CORRUPT_RECORD = "corrupt record"
    """Bytes between whole records that decode to nothing: the storage changed them."""
    BAD_ROW = "bad row"
    """A stored row breaks an invariant of `Trajectory`."""
    FOREIGN_FILE = "foreign file"
    """A file in the log's directory that is none of the log's."""
    GAP = "gap"
    """Positions that no file of the log covers: a file was removed."""
    DUPLICATE = "duplicate episode"
    """A second record of one episode id: the first counts."""
    SEAL_FAILED = "seal failed"
    """Records stay in the write-ahead log for now; nothing is lost."""


@dataclass(frozen=True)
class LogProblem:
    kind: ProblemKind
    file: Path
    message: str
    """What was done about it, in words."""
    offset: int | None = None
    """First byte in `file`, where that makes sense."""
    size: int | None = None
    """Number of bytes concerned."""
    episode_id: str = ""

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at byte {self.offset}"
        much = "" if self.size is None else f" ({self.size} bytes)"
        return f"{self.kind} in {self.file}{where}{much}: {self.message}"


class LogReport:
    """Problems in the order they were met, each once."""

    def __init__(self) -> None:
        self._problems: dict[tuple[ProblemKind, Path, int | None, str], LogProblem] = {}

    def add(self, problem: LogProblem) -> bool:
        """True if this problem is new. A torn tail seen again with more bytes replaces the older sight of it."""
        key = (problem.kind, problem.file, problem.offset, problem.message)
        new = key not in self._problems
        self._problems[key] = problem
        return new

    def of(self, kind: ProblemKind) -> list[LogProblem]:
        return [problem for problem in self if problem.kind is kind]

    def __iter__(self) -> Iterator[LogProblem]:
        return iter(list(self._problems.values()))

    def __len__(self) -> int:
        return len(self._problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self) or "no problems"
