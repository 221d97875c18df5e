"""The words the agent reads: pure functions from results to observation texts.

Promises: no sandbox needed, so demonstrations for fine-tuning get exactly the strings that a real episode shows;
every text is valid Unicode without lone surrogates; `cap` keeps head and tail and says how much is missing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

SUBMITTED = "Submitted."
NOTED = "Noted."
EMPTY_FILE = "(empty file)"
EMPTY_DIRECTORY = "(empty directory)"
NO_OUTPUT = "(no output)"
_NOTE = 62
"""Room for the note that stands for what is left out."""
_NEAREST_CUTOFF = 0.5
_NEAREST_LINES = 5000
"""Lines compared when looking for the nearest one: the search must stay quick on generated files."""


def cap(text: str, limit: int) -> str:
    """At most `limit` characters (from 64 on): the first two thirds and the end, with a note between."""
    if len(text) <= limit:
        return text
    room = max(limit - _NOTE, 2)
    head = room * 2 // 3
    tail = room - head
    note = f"\n[... {len(text) - head - tail} of {len(text)} characters left out ...]\n"
    return text[:head] + note + text[-tail:]


def show_bytes(data: bytes) -> str:
    """UTF-8 as it is; bytes that are not UTF-8 as \\xNN (lone surrogates would break tokenizers)."""
    return data.decode("utf-8", "backslashreplace")


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:8192]


def _lines(data: bytes) -> list[bytes]:
    """Lines without their newline; a final newline opens no further line. CR stays part of the line."""
    lines = data.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    return lines


def view_text(data: bytes, start: int | None = None, end: int | None = None) -> str:
    """A file's text verbatim, final newline stripped; with start/end those lines (from 1, both included)."""
    if is_binary(data):
        return f"(binary file, {len(data)} bytes)"
    if start is None and end is None:
        text = show_bytes(data.removesuffix(b"\n"))
        return text if data else EMPTY_FILE
    lines = _lines(data)
    first = 1 if start is None else start
    last = len(lines) if end is None else min(end, len(lines))
    return show_bytes(b"\n".join(lines[first - 1 : last]))


def count_lines(data: bytes) -> int:
    return len(_lines(data))


def listing_text(names: Sequence[str]) -> str:
    """A directory: one name a line, sorted, directories end in a slash."""
    return "\n".join(sorted(names)) if names else EMPTY_DIRECTORY


def edited_text(path: str) -> str:
    return f"Edited {path}."


def created_text(path: str) -> str:
    return f"Created {path}."


def bash_text(output: bytes, exit_code: int, *, timed_out_after_s: float | None = None, truncated: int = 0) -> str:
    """Output, then what a shell would not show: exit code when not 0, a time-out, bytes lost at the source."""
    notes = []
    if truncated:
        notes.append(f"[{truncated} bytes of output were left out of its middle; send long output to a file]")
    if timed_out_after_s is not None:
        notes.append(
            f"[timed out after {timed_out_after_s:g} s: all processes were ended, background jobs too. "
            "Run something shorter, or ask for a larger timeout]"
        )
    elif exit_code != 0:
        notes.append(f"[exit code {exit_code}]")
    body = show_bytes(output).removesuffix("\n")
    if not body and not notes:
        return NO_OUTPUT
    return "\n".join([body, *notes] if body else notes)


def error_text(name: str, message: str) -> str:
    return f"Error ({name}): {message}"


def not_found_text(path: str, known: Iterable[str]) -> str:
    """No such file, and the names most like it. `known` are paths relative to the repository."""
    known = list(known)
    tail = path.rsplit("/", 1)[-1]
    same_name = [name for name in known if name.rsplit("/", 1)[-1] == tail]
    close = difflib.get_close_matches(path.lstrip("./"), known, n=5, cutoff=0.5)
    by_tail = {name.rsplit("/", 1)[-1]: name for name in known}
    close += [by_tail[hit] for hit in difflib.get_close_matches(tail, list(by_tail), n=3, cutoff=0.6)]
    similar = list(dict.fromkeys([*same_name, *close]))[:5]
    if similar:
        return f"no file {path}. Similar: {', '.join(similar)}."
    if known:
        return f"no file {path}. The repository has {len(known)} files; view its directory '.' to list them."
    return f"no file {path}, and the repository has no files."


def old_str_missing_text(path: str, data: bytes, old_str: str) -> str:
    """old_str is not there: the line that is most like its first line, so that the next try can copy it."""
    wanted = next((line for line in old_str.split("\n") if line.strip()), "")
    message = f"old_str is not in {path}. Copy it exactly from the file, with its spaces."
    best, best_ratio = None, _NEAREST_CUTOFF
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted.strip())
    for number, raw in enumerate(_lines(data)[:_NEAREST_LINES], 1):
        line = show_bytes(raw)
        matcher.set_seq1(line.strip()[:400])
        if matcher.real_quick_ratio() <= best_ratio or matcher.quick_ratio() <= best_ratio:
            continue
        ratio = matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = (number, line), ratio
    if best is None:
        return message
    return f"{message} Nearest, line {best[0]}:\n{cap(best[1], 400)}"


def old_str_ambiguous_text(path: str, data: bytes, old: bytes) -> str:
    """old_str is there several times: where, and what to do."""
    lines, at = [], data.find(old)
    while at >= 0:
        lines.append(data.count(b"\n", 0, at) + 1)
        at = data.find(old, at + len(old))
    places = ", ".join(map(str, lines[:10])) + (", ..." if len(lines) > 10 else "")
    return f"old_str is {len(lines)} times in {path} (lines {places}). Add lines around it until it is unique."


class EditRefused(ValueError):
    """`str_replace` cannot be done; `name` names the error, the text tells the model what to do."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def replace_once(path: str, data: bytes, old_str: str, new_str: str) -> bytes:
    """`data` with the one occurrence of old_str replaced, every other byte kept.

    Where the file ends its lines with CRLF and old_str has bare newlines, both strings are taken with CRLF."""
    if old_str == "":
        raise EditRefused("empty_old_str", "old_str is empty. Give the text to replace, or use create for a new file.")
    if old_str == new_str:
        raise EditRefused("no_change", "old_str and new_str are the same: nothing to edit.")
    old, new = encode_text(old_str), encode_text(new_str)
    if data.count(old) == 0 and b"\r\n" in data and b"\r" not in old:
        old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    found = data.count(old)
    if found == 0:
        raise EditRefused("old_str_not_found", old_str_missing_text(path, data, old_str))
    if found > 1:
        raise EditRefused("old_str_not_unique", old_str_ambiguous_text(path, data, old))
    return data.replace(old, new, 1)


def encode_text(text: str) -> bytes:
    """The model's text as bytes; a JSON escape such as \\ud800 alone is no text."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EditRefused("bad_text", f"the text has a lone surrogate at character {error.start}.") from error
