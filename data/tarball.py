"""Plain tar archives: regular files and folders, in one fixed form, written and read without `tarfile`.

Promises: any tar reads what `pack` writes; the same members give the same bytes; `unpack` reads that form alone and
refuses everything else (links, devices, other formats, wrong sums), so nothing else can hide in an archive that it
took. `tarfile` is exact for every dialect and costs tenfold, which an episode would pay several times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_BLOCK = 512
_FORM = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x")
_LONG = b"././@LongLink"
_FILE, _FOLDER, _NAME = b"0", b"5", b"L"
_END = bytes(2 * _BLOCK)


class Member(NamedTuple):
    """`data` None: a folder."""

    name: bytes
    data: bytes | None
    mode: int = 0o644
    mtime: int = 0


def pack(members: Iterable[Member]) -> bytes:
    """Uncompressed; names are written as they are."""
    parts: list[bytes] = []
    for name, data, mode, mtime in members:
        if len(name) > 100:
            parts += (_header(_LONG, 0, len(name) + 1, 0, _NAME), _padded(name + b"\0"))
        kind = _FOLDER if data is None else _FILE
        parts.append(_header(name[:100], mode, len(data or b""), mtime, kind))
        if data:
            parts.append(_padded(data))
    parts.append(_END)
    return b"".join(parts)


def unpack(archive: bytes) -> Iterator[Member]:
    """Raises ValueError for what `pack` would not have written."""
    at, long_name = 0, b""
    while (block := archive[at : at + _BLOCK]) != _END[:_BLOCK]:
        if len(block) < _BLOCK:
            raise ValueError("the archive is cut short")
        name, mode, _, _, size, mtime, _, kind, *_ = _FORM.unpack(block)
        name, length = name.rstrip(b"\0"), int(size[:11], 8)
        if block != _header(name, int(mode[:7], 8), length, int(mtime[:11], 8), kind):
            raise ValueError(f"{name!r}: not of the plain form")
        at += _BLOCK
        data, end = archive[at : at + length], at + length + -length % _BLOCK
        if len(archive) < end:
            raise ValueError("the archive is cut short")
        if any(archive[at + length : end]):
            raise ValueError(f"{name!r}: not of the plain form")
        at = end
        if kind == _NAME and name == _LONG and not long_name:
            long_name = data[:-1]
        elif kind in (_FILE, _FOLDER) and (kind == _FILE or not length):
            if long_name and name != long_name[:100]:
                raise ValueError(f"{name!r}: not of the plain form")
            yield Member(long_name or name, data if kind == _FILE else None, int(mode[:7], 8), int(mtime[:11], 8))
            long_name = b""
        else:
            raise ValueError(f"{name!r}: neither a regular file nor a folder")
    if archive.count(b"\0", at) != len(archive) - at or long_name:
        raise ValueError("something follows the archive's end")


def _header(name: bytes, mode: int, size: int, mtime: int, kind: bytes) -> bytes:
    block = _FORM.pack(
        name, b"%07o\0" % mode, b"0000000\0", b"0000000\0", b"%011o\0" % size, b"%011o\0" % mtime, b" " * 8, kind,
        b"", b"ustar\x0000", b"", b"", b"", b"", b"",
    )  # fmt: skip
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _BLOCK)
