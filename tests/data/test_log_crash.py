"""A writer may die at any moment: what it acknowledged is there, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from data import shards, wal
from data.log import LogCorrupt, LogTail, ProblemKind, TrajectoryLog
from tests.data.trajectories import episode, ids

ROOT = Path(__file__).parents[2]


def crash(directory: Path, rounds: int, seed: int, longest_s: float, shard_size: int) -> subprocess.Popen[str]:
    arguments = [str(directory), str(rounds), str(seed), str(longest_s), str(shard_size)]
    command = [sys.executable, "-m", "tests.data.crash_writer", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("seed", "longest_s", "shard_size"), [(1, 0.1, 3), (2, 0.2, 16)])
def test_sigkill_at_random_moments(tmp_path: Path, seed: int, longest_s: float, shard_size: int) -> None:
    rounds = 25
    directory = tmp_path / "log"
    done = threading.Event()
    followed: list[str] = []

    def follow() -> None:
        for trajectory, position in TrajectoryLog(directory).tail(follow=True, poll_s=0.001, stop=done.is_set):
            followed.append(trajectory.identity.episode_id)
            assert position == len(followed)

    follower = threading.Thread(target=follow)
    follower.start()
    writer = crash(directory, rounds, seed, longest_s, shard_size)
    assert writer.stdout is not None
    reports = [json.loads(line) for line in writer.stdout]
    assert writer.wait() == 0
    done.set()
    follower.join()

    assert len(reports) == rounds
    for report in reports:
        found = report["found"]
        assert len(found) == len(set(found)), "an episode came twice"
        assert found == [f"ep-{number}" for number in range(len(found))], "an episode is missing"
        assert {f"ep-{number}" for number in report["acknowledged"]} <= set(found), "an acknowledged episode is lost"
        assert set(report["problems"]) <= {"torn tail"}
    acknowledged = reports[-1]["acknowledged"]
    assert len(acknowledged) > rounds, "the writers hardly got to write: the test shows nothing"
    log = TrajectoryLog(directory).open()
    assert log.episode_ids() == ids(log) == followed
    for trajectory in log:
        number = trajectory.identity.draw
        assert trajectory == episode(number, size=int(trajectory.action_mask.sum()))
    log.close()


class Killed(BaseException):
    """Stands for SIGKILL between two steps of sealing: nothing of ours may run after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, module: object, name: str, *, after: bool) -> None:
    real = getattr(module, name)

    def dying(*args: object, **kwargs: object) -> object:
        if after:
            real(*args, **kwargs)
        raise Killed

    monkeypatch.setattr(module, name, dying)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("module", "name"), [(shards, "write"), (wal, "create"), (os, "unlink"), (os, "replace"), (os, "fsync")]
)
def test_killed_between_any_two_steps_of_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, after: bool
) -> None:
    log = TrajectoryLog(tmp_path)
    for number in range(5):
        log.append(episode(number))
    tail = LogTail(tmp_path)
    seen = [position for _, position in tail.poll()][:3]
    with monkeypatch.context() as patch:
        kill_at(patch, module, name, after=after)
        with pytest.raises(Killed):
            log.seal()
    log.close()  # the kernel does this for a killed process

    expected = [f"ep-{number}" for number in range(5)]
    assert ids(TrajectoryLog(tmp_path).read()) == expected
    with TrajectoryLog(tmp_path) as again:
        assert again.append(episode(5)) == 6
        assert again.episode_ids() == ids(again.read()) == [*expected, "ep-5"]
        again.seal()
        assert ids(again.read()) == [*expected, "ep-5"]
        assert len(again.report) == 0
    assert len(list(tmp_path.glob("wal-*"))) == 1
    assert not list(tmp_path.glob(".tmp-*"))
    assert [position for _, position in tail.poll()] == [6]
    assert [position for _, position in TrajectoryLog(tmp_path).tail(seen[-1])] == [4, 5, 6]


def test_both_shard_and_log_left_behind(tmp_path: Path) -> None:
    with TrajectoryLog(tmp_path) as log:
        for number in range(3):
            log.append(episode(number))
        old = next(tmp_path.glob("wal-*"))
        content = old.read_bytes()
        log.seal()
        log.append(episode(3))
    old.write_bytes(content)
    for reader in (TrajectoryLog(tmp_path), TrajectoryLog(tmp_path).open()):
        assert ids(reader.read()) == reader.episode_ids() == ["ep-0", "ep-1", "ep-2", "ep-3"]
        assert len(reader.report) == 0
        reader.close()
    assert not old.exists()


