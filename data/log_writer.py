"""The one writer of a log directory: append durably, seal, recover after any crash.

* `append` returns only when the record is on the disk (fsync); a record that could not be written whole is cut off
  again before the error is raised.
* One process per directory (flock on `writer.lock`; the kernel drops it when the process dies, however it dies).
* Sealing: shard durable -> next write-ahead log durable -> old one removed. A crash in between leaves both; positions
  tell readers and the next writer which records are twice there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import weakref
from pathlib import Path

from data import shards, wal
from data.arrow import RowError, to_batch
from data.atomic import fsync_directory
from data.log_report import (
    DuplicateEpisode,
    LogCorrupt,
    LogError,
    LogFull,
    LogLocked,
    LogProblem,
    LogReport,
    ProblemKind,
)
from data.tail import LOCK_NAME, Listing, WalFile, damage_problem, damaged_path, decode, shard_path, wal_path
from data.trajectory import Trajectory

_log = logging.getLogger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LogWriter:
    """Takes the lock and recovers; raises LogLocked, LogFull, LogFormatError, LogCorrupt, LogError. Thread-safe."""

    def __init__(self, directory: Path, shard_size: int, report: LogReport) -> None:
        self.directory = directory
        self.shard_size = shard_size
        self.report = report
        self.episode_ids: dict[str, None] = {}
        """All ids in the log, in order."""
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._broken = ""
        self._must_seal = False
        self._descriptor = -1
        self._lock = -1
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: LogWriter._let_go(this()))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(directory)
            self._recover()
        except OSError as error:
            self.close()
            raise _storage_error(error, directory, "the log could not be opened for writing") from error
        except BaseException:
            self.close()
            raise

    # -- opening --------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        for leftover in self.directory.glob(".tmp-*"):
            leftover.unlink()
        listing = Listing.of(self.directory)
        for path, why in listing.foreign:
            self._problem(LogProblem(ProblemKind.FOREIGN_FILE, path, why))
        for shard in listing.shards:
            self.episode_ids.update(dict.fromkeys(shards.read_episode_ids(shard.path)))
        self._sealed_end = self._next = listing.sealed_end
        files = sorted(listing.wals, key=lambda file: file.first)
        for file in files:
            self._activate(file)
            self._check_covered(listing)
            if file is files[-1] and (self._unsealed or self._next == file.first):
                return
            # Left by a crash in the middle of sealing: its records are in a shard already, or go into one now.
            self._write_shard()
            if file is files[-1]:
                self._start_wal()
            self._retire(file, self._damaged)
        if not files:
            self._start_wal()

    def _activate(self, file: WalFile) -> None:
        """Make `file` the one that is appended to: read it, cut off a torn tail."""
        self._close_wal()
        self._path = file.path
        self._descriptor = os.open(file.path, os.O_RDWR)
        self._header = wal.read_header(self._descriptor, file.path)
        self._offset = self._header.size
        self._unsealed = 0
        self._damaged = False
        self._next = max(self._next, file.first)
        self._sealed_here: list[int] = []
        for item in wal.read_frames(self._descriptor, self._header, self._offset, file.first):
            if isinstance(item, wal.Damage):
                self._cut(item)
                continue
            self._offset = item.end
            self._next = max(self._next, item.position + 1)
            if item.position >= self._sealed_end:
                self._unsealed += 1
                row = decode(item, self._header)
                self.episode_ids[row.episode_id if isinstance(row, RowError) else row.identity.episode_id] = None
            else:
                self._sealed_here.append(item.position)
        self._seal_at = self.shard_size

    def _check_covered(self, listing: Listing) -> None:
        lost = [position for position in self._sealed_here if listing.shard_at(position) is None]
        if lost:
            raise LogCorrupt(
                f"positions {lost[0]} to {lost[-1]} stand in {self._path} but in no shard, though later shards exist: "
                "a shard was removed by hand; put it back, or move this file out of the directory"
            )

    def _cut(self, damage: wal.Damage) -> None:
        problem = damage_problem(self._path, damage)
        if damage.torn:
            os.ftruncate(self._descriptor, damage.offset)
            os.fsync(self._descriptor)
            message = "incomplete record (its writer was killed before it was acknowledged); cut off"
            problem = LogProblem(problem.kind, problem.file, message, problem.offset, problem.size)
        else:
            self._damaged = True
        self._problem(problem)

    def _start_wal(self) -> None:
        path = wal_path(self.directory, self._next)
        wal.create(path, self._next)
        self._activate(WalFile(path, self._next))

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, trajectory: Trajectory) -> int:
        """Returns the position after the new record; the record is durable by then."""
        episode_id = trajectory.identity.episode_id
        batch = to_batch(trajectory)
        with self._mutex:
            self._check_usable()
            if episode_id in self.episode_ids:
                raise DuplicateEpisode(
                    f"episode {episode_id} is in {self.directory} already; a retried draw needs a new episode id"
                )
            try:
                if self._must_seal:
                    self._seal()
                data = wal.frame(self._header, self._next, batch)
                self._write(data)
            except OSError as error:
                raise _storage_error(error, self.directory, f"episode {episode_id} was not stored") from error
            self._offset += len(data)
            self._next += 1
            self._unsealed += 1
            self.episode_ids[episode_id] = None
            if self._unsealed >= self._seal_at:
                self._seal_or_report()
            return self._next

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, memoryview(data)[written:], self._offset + written)
            os.fsync(self._descriptor)
        except OSError:
            self._take_back(visible=written == len(data))
            raise

    def _take_back(self, *, visible: bool) -> None:
        try:
            os.ftruncate(self._descriptor, self._offset)
            os.fsync(self._descriptor)
        except OSError as error:
            self._broken = f"a failed write could not be taken back ({error.strerror})"
        if visible:
            # A tail may have read the whole record before its fsync failed. Neither its position nor its place in the
            # file is used again: the next record comes in a new file.
            self._next += 1
            self._must_seal = True

    def seal(self) -> Path | None:
        """Move the write-ahead log's records into a shard; None if it has none. Raises LogFull, LogError: the records
        then stay where they are."""
        with self._mutex:
            self._check_usable()
            try:
                return self._seal()
            except OSError as error:
                raise _storage_error(error, self.directory, "the log could not be sealed") from error

    def _seal_or_report(self) -> None:
        try:
            self._seal()
        except OSError as error:
            self._seal_at = self._unsealed + self.shard_size // 8 + 1
            message = f"{error.strerror}; {self._unsealed} episodes stay in it, tried again later"
            self._problem(LogProblem(ProblemKind.SEAL_FAILED, self._path, message))

    def _seal(self) -> Path | None:
        """An error at any step leaves a state that the next append, seal, reader or writer understands."""
        path = self._write_shard()
        old, damaged = WalFile(self._path, self._header.first), self._damaged
        if self._next > old.first:
            self._start_wal()
            self._retire(old, damaged)
        self._must_seal = False
        return path

    def _write_shard(self) -> Path | None:
        first = max(self._header.first, self._sealed_end)
        positions, rows = [], []
        for item in wal.read_frames(self._descriptor, self._header, self._header.size, self._header.first):
            if isinstance(item, wal.Record) and item.position >= first:
                positions.append(item.position)
                rows.append(item.batch(self._header.schema))
        if not rows:
            return None
        path = shard_path(self.directory, first, self._next)
        shards.write(path, positions, rows)
        self._sealed_end = self._next
        self._unsealed = 0
        return path

    def _retire(self, file: WalFile, damaged: bool) -> None:
        if damaged:  # kept: a person may still read something in it
            os.replace(file.path, damaged_path(self.directory, file.first))
        else:
            os.unlink(file.path)
        fsync_directory(self.directory)

    # -- housekeeping ---------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._next

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise LogError(f"{self.directory} was opened for writing by process {self._pid}; a fork cannot write to it")
        if self._lock < 0:
            raise LogError(f"the log {self.directory} is closed")
        if self._broken:
            raise LogError(f"{self.directory}: {self._broken}; mend the storage and open the log again")

    def _problem(self, problem: LogProblem) -> None:
        if self.report.add(problem):
            _log.warning("%s", problem)

    @staticmethod
    def _let_go(writer: LogWriter | None) -> None:
        """In a forked child: give up its copy of the lock, or the log would stay locked while the child lives."""
        if writer is not None and writer._lock >= 0:
            os.close(writer._lock)
            writer._lock = -1

    def _close_wal(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Release the lock; everything appended is durable already. May be called twice."""
        with self._mutex:
            self._close_wal()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1


def _take_lock(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise LogLocked(
            f"process {owner or 'unknown'} writes to {directory} already; end it, or give this run a directory of its "
            "own (readers merge several)"
        ) from None
    with contextlib.suppress(OSError):  # only for the message above; a full disk must not stop us here
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _storage_error(error: OSError, directory: Path, what: str) -> LogError:
    if error.errno in _FULL:
        return LogFull(
            f"{what}: no room left in {directory} ({error.strerror}). Everything appended before is whole and safe. "
            "Free space there (or raise the quota or file size limit) and start again: the log goes on where it ends"
        )
    return LogError(f"{what}: {error.strerror or error} ({error.filename or directory}); mend it and start again")
