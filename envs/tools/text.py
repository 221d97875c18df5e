"""The words the agent reads: pure functions from results to observation texts.

Promises: no sandbox needed, so demonstrations for fine-tuning get exactly the strings that a real episode shows;
every text is valid Unicode without lone surrogates; `cap` keeps head and tail and says how much is missing; the time of
each is linear in what it is given, whatever that holds.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence

from envs.tools.terminal import screen_text

SUBMITTED = "Submitted."
NOTED = "Noted."
EMPTY_FILE = "(empty file)"
EMPTY_DIRECTORY = "(empty directory)"
NO_OUTPUT = "(no output)"
_NOTE = 62
"""Room for the note that stands for what is left out."""
_NEAREST_CUTOFF = 0.5
_COMPARED_CHARS = 200
"""Of a name or line, when the one most like another is looked for."""
_SEARCHED_CHARS = 300_000
"""Of all of them together: the search must stay quick on generated files."""
_COMPARED_CLOSELY = 24
_PLACES = 10
"""Lines named where a text stands several times."""
_PLAIN_DECODE = 1 << 16
"""Bytes up to which output that is not UTF-8 is spelled out whole."""
_BLOCK = 1 << 16
_REDRAWN_COST = 32
"""What a byte of output with control sequences takes to read, plain ones being 1."""


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
    """UTF-8 as it is; bytes that are not UTF-8 as \\xNN (lone surrogates would break tokenizers).

    Of much that is not UTF-8 the middle is left out: nobody reads it, and to spell it takes seconds."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        if len(data) <= _PLAIN_DECODE:
            return data.decode("utf-8", "backslashreplace")
    half = _PLAIN_DECODE // 2
    head, tail = data[:half], data[-half:]
    note = f"\n[... {len(data) - 2 * half} of {len(data)} bytes left out: they are not UTF-8 ...]\n"
    return head.decode("utf-8", "backslashreplace") + note + tail.decode("utf-8", "backslashreplace")


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:8192]


def _line_start(data: bytes, number: int) -> int:
    """Where line `number` (from 1) begins; the end of the data when it has fewer lines."""
    left, at = number - 1, 0
    while left and at < len(data):
        newlines = data.count(b"\n", at, at + _BLOCK)
        if newlines >= left:
            break
        left, at = left - newlines, at + _BLOCK
    for _ in range(left):
        at = data.find(b"\n", at) + 1
        if not at:
            return len(data)
    return min(at, len(data))


def view_text(data: bytes, start: int | None = None, end: int | None = None) -> str:
    """A file's text verbatim, final newline stripped; with start/end those lines (from 1, both included)."""
    if is_binary(data):
        return f"(binary file, {len(data)} bytes)"
    if start is None and end is None:
        text = show_bytes(data.removesuffix(b"\n"))
        return text if data else EMPTY_FILE
    first = _line_start(data, 1 if start is None else start)
    last = len(data) if end is None else _line_start(data, end + 1)
    return show_bytes(data[first:last].removesuffix(b"\n"))


def count_lines(data: bytes) -> int:
    """A final newline opens no further line; CR stays part of the line."""
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def listing_text(names: Sequence[str]) -> str:
    """A directory: one name a line, sorted, directories end in a slash."""
    return "\n".join(sorted(names)) if names else EMPTY_DIRECTORY


def edited_text(path: str) -> str:
    return f"Edited {path}."


def created_text(path: str) -> str:
    return f"Created {path}."


def bash_text(
    output: bytes,
    exit_code: int,
    *,
    timed_out_after_s: float | None = None,
    most_s: float | None = None,
    truncated: int = 0,
    raw: bool = False,
) -> str:
    """Output as a terminal would show it (`raw`: as it was written), then what a shell would not show: exit code when
    not 0, a time-out, bytes lost at the source."""
    notes = []
    if truncated:
        notes.append(f"[{truncated} bytes of output were left out of its middle; send long output to a file]")
    if timed_out_after_s is not None:
        ask = "Run something shorter, or ask for a larger timeout"
        if most_s is not None and timed_out_after_s >= most_s:
            ask = "That is the most there is: run something shorter, or in parts"
        elif most_s is not None:
            ask += f", of at most {most_s:g} s"
        notes.append(f"[timed out after {timed_out_after_s:g} s: all processes were ended, background jobs too. {ask}]")
    elif exit_code != 0:
        notes.append(f"[exit code {exit_code}]")
    body = show_bytes(output)
    body = (body if raw else screen_text(body)).removesuffix("\n")
    if not body and not notes:
        return NO_OUTPUT
    return "\n".join([body, *notes] if body else notes)


