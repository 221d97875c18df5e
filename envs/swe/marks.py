"""What gives a fix away: its own words, and where they stand in bytes of any kind.

Promises: a mark is one line that the fix writes, or as many neighbouring lines as it takes to be no common phrase;
spaces, blank lines and indentation do not count. Looked into: text, text escaped in strings, diffs, HTML pages, zip,
tar, gzip, bzip2, xz and zlib, one inside the other. Not found: the fix in other words, compiled, or encrypted.
"""

from __future__ import annotations

import bz2
import gzip
import html
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

ENOUGH = 36
"""Letters and digits. At 24 one in ten fixes shares a line with some installed package that knows nothing of it."""
_SMALL_HUNK = 16
"""Letters and digits; below them a whole hunk is no mark."""
_MOST = 400
_MAX_UNPACKED = 64 << 20
_DEEPEST = 4
_STORES = re.compile(rb"\A(?:PACK\0\0\0[\2\3]|# v\d+ git bundle\n)")
_HUNK = re.compile(rb"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_TAG = re.compile(rb'<a [^>]*href="#t?\d+"[^>]*>\d+</a>|<[^<>]{0,400}>')
_IMPORT = re.compile(rb"(?:import|from|#include|using|package)\b")


class Mark(NamedTuple):
    text: bytes
    """Normal lines, joined."""
    line: bytes
    """The longest of them as the file has it: what a file with this mark has among its bytes."""


def normal(data: bytes) -> bytes:
    lines = (b" ".join(line.split()) for line in data.split(b"\n"))
    return b"\n".join(line for line in lines if line)


def _weight(line: bytes) -> int:
    """Letters and digits; those of imports, which strangers share, count a third."""
    count = sum(byte >= 128 or chr(byte).isalnum() for byte in line)
    return count // 3 if _IMPORT.match(line) else count


def marks_of(patch: bytes, *, backwards: bool = False) -> tuple[Mark, ...]:
    """Marks of what `patch` writes; `backwards`: of what it takes away."""
    ours, theirs = (b"-", b"+") if backwards else (b"+", b"-")
    found: dict[bytes, Mark] = {}
    for hunk in _hunks(patch):
        rows = [(line[:1] == ours, line[1:].strip()) for line in hunk if line[:1] in (ours, b" ")]
        rows = [(added, line) for added, line in rows if line]
        moved = {b" ".join(line[1:].split()) for line in hunk if line[:1] == theirs}
        for at, (added, line) in enumerate(rows):
            if not added:
                continue
            start, end = at, at + 1
            weight = 0 if b" ".join(line.split()) in moved else _weight(line)
            while weight < ENOUGH and (end < len(rows) or start > 0):
                if end < len(rows):
                    weight += _weight(rows[end][1])
                    end += 1
                if weight < ENOUGH and start > 0:
                    start -= 1
                    weight += _weight(rows[start][1])
            if weight >= (ENOUGH if end - start < len(rows) else _SMALL_HUNK):
                lines = [each for _, each in rows[start:end]]
                text = normal(b"\n".join(lines))
                found.setdefault(text, Mark(text, max(lines, key=len)))
    return tuple(found.values())[:_MOST]


def patched_names(patch: bytes) -> frozenset[str]:
    """Names, without folders, of the files that `patch` writes."""
    paths = re.findall(rb"^\+\+\+ (?:b/)?([^\t\n]+)", patch, re.MULTILINE)
    return frozenset(path.rsplit(b"/", 1)[-1].decode("utf-8", "replace") for path in paths) - {"__init__.py"}


def _hunks(patch: bytes) -> Iterator[list[bytes]]:
    hunk: list[bytes] | None = None
    for line in patch.split(b"\n"):
        if _HUNK.match(line):
            if hunk:
                yield hunk
            hunk = []
        elif line.startswith((b"diff --git ", b"GIT binary patch")):
            if hunk:
                yield hunk
            hunk = None
        elif hunk is not None and line[:1] in (b"+", b"-", b" "):
            hunk.append(line)
    if hunk:
        yield hunk


def texts(data: bytes) -> Iterator[bytes]:
    """`data` in the ways in which lines may stand in it, made normal."""
    plain = normal(data)
    yield plain
    if b"\n@@ " in data or data.startswith(b"@@ "):
        sides = (line for line in data.split(b"\n") if line[:1] != b"-")
        yield normal(b"\n".join(line[1:] if line[:1] == b"+" else line for line in sides))
    if b"</" in data:
        page = html.unescape(_TAG.sub(b"", data).decode("utf-8", "replace")).replace("\xa0", " ")
        yield normal(page.encode())
    if b"\\n" in data:
        unescaped = data.replace(b"\\n", b"\n").replace(b"\\t", b"\t").replace(b'\\"', b'"').replace(b"\\'", b"'")
        yield normal(b"\n".join(line for line in unescaped.split(b"\n")))
        sides = (line for line in unescaped.split(b"\n") if line[:1] != b"-")
        yield normal(b"\n".join(line.removeprefix(b"+") for line in sides))


def found_in(data: bytes, marks: tuple[Mark, ...], depth: int = 0) -> Iterator[bytes]:
    """Texts of the marks that `data` holds; of a git pack or bundle, which may hold anything, its kind."""
    if _STORES.match(data):
        yield b"a git pack or bundle"
        return
    if depth < _DEEPEST:
        for inner in _unpacked(data):
            yield from found_in(inner, marks, depth + 1)
    if not _may_hold(data, marks):
        return
    for text in texts(data):
        yield from (mark.text for mark in marks if mark.text in text)


def _may_hold(data: bytes, marks: tuple[Mark, ...]) -> bool:
    """A cheap look: text that is dressed up anyway, or a line as the fix has it."""
    return b"</" in data or b"\\n" in data or any(mark.line in data for mark in marks)


def _unpacked(data: bytes) -> Iterator[bytes]:
    try:
        if data.startswith(b"PK\3\4"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                left = _MAX_UNPACKED
                for each in archive.infolist():
                    if not each.is_dir() and each.file_size <= left and not each.flag_bits & 1:
                        left -= each.file_size
                        yield archive.read(each)
        elif data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive_of:
                for member in archive_of:
                    stream = archive_of.extractfile(member) if member.isreg() and not member.issparse() else None
                    if stream is not None:
                        yield stream.read(_MAX_UNPACKED)
        elif data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as unzipped:
                yield unzipped.read(_MAX_UNPACKED)
        elif data.startswith(b"BZh"):
            with bz2.open(io.BytesIO(data)) as plain:
                yield plain.read(_MAX_UNPACKED)
        elif data.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
            with lzma.open(io.BytesIO(data)) as unpacked:
                yield unpacked.read(_MAX_UNPACKED)
        elif data[:1] == b"\x78" and len(data) > 2 and int.from_bytes(data[:2], "big") % 31 == 0:
            yield zlib.decompressobj().decompress(data, _MAX_UNPACKED)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError):
        return  # damaged: nobody else can open it either
    except (NotImplementedError, RuntimeError):  # a way of packing, or a password, that is not known here
        return
