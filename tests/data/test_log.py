from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import shards
from data.arrow import to_batch
from data.log import (
    DuplicateEpisode,
    LogCorrupt,
    LogError,
    LogFormatError,
    LogLocked,
    LogMissing,
    LogReport,
    LogTail,
    ProblemKind,
    TrajectoryLog,
    read_logs,
)
from tests.data.trajectories import empty, episode, ids, trajectories


def names(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name != "writer.lock")


def filled(directory: Path, count: int, shard_size: int = 256, start: int = 0) -> TrajectoryLog:
    with TrajectoryLog(directory, shard_size=shard_size) as log:
        for number in range(start, start + count):
            log.append(episode(number))
    return TrajectoryLog(directory, shard_size=shard_size)


def test_append_returns_the_position_after_it(tmp_path: Path) -> None:
    with TrajectoryLog(tmp_path) as log:
        assert [log.append(episode(number)) for number in range(3)] == [1, 2, 3]
        assert len(log) == 3
    again = TrajectoryLog(tmp_path)
    assert list(again) == [episode(number) for number in range(3)]
    assert again.episode_ids() == ["ep-0", "ep-1", "ep-2"]
    assert len(again.report) == 0


@settings(max_examples=15)
@given(st.lists(trajectories(), max_size=7, unique_by=lambda one: one.identity.episode_id), st.integers(1, 4))
def test_anything_appended_is_read_back(tmp_path_factory: pytest.TempPathFactory, made, shard_size) -> None:  # type: ignore[no-untyped-def]
    directory = tmp_path_factory.mktemp("log")
    with TrajectoryLog(directory, shard_size=shard_size).open() as log:
        for trajectory in made:
            log.append(trajectory)
    assert list(TrajectoryLog(directory)) == made


def test_full_logs_are_sealed_by_themselves(tmp_path: Path) -> None:
    filled(tmp_path, 7, shard_size=3)
    assert names(tmp_path) == [
        "shard-000000000000-000000000003.parquet",
        "shard-000000000003-000000000006.parquet",
        "wal-000000000006.log",
    ]
    with TrajectoryLog(tmp_path, shard_size=3) as log:
        assert log.seal() == tmp_path / "shard-000000000006-000000000007.parquet"
        assert log.seal() is None
        assert log.append(episode(7)) == 8
    assert list(TrajectoryLog(tmp_path)) == [episode(number) for number in range(8)]


def test_sealing_and_reading_an_episode_without_tokens(tmp_path: Path) -> None:
    with TrajectoryLog(tmp_path) as log:
        log.append(empty(0))
        log.seal()
        log.append(empty(1))
    assert list(TrajectoryLog(tmp_path)) == [empty(0), empty(1)]


@pytest.mark.parametrize("sealed", [0, 1, 4, 5])
@pytest.mark.parametrize("position", range(7))
def test_tail_goes_on_from_any_position_sealed_or_not(tmp_path: Path, sealed: int, position: int) -> None:
    with TrajectoryLog(tmp_path) as log:
        for number in range(5):
            log.append(episode(number))
            if number + 1 == sealed:
                log.seal()
    read = list(TrajectoryLog(tmp_path).tail(position))
    assert read == [(episode(number), number + 1) for number in range(position, 5)]


def test_a_tail_sees_each_once_while_the_writer_seals(tmp_path: Path) -> None:
    seen: list[str] = []
    tail = LogTail(tmp_path)
    fresh_position = 0
    fresh: list[str] = []
    with TrajectoryLog(tmp_path, shard_size=4) as log:
        assert list(tail.poll()) == []  # nothing there yet, not even the directory's files
        for number in range(19):
            log.append(episode(number))
            if number == 9:
                log.seal()
            if number % 3 == 0:
                seen += ids(trajectory for trajectory, _ in tail.poll())
            if number % 5 == 0:
                for trajectory, position in log.tail(fresh_position):
                    fresh.append(trajectory.identity.episode_id)
                    fresh_position = position
    seen += ids(trajectory for trajectory, _ in tail.poll())
    fresh += ids(trajectory for trajectory, _ in TrajectoryLog(tmp_path).tail(fresh_position))
    assert seen == fresh == [f"ep-{number}" for number in range(19)]
    assert tail.position == 19


def test_a_tail_abandoned_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path, 9, shard_size=6)
    tail, seen = LogTail(tmp_path), []
    for _ in range(20):
        for trajectory, position in tail.poll():
            seen.append(trajectory.identity.episode_id)
            assert position == tail.position == len(seen)
            break
    assert seen == [f"ep-{number}" for number in range(9)]