def test_a_log_whose_shard_was_taken_away_is_not_thrown_away(tmp_path: Path) -> None:
    with TrajectoryLog(tmp_path) as log:
        log.append(episode(0))
        old = next(tmp_path.glob("wal-*"))
        content = old.read_bytes()
        log.seal()
        log.append(episode(1))
        log.seal()
    old.write_bytes(content)
    (tmp_path / "shard-000000000000-000000000001.parquet").unlink()
    assert ids(TrajectoryLog(tmp_path).read()) == ["ep-0", "ep-1"]
    with pytest.raises(LogCorrupt, match="a shard was removed by hand"):
        TrajectoryLog(tmp_path).open()
    assert old.exists()


def test_torn_at_every_byte_of_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    with TrajectoryLog(source) as log:
        log.append(episode(0))
        log.append(episode(1))
        path = next(source.glob("wal-*"))
        start = path.stat().st_size
        log.append(episode(2))
    content = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a thousand openings; durability is not the point here
    for cut in range(len(content) - 1, start - 1, -1):
        os.truncate(path, cut)
        reader = TrajectoryLog(source)
        assert ids(reader.read()) == ["ep-0", "ep-1"]
        torn = [(problem.file.name, problem.offset, problem.size) for problem in reader.report]
        assert torn == ([(path.name, start, cut - start)] if cut > start else [])
        if cut % 32 == 0 or cut < start + 30:  # the writer finds the tail as the reader does
            copy = tmp_path / f"cut-{cut}"
            copy.mkdir()
            (copy / path.name).write_bytes(content[:cut])
            with TrajectoryLog(copy) as writer:
                assert writer.append(episode(3)) == 3
                assert [problem.kind for problem in writer.report] == [ProblemKind.TORN_TAIL] * (cut > start)
            assert ids(TrajectoryLog(copy).read()) == ["ep-0", "ep-1", "ep-3"]


def test_a_tail_waits_at_a_torn_end_and_reads_what_is_written_over_it(tmp_path: Path) -> None:
    with TrajectoryLog(tmp_path) as log:
        log.append(episode(0))
        path = next(tmp_path.glob("wal-*"))
        size = path.stat().st_size
        log.append(episode(1))
    os.truncate(path, size + 100)
    tail = LogTail(tmp_path)
    assert [position for _, position in tail.poll()] == [1]
    assert [position for _, position in tail.poll()] == []
    with TrajectoryLog(tmp_path) as log:
        log.append(episode(2))
    assert [(one.identity.episode_id, position) for one, position in tail.poll()] == [("ep-2", 2)]


@pytest.mark.parametrize("change", [lambda old: old ^ 1, lambda old: 0], ids=["bit flip", "zero"])
def test_damage_in_the_middle_costs_that_record_only(tmp_path: Path, change: Callable[[int], int]) -> None:
    with TrajectoryLog(tmp_path) as log:
        log.append(episode(0))
        path = next(tmp_path.glob("wal-*"))
        start = path.stat().st_size
        log.append(episode(1))
        end = path.stat().st_size
        log.append(episode(2))
    content = path.read_bytes()
    for at in [*range(start, start + 30), *range(start + 30, end, 53)]:
        broken = bytearray(content)
        broken[at] = change(content[at])
        if broken == content:
            continue
        path.write_bytes(broken)
        reader = TrajectoryLog(tmp_path)
        assert ids(reader.read()) == ["ep-0", "ep-2"], at
        (problem,) = reader.report
        assert (problem.kind, problem.offset, problem.size) == (ProblemKind.CORRUPT_RECORD, start, end - start)
        with pytest.raises(LogCorrupt, match=f"corrupt record in .* at byte {start} "):
            list(TrajectoryLog(tmp_path).read(strict=True))
    with TrajectoryLog(tmp_path) as log:
        log.append(episode(3))
        log.seal()
    assert ids(TrajectoryLog(tmp_path).read()) == ["ep-0", "ep-2", "ep-3"]
    (kept,) = tmp_path.glob("damaged-wal-*")
    assert len(kept.read_bytes()) > len(content)  # nothing that a person could still read was thrown away


def test_a_record_inside_a_patch_is_no_record(tmp_path: Path) -> None:
    """Damage makes readers look for the next frame; what a model wrote must not pass for one."""
    import dataclasses

    with TrajectoryLog(tmp_path / "other") as log:
        log.append(episode(66))
    forged = next((tmp_path / "other").glob("wal-*")).read_bytes()
    with TrajectoryLog(tmp_path / "log") as log:
        log.append(dataclasses.replace(episode(0), patch=forged))
    path = next((tmp_path / "log").glob("wal-*"))
    os.truncate(path, path.stat().st_size - 1)
    assert list(TrajectoryLog(tmp_path / "log").read()) == []
