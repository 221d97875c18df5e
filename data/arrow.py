"""Trajectory <-> one Arrow row. The round trip is exact (NaN, patch bytes, floats); columns are flat.

Reading goes through `Trajectory`'s own constructor, so a row that breaks an invariant is an error naming the episode,
never a trajectory. A change of `SCHEMA` is a new `FORMAT_VERSION`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.trajectory import Identity, Outcome, Sampling, Span, Trajectory, TrajectoryError

FORMAT = "sao-trajectory-log"
FORMAT_VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("draw", pa.int64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        # One token axis [T].
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("versions", pa.list_(pa.int32()), nullable=False),
        # One entry per span.
        pa.field("span_kind", pa.list_(pa.string()), nullable=False),
        pa.field("span_start", pa.list_(pa.int32()), nullable=False),
        pa.field("span_end", pa.list_(pa.int32()), nullable=False),
        pa.field("span_turn", pa.list_(pa.int32()), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("exit_reason", pa.string(), nullable=False),
        pa.field("grade", pa.string(), nullable=False),  # JSON
        pa.field("sampling_temperature", pa.float64(), nullable=False),
        pa.field("sampling_top_p", pa.float64(), nullable=False),
        pa.field("lineage", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("sandbox", pa.string(), nullable=False),
        pa.field("tokenizer", pa.string(), nullable=False),
        pa.field("timings", pa.string(), nullable=False),  # JSON, seconds by phase
        pa.field("patch", pa.binary(), nullable=False),
    ]
)

POSITION = "position"
"""Extra first column of a shard: the record's place in its log."""


class RowError(ValueError):
    """A stored row is no trajectory; the text names the episode (`episode_id` is empty where that is unreadable)."""

    def __init__(self, message: str, episode_id: str = "") -> None:
        super().__init__(message)
        self.episode_id = episode_id


def to_batch(trajectory: Trajectory) -> pa.RecordBatch:
    """One row of `SCHEMA`. Raises TrajectoryError for a string that is not Unicode text (lone surrogates)."""
    identity, outcome, spans = trajectory.identity, trajectory.outcome, trajectory.spans
    row: dict[str, Any] = {
        "episode_id": identity.episode_id,
        "task_id": identity.task_id,
        "draw": identity.draw,
        "seed": identity.seed,
        "tokens": trajectory.tokens,
        "logprobs": trajectory.logprobs,
        "versions": trajectory.versions,
        "span_kind": [span.kind.value for span in spans],
        "span_start": [span.start for span in spans],
        "span_end": [span.end for span in spans],
        "span_turn": [span.turn for span in spans],
        "reward": outcome.reward,
        "status": outcome.status.value,
        "exit_reason": outcome.exit_reason.value,
        "grade": json.dumps(outcome.grade),
        "sampling_temperature": identity.sampling.temperature,
        "sampling_top_p": identity.sampling.top_p,
        "lineage": identity.lineage,
        "agent": identity.agent,
        "sandbox": identity.sandbox,
        "tokenizer": identity.tokenizer,
        "timings": json.dumps(trajectory.timings),
        "patch": trajectory.patch,
    }
    try:
        arrays = [_column(field.type, row[field.name]) for field in SCHEMA]
    except (UnicodeError, pa.ArrowException, OverflowError, TypeError) as error:
        raise TrajectoryError(f"episode {identity.episode_id!r} cannot be stored: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _column(kind: pa.DataType, value: Any) -> pa.Array:
    """One-row column. Built from buffers: `pa.array` would import pandas (a second or two in the first append)."""
    if pa.types.is_list(kind):
        offsets = numbers(pa.int32(), np.array([0, len(value)]))
        return pa.ListArray.from_arrays(offsets, _values(kind.value_type, value), type=kind)
    if value is None:
        return pa.nulls(1, kind)
    return _values(kind, [value])


def _values(kind: pa.DataType, values: Any) -> pa.Array:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = [value.encode() if isinstance(value, str) else value for value in values]
        offsets = np.cumsum([0, *map(len, data)], dtype=np.int32)
        return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))])
    return numbers(kind, values)


def numbers(kind: pa.DataType, values: Any) -> pa.Array:
    """An array of a fixed-width numeric type, without nulls."""
    array = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def from_batch(batch: pa.RecordBatch) -> Iterator[tuple[int, Trajectory | RowError]]:
    """(row number, trajectory) for each row; a row that is none comes as its error, so that the next can be read."""
    columns = {name: batch.column(name) for name in SCHEMA.names if name in batch.schema.names}
    missing = [name for name in SCHEMA.names if name not in columns]
    for row in range(batch.num_rows):
        if missing:
            yield row, RowError(f"row {row} has no column {', '.join(missing)}")
        else:
            yield row, _row(columns, row)


def _row(columns: dict[str, pa.Array], row: int) -> Trajectory | RowError:
    def get(name: str) -> Any:
        return columns[name][row].as_py()

    def axis(name: str) -> NDArray[Any]:
        values = columns[name][row].values
        if values.null_count:
            raise ValueError(f"{name} holds nulls")
        kind = np.dtype(values.type.to_pandas_dtype())
        if not len(values):
            return np.zeros(0, kind)
        # From the buffer: `to_numpy` would import pandas, as above.
        return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * kind.itemsize)

    episode_id = ""
    try:
        episode_id = get("episode_id")
        return _trajectory(get, axis, episode_id)
    except (ValueError, TypeError, AttributeError, KeyError, pa.ArrowException) as error:
        return RowError(f"episode {episode_id!r} (row {row}) is no valid trajectory: {error}", episode_id or "")


def _trajectory(get: Callable[[str], Any], axis: Callable[[str], NDArray[Any]], episode_id: str) -> Trajectory:
    ends = [get(name) for name in ("span_kind", "span_start", "span_end", "span_turn")]
    return Trajectory(
        tokens=axis("tokens"),
        logprobs=axis("logprobs"),
        versions=axis("versions"),
        spans=tuple(Span(*span) for span in zip(*ends, strict=True)),
        outcome=Outcome(get("status"), get("exit_reason"), get("reward"), json.loads(get("grade"))),
        identity=Identity(
            episode_id=episode_id,
            task_id=get("task_id"),
            draw=get("draw"),
            seed=get("seed"),
            tokenizer=get("tokenizer"),
            sampling=Sampling(get("sampling_temperature"), get("sampling_top_p")),
            lineage=get("lineage"),
            agent=get("agent"),
            sandbox=get("sandbox"),
        ),
        timings=json.loads(get("timings")),
        patch=get("patch"),
    )