def test_follow_waits_and_stops(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    calls = iter([False, False, True])
    assert len(list(log.tail(follow=True, poll_s=0.001, stop=lambda: next(calls)))) == 2


def test_an_episode_id_is_taken_once(tmp_path: Path) -> None:
    filled(tmp_path, 3, shard_size=2)
    with TrajectoryLog(tmp_path) as log:
        for number in (0, 2):
            with pytest.raises(DuplicateEpisode, match=f"ep-{number} is in .* a retried draw needs a new episode id"):
                log.append(episode(number))
        assert log.append(episode(3)) == 4


def test_shards_open_in_datasets_and_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    filled(tmp_path / "log", 5, shard_size=2)
    with TrajectoryLog(tmp_path / "log") as log:
        log.append(empty(5))
        log.seal()
    files = str(tmp_path / "log" / "*.parquet")
    dataset = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert dataset["episode_id"][:] == ["ep-0", "ep-1", "ep-2", "ep-3", "ep-4", "empty-5"]
    assert dataset[3]["position"] == 3
    assert dataset[3]["tokens"] == episode(3).tokens.tolist()
    assert dataset[3]["patch"] == episode(3).patch
    assert dataset[5]["reward"] is None

    import pandas as pd

    frame = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "log").glob("*.parquet")))
    assert frame["reward"].mean() == pytest.approx(2 / 5)
    assert frame.set_index("episode_id").loc["ep-4", "versions"].tolist() == episode(4).versions.tolist()


# -- several logs -----------------------------------------------------------------------------------------------------


def test_logs_of_many_workers_read_as_one(tmp_path: Path) -> None:
    filled(tmp_path / "a", 3, shard_size=2)
    filled(tmp_path / "b", 4, start=2)  # ep-2 is in both
    merged = ids(read_logs([tmp_path / "a", tmp_path / "b"]))
    assert merged == ["ep-0", "ep-1", "ep-2", "ep-3", "ep-4", "ep-5"]
    with pytest.raises(LogMissing, match="no such directory"):
        list(read_logs([tmp_path / "a", tmp_path / "c"]))


def test_one_writer_per_directory(tmp_path: Path) -> None:
    first = TrajectoryLog(tmp_path).open()
    with pytest.raises(LogLocked, match=f"process {os.getpid()} writes to .* already"):
        TrajectoryLog(tmp_path).append(episode(0))
    other = (
        "import sys; from data.log import *\ntry: TrajectoryLog(sys.argv[1]).open()\nexcept LogLocked: print('locked')"
    )
    run = subprocess.run([sys.executable, "-c", other, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout == "locked\n"
    first.append(episode(0))
    assert ids(TrajectoryLog(tmp_path)) == ["ep-0"]  # reading needs no lock
    first.close()
    with TrajectoryLog(tmp_path) as second:
        second.append(episode(1))


def test_a_forked_child_neither_writes_nor_holds_the_lock(tmp_path: Path) -> None:
    log = TrajectoryLog(tmp_path).open()
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            log.append(episode(0))
            verdict = b"wrote"
        except LogError as error:
            verdict = b"refused" if b"fork" in str(error).encode() else b"other"
        os.write(ready[1], verdict)
        os.read(go[0], 1)
        os._exit(0)
    assert os.read(ready[0], 16) == b"refused"
    log.close()
    with TrajectoryLog(tmp_path) as again:  # the child lives, its parent's lock does not
        again.append(episode(1))
    os.write(go[1], b"x")
    os.waitpid(child, 0)


# -- what can be wrong ------------------------------------------------------------------------------------------------


def test_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogMissing, match="no such directory"):
        list(TrajectoryLog(tmp_path / "typo"))
    filled(tmp_path / "run" / "log", 1)
    with pytest.raises(LogMissing, match=r"holds no trajectory log .* did you mean .*run/log\?"):
        len(TrajectoryLog(tmp_path / "run"))
    assert list(TrajectoryLog(tmp_path / "typo").tail()) == []  # a tail may be there before its writer
    assert not (tmp_path / "typo").exists()


def test_foreign_files_are_named_and_ignored(tmp_path: Path) -> None:
    filled(tmp_path, 5, shard_size=3)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "wal-1.log").write_text("not our name")
    (tmp_path / "shard-000000000001-000000000002.parquet").write_bytes(b"a copy from elsewhere")
    (tmp_path / ".tmp-shard").write_bytes(b"half a shard of a killed writer")
    log = TrajectoryLog(tmp_path)
    assert len(list(log)) == 5
    foreign = {problem.file.name: problem.message for problem in log.report.of(ProblemKind.FOREIGN_FILE)}
    assert set(foreign) == {"notes.txt", "wal-1.log", "shard-000000000001-000000000002.parquet"}
    assert "merge logs with read_logs" in foreign["shard-000000000001-000000000002.parquet"]
    with TrajectoryLog(tmp_path) as writer:
        writer.append(episode(5))
        assert len(writer.report) == 3
    assert not (tmp_path / ".tmp-shard").exists()
    assert (tmp_path / "notes.txt").exists()


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "wal", 1)
    path = next((tmp_path / "wal").glob("wal-*.log"))
    content = path.read_bytes()
    at = content.index(b"\n") + 1
    path.write_bytes(content[:at] + b"\x02" + content[at + 1 :])
    filled(tmp_path / "shard", 2, shard_size=2)
    shard = next((tmp_path / "shard").glob("*.parquet"))
    table = pq.read_table(shard)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"sao.version": b"2"}), shard)
    for directory, file in ((tmp_path / "wal", path), (tmp_path / "shard", shard)):
        for act in (lambda log: list(log), len, lambda log: list(log.tail()), lambda log: log.open()):
            with pytest.raises(LogFormatError, match=f"{file.name} has format version 2, .* reads version 1; use the"):
                act(TrajectoryLog(directory))
        assert file.exists()


