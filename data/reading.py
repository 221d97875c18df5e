"""One way to read what users write: JSON, JSON lines, TOML. Every fault is an `InputError` that names file and place.

Promises: nothing that Python's readers raise gets out (over-long names, symlink loops, NUL in a name, nesting that
exhausts the stack, numbers of 5,000 digits, bytes that are no UTF-8); equal keys in one object are refused, not
resolved; text that stands for no characters (half of a surrogate pair) is refused where it is read, not where it is
first encoded.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_DEPTH = 200
"""Levels of nesting; the readers recurse, and so does whoever walks the value."""
MAX_BYTES = 2 << 30
"""Of one file. What is read is held whole, several times over."""
MAX_NAME = 200
"""Bytes of an id that becomes part of a file's name."""


_ODD_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class InputError(ValueError):
    """A file or a value from outside cannot be used; the text says which, where and why."""


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The file's bytes, unpacked where it is gzip (by its first bytes, whatever its name). Raises InputError."""
    try:
        regular(path)
        data = Path(path).read_bytes()
        return _unpacked(data, path) if data[:2] == b"\x1f\x8b" else data
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"{shown(path)} cannot be read: {_reason(error)}") from error


def regular(path: str | os.PathLike[str]) -> None:
    """Refuses what is no file with an end: reading a pipe waits for its writer, a device may never end. Raises
    InputError, OSError, ValueError."""
    found = os.stat(path)
    for is_it, kind in _ODD_KINDS:
        if is_it(found.st_mode):
            raise InputError(f"{shown(path)} is {kind}, not a file: give the path of a file with the content")
    if found.st_size > MAX_BYTES:
        raise InputError(f"{shown(path)} has {found.st_size:,} bytes, at most {MAX_BYTES:,} are read: split it")


def _unpacked(data: bytes, path: str | os.PathLike[str]) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        made = packed.read(MAX_BYTES + 1)
    if len(made) > MAX_BYTES:
        raise InputError(f"{shown(path)} unpacks to more than the {MAX_BYTES:,} bytes that are read: split it")
    return made


def read_text(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """UTF-8. Raises InputError."""
    try:
        return read_bytes(path).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown(path)} is no UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error


def user_path(given: str | os.PathLike[str], *, real: bool = False) -> Path:
    """A path as a person gives it: `~` is a home, an unknown user's stays as it stands. `real`: absolute, links
    followed as far as they lead; raises InputError for names that no file can have."""
    text = os.fspath(given)
    path = Path(text if "\0" in text else os.path.expanduser(text))
    try:
        return Path(os.path.realpath(path)) if real else path
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(text)} is no path: {_reason(error)}") from error


def is_file(path: str | os.PathLike[str]) -> bool:
    """False also for names that no file can have, where `Path.is_file` may raise."""
    return os.path.isfile(path) if "\0" not in os.fspath(path) else False


def parse_json(text: str, where: str, *, surrogates: bool = False) -> Any:
    """`surrogates`: let lone ones pass (bytes that are no UTF-8, as patches may hold). Raises InputError."""
    try:
        value = json.loads(text, object_pairs_hook=_no_twice)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}{_place(error)}: no valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{where}: no usable JSON: nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{where}: no usable JSON: {error}") from error
    check_value(value, where, surrogates=surrogates)
    return value


def json_lines(path: str | os.PathLike[str], *, surrogates: bool = False) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value); blank lines are passed over. Lines end at newlines alone. Raises InputError."""
    text = read_text(path, errors="surrogateescape" if surrogates else "strict")
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            yield number, parse_json(line.strip(), f"{shown(path)}, line {number}", surrogates=surrogates)


def read_json(path: str | os.PathLike[str], *, surrogates: bool = False) -> Any:
    text = read_text(path, errors="surrogateescape" if surrogates else "strict")
    return parse_json(text.removeprefix("\ufeff"), shown(path), surrogates=surrogates)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON file that holds an object: settings, a state, a manifest. Raises InputError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{shown(path)} holds a JSON {type(value).__name__}, expected an object")
    return value


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Raises InputError."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise InputError(f"{where} is not usable TOML: nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{where} is not usable TOML: {error}") from error
    check_value(value, where)
    return value


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    return parse_toml(read_text(path), shown(path))


def check_value(value: Any, where: str, *, surrogates: bool = False) -> None:
    """Nesting and text of a read value, without recursion. Raises InputError."""
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        one, depth = left.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(one, str):
            if not surrogates:
                check_text(one, where)
        elif isinstance(one, dict):
            left += ((part, depth + 1) for pair in one.items() for part in pair)
        elif isinstance(one, list | tuple):
            left += ((part, depth + 1) for part in one)


def check_text(text: str, where: str) -> None:
    """Raises InputError for text that cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = ascii(text[max(0, error.start - 20) : error.start + 20])
        raise InputError(
            f"{where}: holds half of a surrogate pair (at character {error.start}, in {near}), which is no text"
        ) from error


def check_name(name: str, where: str, *, limit: int = MAX_NAME) -> None:
    """An id that ends up in file names, tables and logs. Raises InputError."""
    check_text(name, where)
    if len(name.encode()) > limit:
        raise InputError(f"{where}: has {len(name.encode())} bytes, at most {limit} are taken")
    if not name.isprintable() or name != name.strip():
        raise InputError(f"{where}: {name!a} holds a control character or a blank at its ends")
    if name in (".", ".."):
        raise InputError(f"{where}: {name!r} is no name")


def shown(path: str | os.PathLike[str]) -> str:
    """A path as messages name it: an over-long one by its ends, what is no text escaped."""
    text = str(path).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= 400 else f"{text[:200]}…{text[-100:]} ({len(text)} characters)"


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _place(error: json.JSONDecodeError) -> str:
    """In a line of JSON lines the caller has named the line."""
    return f", column {error.colno}" if error.lineno == 1 else f", line {error.lineno}, column {error.colno}"


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON itself lets a key come twice and keeps the last."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!a} comes twice in one object")
    return made