def reading_cost(output: bytes, *, raw: bool = False) -> int:
    """Of `bash_text`, in bytes of plain output."""
    redrawn = not raw and any(control in output for control in (b"\x1b", b"\r", b"\b"))
    return len(output) * _REDRAWN_COST if redrawn else len(output)


def error_text(name: str, message: str) -> str:
    return f"Error ({name}): {message}"


def closest(wanted: str, candidates: Iterable[str], count: int, cutoff: float) -> list[int]:
    """Places of the candidates most like `wanted`, best first, all at least `cutoff` alike (0 to 1, as difflib has it).

    Only those that share most three-letter pieces with it are compared closely, so the work has a bound."""
    wanted = wanted[:_COMPARED_CHARS]
    pieces = _pieces(wanted)
    searched, shared = 0, []
    for place, candidate in enumerate(candidates):
        candidate = candidate[:_COMPARED_CHARS]
        searched += len(candidate)
        if searched > _SEARCHED_CHARS:
            break
        own = _pieces(candidate)
        if common := len(own & pieces):
            shared.append((2 * common / (len(own) + len(pieces)), -place, candidate))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    found = []
    for _, place, candidate in heapq.nlargest(_COMPARED_CLOSELY, shared):
        matcher.set_seq1(candidate)
        if (ratio := matcher.ratio()) >= cutoff:
            found.append((ratio, place))
    return [-place for _, place in heapq.nlargest(count, found)]


def _pieces(text: str) -> set[str]:
    """All three-letter pieces, also those that begin or end a short text."""
    padded = f" {text} "
    return {padded[at : at + 3] for at in range(max(1, len(padded) - 2))}


def not_found_text(path: str, known: Iterable[str]) -> str:
    """No such file, and the names most like it. `known` are paths relative to the repository."""
    known = list(known)
    tail = path.rsplit("/", 1)[-1]
    same_name = [name for name in known if name.rsplit("/", 1)[-1] == tail]
    close = [known[place] for place in closest(path.lstrip("./"), known, 5, 0.5)]
    tails = list({name.rsplit("/", 1)[-1]: name for name in known}.items())
    close += [tails[place][1] for place in closest(tail, [name for name, _ in tails], 3, 0.6)]
    similar = list(dict.fromkeys([*same_name, *close]))[:5]
    path = cap(path, 400)
    if similar:
        return f"no file {path}. Similar: {', '.join(similar)}."
    if known:
        return f"no file {path}. The repository has {len(known)} files; view its directory '.' to list them."
    return f"no file {path}, and the repository has no files."


def old_str_missing_text(path: str, data: bytes, old_str: str) -> str:
    """old_str is not there: the line that is most like its first line, so that the next try can copy it."""
    wanted = next((line for line in old_str.split("\n") if line.strip()), "").strip()
    message = f"old_str is not in {path}. Copy it exactly from the file, with its spaces."
    if not wanted:
        return message
    # Of a file that is longer than what is searched anyway, the rest need not be taken apart.
    lines = data[: 2 * _SEARCHED_CHARS].split(b"\n", _SEARCHED_CHARS)
    shown = [show_bytes(line[:_COMPARED_CHARS].lstrip()).rstrip() for line in lines]
    best = closest(wanted, shown, 1, _NEAREST_CUTOFF)
    if not best:
        return message
    return f"{message} Nearest, line {best[0] + 1}:\n{cap(show_bytes(lines[best[0]][:2000]), 400)}"


def old_str_ambiguous_text(path: str, data: bytes, old: bytes) -> str:
    """old_str is there several times: where, and what to do."""
    times, numbers, line, counted, at = data.count(old), [], 1, 0, -len(old)
    for _ in range(min(times, _PLACES)):
        at = data.find(old, at + len(old))
        line += data.count(b"\n", counted, at)
        counted = at
        numbers.append(line)
    places = ", ".join(map(str, numbers)) + (", ..." if times > _PLACES else "")
    return f"old_str is {times} times in {path} (lines {places}). Add lines around it until it is unique."


class EditRefused(ValueError):
    """`str_replace` cannot be done; `name` names the error, the text tells the model what to do."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[1])


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