@pytest.mark.parametrize("content", [b"", b"PAR1 garbage PAR1", None])
def test_a_damaged_shard_is_an_error_with_a_way_out(tmp_path: Path, content: bytes | None) -> None:
    filled(tmp_path, 5, shard_size=2)
    shard = tmp_path / "shard-000000000000-000000000002.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(LogCorrupt, match=f"{shard.name} cannot be read .* move it out of the directory"):
        list(TrajectoryLog(tmp_path))
    shard.rename(tmp_path.parent / f"{tmp_path.name}-away")
    log = TrajectoryLog(tmp_path)
    assert ids(log) == ["ep-2", "ep-3", "ep-4"]
    assert [problem.kind for problem in log.report] == [ProblemKind.GAP]
    assert "positions 0 to 1" in str(log.report)
    with pytest.raises(LogCorrupt, match="positions 0 to 1"):
        list(log.read(strict=True))


def test_a_parquet_file_of_someone_else_under_our_name(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "shard-000000000005-000000000009.parquet")
    with pytest.raises(LogCorrupt, match="Parquet but no shard of a trajectory log"):
        TrajectoryLog(tmp_path).open()


def test_a_dangling_link_does_not_hang_a_reader(tmp_path: Path) -> None:
    (tmp_path / "wal-000000000000.log").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LogCorrupt, match="listed but cannot be opened"):
        list(TrajectoryLog(tmp_path))
    (tmp_path / "shard-000000000000-000000000001.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LogCorrupt, match=r"shard-0.* cannot be read"):
        list(TrajectoryLog(tmp_path))


def test_a_bad_row_is_reported_by_episode_and_skipped(tmp_path: Path) -> None:
    rows = [to_batch(episode(number)) for number in range(3)]
    at = rows[1].schema.get_field_index("status")
    columns = [*rows[1].columns]
    columns[at] = pa.array(["unheard"])
    rows[1] = pa.RecordBatch.from_arrays(columns, schema=rows[1].schema)
    shards.write(tmp_path / "shard-000000000000-000000000003.parquet", [0, 1, 2], rows)
    log = TrajectoryLog(tmp_path)
    assert ids(log) == ["ep-0", "ep-2"]
    (problem,) = log.report.of(ProblemKind.BAD_ROW)
    assert problem.episode_id == "ep-1"
    assert "'unheard' is no Status" in problem.message
    with pytest.raises(LogCorrupt, match="episode 'ep-1'"):
        list(log.read(strict=True))


def test_a_report_lists_each_problem_once(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / "notes.txt").touch()
    log = TrajectoryLog(tmp_path)
    for _ in range(3):
        list(log)
    assert len(log.verify()) == 1
    assert str(log.report) == f"foreign file in {tmp_path}/notes.txt: not a file of the log; ignored"
    assert str(LogReport()) == "no problems"


def test_wrong_use_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="shard_size is 0"):
        TrajectoryLog(tmp_path, shard_size=0)
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="could not be opened for writing"):
        TrajectoryLog(tmp_path / "file" / "log").open()
