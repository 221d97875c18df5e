from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.arrow import SCHEMA, RowError, from_batch, to_batch
from data.trajectory import Trajectory, TrajectoryError
from tests.data.trajectories import empty, episode, trajectories


def table(*rows: Trajectory) -> pa.RecordBatch:
    return pa.Table.from_batches([to_batch(row) for row in rows]).combine_chunks().to_batches()[0]


@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_round_trip_is_exact(made: list[Trajectory]) -> None:
    back = [item for _, item in from_batch(table(*made))]
    assert back == made
    for one, other in zip(back, made, strict=True):
        assert isinstance(one, Trajectory)
        assert one.logprobs.tobytes() == other.logprobs.tobytes()  # to the bit, NaN too
        assert one.identity == other.identity
        assert json.dumps(one.outcome.grade) == json.dumps(other.outcome.grade)


def test_columns_are_flat_and_hold_what_they_say() -> None:
    (row,) = to_batch(episode(3, size=2)).to_pylist()
    assert list(row) == SCHEMA.names
    assert row["tokens"] == [3, 1, 2, 0, 1, 7, 8]
    assert row["versions"] == [-1, -1, -1, 3, 3, -1, -1]
    assert row["span_kind"] == ["prompt", "action", "observation"]
    assert (row["span_start"], row["span_end"], row["span_turn"]) == ([0, 3, 5], [3, 5, 7], [0, 0, 0])
    assert (row["reward"], row["status"], row["exit_reason"]) == (1.0, "graded", "submitted")
    assert json.loads(row["grade"]) == {"passed": ["test_3"]}
    assert row["patch"] == b"diff 3\r\n\x00\xff\x03"


def test_no_tokens_no_reward() -> None:
    assert [item for _, item in from_batch(to_batch(empty(1)))] == [empty(1)]


def test_a_read_trajectory_does_not_hold_its_file_in_memory() -> None:
    (_, back) = next(from_batch(table(episode(1), episode(2))))
    assert isinstance(back, Trajectory)
    assert back.tokens.base is None


def change(batch: pa.RecordBatch, name: str, value: object) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    columns = [*batch.columns]
    columns[at] = pa.array([value], batch.schema.field(at).type)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("versions", [-1] * 10, "token 3 is an action"),
        ("tokens", [1, None, 3], "tokens holds nulls"),
        ("tokens", None, "episode 'ep-1'"),
        ("span_end", [3], "episode 'ep-1'"),
        ("status", "unheard", "'unheard' is no Status"),
        ("reward", None, "graded has one"),
        ("grade", "{", "episode 'ep-1'"),
        ("patch", None, "episode 'ep-1'"),
        ("draw", -3, "draw -3"),
    ],
)
def test_a_bad_row_is_an_error_that_names_the_episode(column: str, value: object, text: str) -> None:
    bad = change(to_batch(episode(1)), column, value)
    ((_, item),) = from_batch(bad)
    assert isinstance(item, RowError)
    assert text in str(item)
    assert item.episode_id == "ep-1"


def test_a_bad_row_does_not_hide_the_next() -> None:
    names = SCHEMA.names
    bad = change(to_batch(episode(1)), "status", "unheard")
    both = pa.Table.from_batches([bad, pa.RecordBatch.from_arrays(to_batch(episode(2)).columns, names=names)])
    items = [item for _, item in from_batch(both.combine_chunks().to_batches()[0])]
    assert isinstance(items[0], RowError)
    assert items[1] == episode(2)


def test_a_missing_column_is_named() -> None:
    ((_, item),) = from_batch(to_batch(episode(1)).drop_columns(["versions"]))
    assert isinstance(item, RowError)
    assert "no column versions" in str(item)


def test_text_that_is_no_unicode_is_refused_by_name() -> None:
    broken = dataclasses.replace(episode(1), identity=dataclasses.replace(episode(1).identity, agent="\udc80"))
    with pytest.raises(TrajectoryError, match="episode 'ep-1' cannot be stored"):
        to_batch(broken)


def test_writing_and_reading_do_not_import_pandas(tmp_path: Path) -> None:
    """`pa.array` and its like do, which costs the first append of a run a second or two."""
    code = (
        "import sys; from data.log import TrajectoryLog; from tests.data.trajectories import episode\n"
        "with TrajectoryLog(sys.argv[1], shard_size=2) as log:\n"
        "    for number in range(3): log.append(episode(number))\n"
        "    assert len(list(log)) == 3\n"
        "assert not {'pandas', 'torch', 'transformers'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=True)


def test_slices_and_offsets() -> None:
    """Rows of a sliced batch start inside the value arrays."""
    batch = table(*(episode(number, size=number + 1) for number in range(6))).slice(2, 3)
    assert [item for _, item in from_batch(batch)] == [episode(number, size=number + 1) for number in (2, 3, 4)]
    assert np.all(episode(2).tokens[:1] == [2])
