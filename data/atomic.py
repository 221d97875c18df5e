"""Files that are whole or not there: readers see the old content or the new, also after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when the block ends, durably. Whatever ends the block early leaves
    the old file. Raises OSError."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Raises OSError, and then leaves the old file."""
    with replacing(path) as file:
        file.write(content)


def fsync_directory(directory: Path) -> None:
    """Makes names in it (new, renamed, removed files) durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
