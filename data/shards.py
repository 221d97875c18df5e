"""Sealed shards: Parquet files of a few hundred episodes that `datasets`, pandas and DuckDB read directly.

A shard appears whole or not at all (temporary file, fsync, atomic rename, directory fsync) and never changes. Its name
gives the positions it covers, `shard-<first>-<end>.parquet`; the `position` column gives each row's own (a record that
the storage destroyed leaves a hole).

Parquet is read on the calling thread (`use_threads=False`): a process that ends right after a threaded read of
pyarrow 26 dies of SIGABRT now and then (6 of 25 short scripts on two busy cores, 0 of 40 without threads).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.arrow import FORMAT, FORMAT_VERSION, POSITION, SCHEMA, RowError, from_batch, numbers
from data.atomic import replacing
from data.log_report import LogCorrupt, LogFormatError
from data.trajectory import Trajectory

_KEY_FORMAT, _KEY_VERSION = b"sao.format", b"sao.version"
_SHARD_SCHEMA = pa.schema(
    [pa.field(POSITION, pa.int64(), nullable=False), *SCHEMA],
    metadata={_KEY_FORMAT: FORMAT.encode(), _KEY_VERSION: str(FORMAT_VERSION).encode()},
)
_ROW_GROUP = 64
"""Rows that a reader holds in memory at once."""


def write(path: Path, positions: Sequence[int], rows: Sequence[pa.RecordBatch]) -> None:
    """Write one-row batches as a shard; durable on return, nothing left behind on failure. Raises OSError."""
    table = pa.Table.from_batches(rows, SCHEMA)
    table = table.add_column(0, _SHARD_SCHEMA.field(0), numbers(pa.int64(), positions)).cast(_SHARD_SCHEMA)
    with replacing(path) as file:
        pq.write_table(table, file, row_group_size=_ROW_GROUP, compression="zstd")


def read(path: Path, position: int = 0) -> Iterator[tuple[int, Trajectory | RowError]]:
    """(position, trajectory or its error) from `position` on. Raises LogCorrupt, LogFormatError."""
    with _open(path) as file:
        for group in range(file.num_row_groups):
            try:
                positions = file.read_row_group(group, columns=[POSITION], use_threads=False).column(0).to_pylist()
                if positions[-1] < position:
                    continue
                batches = file.read_row_group(group, use_threads=False).to_batches()
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from error
            start = 0
            for batch in batches:
                for row, item in from_batch(batch):
                    if positions[start + row] >= position:
                        yield positions[start + row], item
                start += batch.num_rows


def read_episode_ids(path: Path) -> list[str]:
    """Ids of the shard's rows, in order; reads that column only. Raises as `read`."""
    with _open(path) as file:
        try:
            return file.read(columns=["episode_id"], use_threads=False).column(0).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error


@contextlib.contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    with contextlib.ExitStack() as stack:
        try:
            file = pq.ParquetFile(stack.enter_context(open(path, "rb")))
            metadata = file.schema_arrow.metadata or {}
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error
        if metadata.get(_KEY_FORMAT) != FORMAT.encode():
            raise LogCorrupt(f"{path} is Parquet but no shard of a trajectory log; move it out of the log's directory")
        version = metadata.get(_KEY_VERSION, b"").decode()
        if version != str(FORMAT_VERSION):
            raise LogFormatError(
                f"{path} has format version {version or 'unknown'}, this program reads version {FORMAT_VERSION}; "
                "use the program that wrote it, or give another log directory"
            )
        missing = [name for name in _SHARD_SCHEMA.names if name not in file.schema_arrow.names]
        if missing:
            raise LogCorrupt(f"{path} has no column {', '.join(missing)}; restore it from a copy or move it away")
        yield file


def _damaged(path: Path, error: Exception) -> LogCorrupt:
    return LogCorrupt(
        f"shard {path} cannot be read ({error}); shards are written whole, so the storage damaged it: restore it from "
        "a copy, or move it out of the directory to read on without its episodes"
    )
