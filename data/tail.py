"""Reading a log by position while others write, seal and crash.

A *position* counts the records of one directory: the record at position p is the p-th that its writer made, wherever it
rests now, write-ahead log or shard. So a reader that goes on from a position neither misses nor repeats an episode when
the writer seals. Readers never change the directory and never need its lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from data import shards, wal
from data.arrow import RowError, from_batch
from data.log_report import LogCorrupt, LogProblem, LogReport, ProblemKind
from data.trajectory import Trajectory

LOCK_NAME = "writer.lock"
_WAL = re.compile(r"wal-(\d{12})\.log")
_SHARD = re.compile(r"shard-(\d{12})-(\d{12})\.parquet")
_MAX_VANISHED = 100
_OURS = re.compile(r"\.tmp-.*|damaged-wal-\d{12}\.log|" + re.escape(LOCK_NAME))


def wal_path(directory: Path, first: int) -> Path:
    return directory / f"wal-{first:012d}.log"


def shard_path(directory: Path, first: int, end: int) -> Path:
    return directory / f"shard-{first:012d}-{end:012d}.parquet"


def damaged_path(directory: Path, first: int) -> Path:
    return directory / f"damaged-wal-{first:012d}.log"


@dataclass(frozen=True)
class ShardFile:
    path: Path
    first: int
    end: int


@dataclass(frozen=True)
class WalFile:
    path: Path
    first: int


@dataclass
class Listing:
    """The log's files, each kind by position."""

    shards: list[ShardFile] = field(default_factory=list)
    wals: list[WalFile] = field(default_factory=list)
    foreign: list[tuple[Path, str]] = field(default_factory=list)
    """Files that are none of the log's, and why."""

    @classmethod
    def of(cls, directory: Path) -> Listing:
        """Of an absent directory: empty (its writer has not started yet)."""
        listing = cls()
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            return listing
        for name in names:
            path = directory / name
            if match := _SHARD.fullmatch(name):
                listing._add_shard(ShardFile(path, int(match[1]), int(match[2])))
            elif match := _WAL.fullmatch(name):
                listing.wals.append(WalFile(path, int(match[1])))
            elif not _OURS.fullmatch(name):
                listing.foreign.append((path, "not a file of the log; ignored"))
        return listing

    def _add_shard(self, shard: ShardFile) -> None:
        if self.shards and shard.first < self.shards[-1].end:
            why = f"covers positions of {self.shards[-1].path.name} too; ignored (merge logs with read_logs instead)"
            self.foreign.append((shard.path, why))
        elif shard.end <= shard.first:
            self.foreign.append((shard.path, "its name covers no positions; ignored"))
        else:
            self.shards.append(shard)

    def shard_at(self, position: int) -> ShardFile | None:
        return next((shard for shard in self.shards if shard.first <= position < shard.end), None)

    def wal_at(self, position: int) -> WalFile | None:
        """The file that would hold `position`."""
        return max((file for file in self.wals if file.first <= position), key=lambda file: file.first, default=None)

    def after(self, position: int) -> int | None:
        """The smallest first position above `position` that a file has."""
        firsts = [shard.first for shard in self.shards] + [file.first for file in self.wals]
        return min((first for first in firsts if first > position), default=None)

    @property
    def sealed_end(self) -> int:
        return max((shard.end for shard in self.shards), default=0)


