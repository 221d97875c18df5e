"""The disk is full: the error says the way out, nothing before it is lost or torn, and the log goes on afterwards."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from data import shards, wal
from data.log import LogError, LogFull, LogTail, ProblemKind, TrajectoryLog
from tests.data.trajectories import episode, ids


@pytest.fixture
def file_size_limit() -> Iterator[int]:
    """A real refusal by the kernel in the middle of a record, without root: EFBIG at 8 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = 8192
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def fill(log: TrajectoryLog) -> int:
    """Append until it is full; returns the number of the episode that was refused."""
    for number in range(10_000):
        try:
            log.append(episode(number))
        except LogFull as error:
            text = str(error)
            assert f"episode ep-{number} was not stored" in text
            assert str(log.directory) in text
            assert "Everything appended before is whole and safe. Free space there" in text
            return number
    raise AssertionError("it never got full")


def test_a_file_size_limit(tmp_path: Path, file_size_limit: int) -> None:
    log = TrajectoryLog(tmp_path).open()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, hard))
    refused = fill(log)
    assert 1 <= refused < 20
    with pytest.raises(LogFull):
        log.append(episode(refused))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    with pytest.raises(LogFull, match="could not be sealed"):
        log.seal()
    reader = TrajectoryLog(tmp_path)
    assert ids(reader.read()) == [f"ep-{number}" for number in range(refused)]
    assert len(reader.report) == 0  # not even a torn tail
    assert not list(tmp_path.glob(".tmp-*"))

    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert log.append(episode(refused)) == refused + 1
    log.close()
    assert ids(TrajectoryLog(tmp_path).read()) == [f"ep-{number}" for number in range(refused + 1)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_really_full_disk(tiny_disk: Path) -> None:
    log = TrajectoryLog(tiny_disk / "log", shard_size=16).open()
    tail = LogTail(tiny_disk / "log")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(60_000))
    refused = fill(log)
    assert refused > 10
    assert ids(trajectory for trajectory, _ in tail.poll()) == [f"ep-{number}" for number in range(refused)]
    log.close()
    # A full disk does not keep the next start from reading, nor from telling what is wrong.
    assert len(list(TrajectoryLog(tiny_disk / "log").read())) == refused
    with TrajectoryLog(tiny_disk / "log", shard_size=16) as again, pytest.raises(LogFull):
        again.append(episode(refused, size=9000))
    ballast.unlink()
    with TrajectoryLog(tiny_disk / "log", shard_size=16) as again:
        again.append(episode(5000))
        assert ids(again.read())[-1] == "ep-5000"
    assert ids(trajectory for trajectory, _ in tail.poll())[-1] == "ep-5000"


def failing(number: int, *, times: int = 1):  # type: ignore[no-untyped-def]
    left = [times]

    def fail(*args: object, **kwargs: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_fsync_takes_the_record_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was visible for a moment: a tail that read it then must not miss the one stored after it."""
    log = TrajectoryLog(tmp_path)
    log.append(episode(0))
    tail = LogTail(tmp_path)
    list(tail.poll())
    seen: list[str] = []

    def read_then_fail(descriptor: int) -> None:
        monkeypatch.undo()
        seen.extend(ids(trajectory for trajectory, _ in tail.poll()))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", read_then_fail)
    with pytest.raises(LogFull, match="ep-1 was not stored"):
        log.append(episode(1))
    assert seen == ["ep-1"]
    assert ids(TrajectoryLog(tmp_path).read()) == ["ep-0"]
    log.append(episode(2))
    log.append(episode(1))  # tried again; the tail knows it already
    assert ids(trajectory for trajectory, _ in tail.poll()) == ["ep-2"]
    log.seal()
    log.append(episode(3))
    assert ids(trajectory for trajectory, _ in tail.poll()) == ["ep-3"]
    log.close()
    reader = TrajectoryLog(tmp_path)
    assert ids(reader.read()) == ["ep-0", "ep-2", "ep-1", "ep-3"]


def test_storage_that_cannot_even_take_back_stops_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TrajectoryLog(tmp_path)
    log.append(episode(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO, times=9))
        with pytest.raises(LogError, match="ep-1 was not stored: Input/output error"):
            log.append(episode(1))
    with pytest.raises(LogError, match=r"could not be taken back .* open the log again"):
        log.append(episode(2))
    log.close()
    with TrajectoryLog(tmp_path) as again:
        again.append(episode(2))
        assert ids(again.read())[0::2] == ["ep-0"] or ids(again.read()) == ["ep-0", "ep-2"]


@pytest.mark.parametrize(("module", "name"), [(shards, "write"), (wal, "create")])
def test_an_append_does_not_fail_because_sealing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    with TrajectoryLog(tmp_path, shard_size=4) as log:
        for number in range(3):
            log.append(episode(number))
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(errno.ENOSPC, times=9))
            assert log.append(episode(3)) == 4
            (problem,) = log.report.of(ProblemKind.SEAL_FAILED)
            assert "No space left" in problem.message
            assert log.append(episode(4)) == 5
        for number in range(5, 9):
            log.append(episode(number))
        assert ids(log.read()) == [f"ep-{number}" for number in range(9)]
    assert ids(TrajectoryLog(tmp_path).read()) == [f"ep-{number}" for number in range(9)]
    with TrajectoryLog(tmp_path, shard_size=4) as log:
        assert len(log) == 9
        log.seal()
    assert ids(TrajectoryLog(tmp_path).read()) == [f"ep-{number}" for number in range(9)]
    assert len(list(tmp_path.glob("wal-*"))) == 1
