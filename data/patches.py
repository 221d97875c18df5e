"""Unified diffs as text: a patch turned round.

Promises: `reverse_patch(p)` undoes what `p` does, for text files (new, deleted, renamed, with changed modes); a patch
that is cut short, binary, or copies files is refused, never half turned.
"""

from __future__ import annotations

import re

from data.task import TaskError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_SWAPPED = (
    ("new file mode ", "deleted file mode "),
    ("old mode ", "new mode "),
    ("rename from ", "rename to "),
)


def reverse_patch(patch: str, where: str) -> str:
    """`where` names the patch in errors. Raises TaskError."""
    lines = patch.removesuffix("\n").split("\n") if patch else []
    made: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if found := _HUNK.match(line):
            made.append(_range(found))
            at = _hunk(lines, at + 1, found, made, where)
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            made += _names(line[4:], lines[at + 1][4:])
            at += 2
        elif line.startswith(("GIT binary patch", "Binary files ", "copy from ")):
            raise TaskError(f"{where}: the patch cannot be turned round: {line[:60]}")
        else:
            made.append(_header(line))
            at += 1
    return _ordered(made)


def _range(found: re.Match[str]) -> str:
    def side(start: str, count: str | None) -> str:
        return start if count is None else f"{start},{count}"

    return f"@@ -{side(found[3], found[4])} +{side(found[1], found[2])} @@{found[5]}"


def _hunk(lines: list[str], at: int, found: re.Match[str], made: list[str], where: str) -> int:
    old, new = int(found[2] or 1) if found[2] != "0" else 0, int(found[4] or 1) if found[4] != "0" else 0
    while old > 0 or new > 0:
        if at >= len(lines):
            raise TaskError(f"{where}: the patch ends in the middle of a hunk")
        line = lines[at]
        sign = line[:1] or " "
        if sign not in " +-\\":
            raise TaskError(f"{where}: the patch has a line in a hunk that starts with {sign!r}")
        old -= sign in " -"
        new -= sign in " +"
        made.append({"+": "-", "-": "+"}.get(sign, sign) + line[1:])
        at += 1
    if at < len(lines) and lines[at].startswith("\\"):
        made.append(lines[at])
        at += 1
    return at


def _names(old: str, new: str) -> list[str]:
    def flipped(name: str, prefix: str) -> str:
        return name if name == "/dev/null" else re.sub(r'^("?)[ab]/', rf"\g<1>{prefix}/", name)

    return [f"--- {flipped(new, 'a')}", f"+++ {flipped(old, 'b')}"]


def _header(line: str) -> str:
    if found := re.match(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(.*)", line):
        return f"index {found[2]}..{found[1]}{found[3]}"
    if found := re.match(r"diff --git a/(.+) b/(.+)", line):
        return f"diff --git a/{found[2]} b/{found[1]}"
    for one, other in _SWAPPED:
        if line.startswith(one):
            return other + line.removeprefix(one)
        if line.startswith(other):
            return one + line.removeprefix(other)
    return line


def _ordered(lines: list[str]) -> str:
    """Git wants `old mode` and `rename from` before their partners."""
    for i in range(len(lines) - 1):
        for one, other in _SWAPPED[1:]:
            if lines[i].startswith(other) and lines[i + 1].startswith(one):
                lines[i], lines[i + 1] = lines[i + 1], lines[i]
    return "".join(line + "\n" for line in lines)
