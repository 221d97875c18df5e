"""Which files a patch changes, and how, read from its text. Nothing is applied; a patch may be anything.

Promises: hunks are followed by their counts, so file content that looks like patch headers is not taken for one; git's
quoted names, renames, modes, binary parts and plain `---`/`+++` patches are understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_GIT = re.compile(rb"diff --git (?P<names>.+)$")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-7]{1,3})")
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_NONE = "/dev/null"


@dataclass
class FileChange:
    """`old` is None for a new file, `new` None for a deleted one. Names are text, bytes beyond UTF-8 as surrogates."""

    old: str | None
    new: str | None
    mode: str = ""
    """New file mode where the patch names one (120000: symbolic link)."""
    binary: bool = False
    added: list[bytes] = field(default_factory=list)
    """Lines that the patch adds, without the plus sign and the newline."""
    removed: list[bytes] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    """Numbers of the added lines in the new file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.new, self.old) if path is not None))

    @property
    def created(self) -> bool:
        return self.old is None or self.old != self.new


def changed_files(patch: bytes) -> list[FileChange]:
    return [change for change, _ in parts_of(patch)]


def parts_of(patch: bytes) -> list[tuple[FileChange, bytes]]:
    """Every file's change with its own part of the patch; what stands between the parts is left out."""
    lines = patch.split(b"\n")
    found: list[tuple[FileChange, bytes]] = []
    at = 0
    while at < len(lines):
        start, line = at, lines[at].removesuffix(b"\r")
        if match := _GIT.match(line):
            change, at = _git_file(lines, at + 1, match["names"])
        elif line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            change = FileChange(_name(line[4:]), _name(lines[at + 1][4:].removesuffix(b"\r")))
            at = _hunks(lines, at + 2, change)
        else:
            at += 1
            continue
        found.append((change, b"\n".join([*lines[start:at], b""])))
    return found


def _git_file(lines: list[bytes], at: int, names: bytes) -> tuple[FileChange, int]:
    old, new = _both(names)
    change = FileChange(old, new)
    while at < len(lines):
        line = lines[at].removesuffix(b"\r")
        if line.startswith(b"new file mode "):
            change.old, change.mode = None, line.rsplit(b" ", 1)[1].decode("ascii", "replace")
        elif line.startswith(b"deleted file mode "):
            change.new = None
        elif line.startswith(b"new mode "):
            change.mode = line.rsplit(b" ", 1)[1].decode("ascii", "replace")
        elif line.startswith((b"rename from ", b"copy from ")):
            change.old = _text(_unquote(line.split(b" ", 2)[2])) if line.startswith(b"rename") else None
        elif line.startswith((b"rename to ", b"copy to ")):
            change.new = _text(_unquote(line.split(b" ", 2)[2]))
        elif line.startswith(b"Binary files ") or line == b"GIT binary patch":
            change.binary = True
            while at + 1 < len(lines) and not _GIT.match(lines[at + 1]):
                at += 1
            return change, at + 1
        elif line.startswith(b"--- "):
            if at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
                first, second = _name(line[4:]), _name(lines[at + 1][4:].removesuffix(b"\r"))
                change.old = first if change.old is not None else None
                change.new = second if change.new is not None else None
                return change, _hunks(lines, at + 2, change)
        elif not line.startswith((b"index ", b"old mode ", b"similarity index ", b"dissimilarity index ")):
            return change, at
        at += 1
    return change, at


def _hunks(lines: list[bytes], at: int, change: FileChange) -> int:
    while at < len(lines) and (match := _HUNK.match(lines[at])):
        before, after = int(match[1] or 1), int(match[3] or 1)
        number = int(match[2])
        at += 1
        while at < len(lines) and (before > 0 or after > 0):
            line = lines[at]
            if line.startswith(b"+"):
                change.added.append(line[1:])
                change.lines.add(number)
                after, number = after - 1, number + 1
            elif line.startswith(b"-"):
                change.removed.append(line[1:])
                before -= 1
            elif not line.startswith(b"\\"):
                before, after, number = before - 1, after - 1, number + 1
            at += 1
        if at < len(lines) and lines[at].startswith(b"\\"):
            at += 1
    return at


def _both(names: bytes) -> tuple[str, str]:
    """`a/X b/X`: for names with blanks the split is where both halves agree."""
    if names.startswith(b'"') and (quoted := _QUOTED.match(names)):
        return _name(quoted[0]) or "", _name(names[quoted.end() :].strip()) or ""
    old, new = names[: len(names) // 2], names[len(names) // 2 + 1 :]
    if old.startswith(b"a/") and new.startswith(b"b/") and old[2:] == new[2:]:
        return _text(old[2:]), _text(new[2:])
    old, _, new = names.rpartition(b" b/") if b" b/" in names else names.rpartition(b" ")
    return _name(old) or "", _text(new) if b" b/" in names else _name(new) or ""


def _name(raw: bytes) -> str | None:
    """A name of a `---`/`+++` line: prefix and time stamp off; None for /dev/null."""
    raw = _unquote(raw.split(b"\t", 1)[0]) if not raw.startswith(b'"') else _unquote(raw)
    text = _text(raw)
    return None if text == _NONE else text.split("/", 1)[1] if "/" in text else text


def _unquote(raw: bytes) -> bytes:
    quoted = _QUOTED.match(raw)
    return _ESCAPE.sub(_character, quoted[0][1:-1]) if quoted else raw


def _character(escape: re.Match[bytes]) -> bytes:
    name: bytes = escape[1]
    if name.isdigit():
        return bytes([int(name, 8) & 255])
    return _ESCAPES.get(name, name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
