"""The framed write-ahead log file: header, then one frame per trajectory.

    header  magic line, version, first position, sync word, schema length, checksum, Arrow schema
    frame   sync word, payload length, position, checksum (of length, position, payload), Arrow record batch

The sync word is random per file: a reader that meets damage looks for the next frame by it, and nothing that a model
wrote into a patch can pass for a frame. Bytes at the end that are no whole frame are *torn* (a killed writer, or one
at work right now); bytes before a whole frame that are none are *corrupt*. The file is born whole (temporary file,
fsync, rename), so a header is never torn.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data.arrow import FORMAT, FORMAT_VERSION, SCHEMA
from data.atomic import write_atomically
from data.log_report import LogCorrupt, LogFormatError

MAGIC = FORMAT.encode() + b"\n"
_FIXED = struct.Struct("<IQ8sI I")  # version, first position, sync word, schema length, checksum
_FRAME = struct.Struct("<8sIQI")  # sync word, payload length, position, checksum
_COVERED = struct.Struct("<IQ")  # what the frame's checksum covers besides the payload


@dataclass(frozen=True)
class Header:
    first: int
    sync: bytes
    schema: pa.Schema
    size: int
    """Byte offset of the first frame."""


@dataclass(frozen=True)
class Record:
    position: int
    payload: bytes
    offset: int
    end: int

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The decoded row. Raises pa.ArrowException."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.payload), schema)


@dataclass(frozen=True)
class Damage:
    """Bytes [offset, end) hold no whole frame. `torn`: nothing whole follows."""

    offset: int
    end: int
    torn: bool


def create(path: Path, first: int) -> None:
    """Make an empty file whose first record will be at position `first`; durable on return. Raises OSError."""
    schema = SCHEMA.serialize().to_pybytes()
    sync = os.urandom(8)
    version = (FORMAT_VERSION, first, sync, len(schema))
    checksum = zlib.crc32(_FIXED.pack(*version, 0) + schema)
    write_atomically(path, MAGIC + _FIXED.pack(*version, checksum) + schema)


def read_header(descriptor: int, path: Path) -> Header:
    """Raises LogFormatError for another version, LogCorrupt for anything that is no header of ours."""
    start = len(MAGIC) + _FIXED.size
    head = os.pread(descriptor, start, 0)
    if not head.startswith(MAGIC) or len(head) < start:
        raise LogCorrupt(f"{path} is no write-ahead log of format {FORMAT}; move it out of the log's directory")
    version, first, sync, length, checksum = _FIXED.unpack_from(head, len(MAGIC))
    if version != FORMAT_VERSION:
        raise LogFormatError(
            f"{path} has format version {version}, this program reads version {FORMAT_VERSION}; "
            "use the program that wrote it, or give another log directory"
        )
    schema = os.pread(descriptor, length, start)
    if zlib.crc32(_FIXED.pack(version, first, sync, length, 0) + schema) != checksum:
        raise LogCorrupt(f"the header of {path} is damaged; restore the file from a copy or move it away")
    return Header(first, sync, pa.ipc.read_schema(pa.py_buffer(schema)), start + length)


def frame(header: Header, position: int, batch: pa.RecordBatch) -> bytes:
    payload = batch.serialize().to_pybytes()
    checksum = zlib.crc32(payload, zlib.crc32(_COVERED.pack(len(payload), position)))
    return _FRAME.pack(header.sync, len(payload), position, checksum) + payload


def read_frames(descriptor: int, header: Header, offset: int, position: int) -> Iterator[Record | Damage]:
    """Records from byte `offset` on, whose positions are at least `position`; damage where it lies. Ends at the end
    of the file as it is now; a torn end comes last, and reading can go on at its offset when the file has grown."""
    while True:
        record = _read_frame(descriptor, header, offset, position)
        if record is None:
            size = os.fstat(descriptor).st_size
            if offset >= size:
                return
            later = _next_frame(descriptor, header, offset, size, position)
            if later is None:
                yield Damage(offset, size, torn=True)
                return
            # The writer may have finished this record, and the later one, since we looked.
            record = _read_frame(descriptor, header, offset, position)
            if record is None:
                yield Damage(offset, later.offset, torn=False)
                record = later
        yield record
        offset, position = record.end, record.position + 1


def _read_frame(descriptor: int, header: Header, offset: int, position: int) -> Record | None:
    head = os.pread(descriptor, _FRAME.size, offset)
    if len(head) < _FRAME.size:
        return None
    sync, length, at, checksum = _FRAME.unpack(head)
    start = offset + _FRAME.size
    if sync != header.sync or at < position or start + length > os.fstat(descriptor).st_size:
        return None
    payload = os.pread(descriptor, length, start)
    if len(payload) < length or zlib.crc32(payload, zlib.crc32(_COVERED.pack(length, at))) != checksum:
        return None
    return Record(at, payload, offset, start + length)


def _next_frame(descriptor: int, header: Header, offset: int, size: int, position: int) -> Record | None:
    """The first whole frame after the bad one at `offset`."""
    rest = os.pread(descriptor, size - offset, offset)
    at = rest.find(header.sync, 1)
    while at >= 0:
        record = _read_frame(descriptor, header, offset + at, position)
        if record is not None:
            return record
        at = rest.find(header.sync, at + 1)
    return None