class LogTail:
    """Reads on from where it stopped: each `poll` yields what is there by now. Single-threaded.

    >>> for trajectory, position in LogTail("no-such-directory-yet").poll(): ...
    """

    def __init__(self, directory: str | os.PathLike[str], position: int = 0, report: LogReport | None = None) -> None:
        self.directory = Path(directory)
        self.position = position
        """Of the next record: hand it to a new tail to go on there."""
        self.report = report if report is not None else LogReport()
        self._seen: set[str] = set()
        self._descriptor: int | None = None  # of the write-ahead log being read, and where in it
        self._header: wal.Header | None = None
        self._path = Path()
        self._offset = 0
        self._gap: tuple[int, int] | None = None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> LogTail:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def poll(self) -> Iterator[tuple[Trajectory, int]]:
        """(trajectory, position after it) for every record from `self.position` to the log's end as it is now.

        Raises LogFormatError for a file of another version, LogCorrupt for a damaged shard or header (both name the
        file); anything else that is wrong goes to `self.report`."""
        vanished = 0
        while True:
            listing = Listing.of(self.directory)
            for path, why in listing.foreign:
                self.report.add(LogProblem(ProblemKind.FOREIGN_FILE, path, why))
            before = self.position
            try:
                if shard := listing.shard_at(self.position):
                    yield from self._poll_shard(shard)
                elif file := listing.wal_at(self.position):
                    yield from self._poll_wal(file)
            except FileNotFoundError as error:
                vanished += 1
                if vanished > _MAX_VANISHED:
                    raise LogCorrupt(f"{error.filename} is listed but cannot be opened; move it away") from error
                continue  # sealed between listing and opening: its records are in a shard now
            if self.position == before and not self._skip_gap(listing):
                return

    def _skip_gap(self, listing: Listing) -> bool:
        """Whether to look again. Positions that no file covers, though later ones are there, are gone for good only
        when a second listing shows the same: a listing is no snapshot, and a seal may have gone on under the first."""
        later = listing.after(self.position)
        if later is None:
            return False
        gap = (self.position, later)
        if gap == self._gap:
            message = f"no file covers positions {self.position} to {later - 1}; read on behind them"
            self.report.add(LogProblem(ProblemKind.GAP, self.directory, message))
            self.position = later
        self._gap = gap
        return True

    def _poll_shard(self, shard: ShardFile) -> Iterator[tuple[Trajectory, int]]:
        for position, item in shards.read(shard.path, self.position):
            self.position = position + 1
            yield from self._accept(item, shard.path)
        self.position = shard.end

    def _poll_wal(self, file: WalFile) -> Iterator[tuple[Trajectory, int]]:
        if self._descriptor is None or self._path != file.path:
            self.close()
            self._descriptor = os.open(file.path, os.O_RDONLY)
            self._path = file.path
            self._header = wal.read_header(self._descriptor, file.path)
            self._offset = self._header.size
        assert self._descriptor is not None
        assert self._header is not None
        for item in wal.read_frames(self._descriptor, self._header, self._offset, file.first):
            if isinstance(item, wal.Damage):
                self.report.add(damage_problem(file.path, item))
                continue
            self._offset = item.end
            if item.position >= self.position:
                self.position = item.position + 1
                yield from self._accept(decode(item, self._header), file.path)

    def _accept(self, item: Trajectory | RowError, path: Path) -> Iterator[tuple[Trajectory, int]]:
        if isinstance(item, RowError):
            message = f"position {self.position - 1}: {item}; skipped"
            self.report.add(LogProblem(ProblemKind.BAD_ROW, path, message, episode_id=item.episode_id))
            return
        episode_id = item.identity.episode_id
        if episode_id in self._seen:
            message = f"episode {episode_id} again at position {self.position - 1}; skipped"
            self.report.add(LogProblem(ProblemKind.DUPLICATE, path, message, episode_id=episode_id))
            return
        self._seen.add(episode_id)
        yield item, self.position


def decode(record: wal.Record, header: wal.Header) -> Trajectory | RowError:
    try:
        items = [item for _, item in from_batch(record.batch(header.schema))]
    except (pa.ArrowException, OSError) as error:
        return RowError(f"record at byte {record.offset} holds no Arrow data: {error}")
    return items[0] if len(items) == 1 else RowError(f"record at byte {record.offset} holds {len(items)} rows")


def damage_problem(path: Path, damage: wal.Damage) -> LogProblem:
    if damage.torn:
        kind, message = ProblemKind.TORN_TAIL, "incomplete record (its writer was killed, or is at work); not read"
    else:
        kind, message = ProblemKind.CORRUPT_RECORD, "no whole record here, whole ones follow; skipped"
    return LogProblem(kind, path, message, damage.offset, damage.end - damage.offset)
