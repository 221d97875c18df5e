"""The run's journal: one JSON line per event, fsync'd, in order. Small facts; the trajectories are in the log.

A line is {event, draw, episode_id, time, ...}. Rollouts write `dispatched`, `finished`, `retried` (each names draw and
episode); any other event carries whatever JSON fields its writer gives it, so a trainer's lines (per step the ordered
episode ids, the reason of a drop) need no change here. Promises: a line that `write` returned for survives SIGKILL; a
torn last line is cut off by the next writer, ignored by readers and reported; any other unreadable line is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.log_report import LogError
from data.reading import parse_json

FORMAT = "sao-journal"
FORMAT_VERSION = 1

DISPATCHED = "dispatched"
FINISHED = "finished"
RETRIED = "retried"
_EPISODE_EVENTS = (DISPATCHED, FINISHED, RETRIED)
_OWN_FIELDS = ("event", "draw", "episode_id", "time")


class JournalError(LogError):
    """The journal cannot be used; the text says where and how to mend it."""


@dataclass(frozen=True)
class Entry:
    event: str
    time: float
    """Unix seconds."""
    draw: int | None = None
    episode_id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Reading needs no lock; the first `write` takes the file's writer lock (one process) and cuts off a torn line."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.problems: list[str] = []
        """What was worked around, by name."""
        self._descriptor = -1
        self._mutex = threading.Lock()

    def write(self, event: str, *, draw: int | None = None, episode_id: str | None = None, **fields: Any) -> None:
        """Append one line, durably. Raises JournalError (locked, full, another version, not JSON)."""
        if event in _EPISODE_EVENTS and (draw is None or not episode_id):
            raise JournalError(f"a {event} line names its draw and episode; got draw {draw}, episode {episode_id!r}")
        clash = [name for name in _OWN_FIELDS if name in fields]
        if clash:
            raise JournalError(f"field {clash[0]!r} of a {event} line is the journal's own; give it another name")
        line = {"event": event, "draw": draw, "episode_id": episode_id, "time": time.time(), **fields}
        try:
            text = json.dumps(line, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise JournalError(f"a {event} line cannot be stored as JSON: {error}") from error
        with self._mutex:
            try:
                self._open()
                _append(self._descriptor, text)
            except OSError as error:
                raise JournalError(
                    f"{self.path}: the {event} line could not be stored ({error.strerror}); lines before it are safe. "
                    "Free space or mend the storage, then start again"
                ) from error

    def _open(self) -> None:
        if self._descriptor >= 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalError(f"another process writes to {self.path}; end it, or use another run") from None
            lines, torn = _split(_read_all(descriptor))
            _parse(self.path, lines)
            if torn:
                size = os.fstat(descriptor).st_size
                self._torn(size - len(torn), len(torn), "cut off")
                os.ftruncate(descriptor, size - len(torn))
            if not lines:
                _append(descriptor, json.dumps({"format": FORMAT, "version": FORMAT_VERSION}))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def read(self) -> list[Entry]:
        """All whole lines, in order; empty where there is no journal yet. Raises JournalError."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        lines, torn = _split(content)
        if torn:
            self._torn(len(content) - len(torn), len(torn), "ignored")
        return _parse(self.path, lines)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.read())

    def unfinished(self, stored: Collection[str] = ()) -> dict[int, str]:
        """Draws that were dispatched and not finished, with their last episode id. `stored` are the log's episode ids:
        the log is the truth, an episode may be stored whose `finished` line a crash took."""
        open_draws: dict[int, str] = {}
        for entry in self.read():
            if entry.draw is None or entry.episode_id is None:
                continue
            if entry.event in (DISPATCHED, RETRIED):
                open_draws[entry.draw] = entry.episode_id
            if entry.event == FINISHED or entry.episode_id in stored:
                open_draws.pop(entry.draw, None)
        return open_draws

    def _torn(self, offset: int, size: int, done: str) -> None:
        problem = f"torn last line in {self.path} at byte {offset} ({size} bytes): {done}"
        if problem not in self.problems:
            self.problems.append(problem)

    def close(self) -> None:
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _append(descriptor: int, text: str) -> None:
    data, start = text.encode() + b"\n", os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], start + written)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, start)
        raise


def _read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _split(content: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines, and what stands behind the last newline."""
    *lines, torn = content.split(b"\n")
    return lines, torn


def _parse(path: Path, lines: list[bytes]) -> list[Entry]:
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line.decode("utf-8"), "JSON")
            if number == 1:
                _check_format(path, value)
                continue
            rest = {name: item for name, item in value.items() if name not in _OWN_FIELDS}
            entries.append(Entry(value["event"], value["time"], value["draw"], value["episode_id"], rest))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{path}, line {number} is no journal line ({error}); a crash tears only the last line: restore the "
                "file from a copy, or remove the line if its event may be forgotten"
            ) from error
    return entries


def _check_format(path: Path, header: Any) -> None:
    if header["format"] != FORMAT:
        raise JournalError(f"{path} is no journal (format {header['format']!r}); give another path")
    if header["version"] != FORMAT_VERSION:
        raise JournalError(
            f"{path} has format version {header['version']}, this program reads version {FORMAT_VERSION}; "
            "use the program that wrote it, or start a new run"
        )
