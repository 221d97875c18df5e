"""Whatever the driver reads of an agent, a model or tested code costs time in proportion to its size.

Each input is one on which a careless reader is quadratic: it would take minutes here. The limit counts this thread's
processor seconds, so a busy machine does not break it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.swe.guard import Judged, patch_findings
from envs.swe.parsers import PARSERS, _said, parse_log
from envs.swe.row import read_row
from envs.tools import text
from tests.envs.swe_support import tiny_task

LIMIT_S = 4.0
"""Twenty times what the slowest takes; a quadratic reader takes more than a hundred times."""
SIZE = 400_000


def quick(work: Callable[[], object]) -> None:
    began = time.thread_time()
    work()
    assert time.thread_time() - began < LIMIT_S


def times(piece: str, size: int = SIZE) -> str:
    return piece * (size // len(piece))


def _refused(data: bytes, old: str) -> None:
    with pytest.raises(text.EditRefused):
        text.replace_once("a.py", data, old, "y")


@pytest.mark.parametrize("piece", [b"x", b"x\n", b"\n", b"\xff", b"ab cd ef\n", b"x\r\n", b"aaab" * 50 + b"\n"])
def test_a_file_of_one_piece(piece: bytes) -> None:
    data = piece * ((8 << 20) // len(piece))
    quick(lambda: _refused(data, "x" if b"x" in piece else piece.decode("latin-1")))
    quick(lambda: _refused(data, "zz" + "aaab" * 5000))
    quick(lambda: _refused(data, "aaac" * 50))
    quick(lambda: text.view_text(data, 1_000_000, 1_000_003))
    quick(lambda: text.view_text(data))
    quick(lambda: text.count_lines(data))
    quick(lambda: text.bash_text(data[: 1 << 20], 1))


def test_names_like_a_missing_one() -> None:
    many = ["a" * 200 + f"/{number}.py" for number in range(5000)]
    quick(lambda: text.not_found_text("a" * 1_000_000, many))
    quick(lambda: text.not_found_text("a" * 199 + "/x.py", many))


_LINES = (
    "PASSED ", "a::", "x::y PASSED (", " PASSED (a) ", "1 a, ", "1 a", "=", "[gw0] PASSED a::", "skipped '",
    'skipped "', " - ", " - [", "FAILED a - ", "Ran 1 ", "(", "a (b) ... ", "\x1b[", "1;", " ", "a b ", "= ", "[ 1%]",
)  # fmt: skip
_BEFORE = (
    "",
    "x::y PASSED",
    "[gw0] PASSED a::",
    "test_a (m.C) ... ",
    "=== short test summary info ===\nFAILED ",
    "\x1b[",
)
_AFTER = ("", "x", "\x0b", "'x", " [ 5%]", "\n== 1 passed in 1s ==")


@pytest.mark.parametrize("parser", sorted({parser: name for name, parser in PARSERS.items()}.values()))
def test_a_line_of_one_piece(parser: str) -> None:
    known = {"a", "b::c", "a - " * 50}
    for piece in _LINES:
        for before in _BEFORE:
            for after in _AFTER:
                line = before + times(piece, 40_000) + after
                quick(lambda line=line: parse_log(parser, line, 0, known))  # type: ignore[misc]


def test_many_lines() -> None:
    known = {f"tests/test_a.py::test_{number}" for number in range(5000)}
    lines = "\n".join(f"FAILED tests/test_b.py::test_{number} - why" for number in range(20_000))
    log = f"=== short test summary info ===\n{lines}\n=== 20000 failed in 1s ==="
    quick(lambda: parse_log("pytest", log, 1, known))


def test_a_patch_of_one_piece() -> None:
    row = dataclasses.replace(read_row(tiny_task()), hidden=tuple(f"tests/test_{number}.py" for number in range(300)))
    for piece in (
        b"+++ b/tests/x.py\n",
        b"+PASSED ",
        b"diff --git a/x.pth b/",
        b"+Ran 1",
        b"+",
        b"+x\n",
        b"+++ b/" + b"t/" * 200_000,
        b"--- /dev/null\n+++ b/tests/x.py\n@@ -0,0 +1 @@\n+import x\n",
        b"--- a/a.py\n+++ b/a.py\n@@ -0,0 +1,50000 @@\n" + b"+x = (1, [\n" * 50_000,
        b"--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+x = " + b"(" * 50_000 + b"\n",
        b"--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+x = " + b"'a' + " * 50_000 + b"'b'\n",
    ):
        patch = piece * max(1, 1_000_000 // len(piece))
        quick(lambda patch=patch: patch_findings(Judged(row), patch))  # type: ignore[misc]


# What a `-v` line says, as one pattern each: right, and far too slow on hostile lines.
_LINE = re.compile(
    r"(?P<id>\S[^\n]*?::[^\n]*?) (?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \(.*\))?(?: +\[ *\d+%\])?$"
)
_XDIST = re.compile(r"\[gw\d+\] (?:\[ *\d+%\] )?(?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<id>\S+?::.+?) *$")
_PIECES = st.sampled_from(
    [
        "a",
        "::",
        " ",
        "  ",
        "(",
        ")",
        "PASSED",
        "ERROR",
        "[",
        "]",
        "[ 5%]",
        "[100%]",
        "[gw0] ",
        "%",
        "5",
        "x::y",
        " PASSED",
    ]
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_a_line_is_read_as_its_pattern_says(line: str) -> None:
    match = _XDIST.match(line) or _LINE.match(line)
    assert _said(line) == (None if match is None else (match["id"], match["word"]))


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bc"]), max_size=30).map(b"".join), st.data())
def test_lines_of_a_file(data: bytes, draw: st.DataObject) -> None:
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert text.count_lines(data) == len(lines)
    start = draw.draw(st.integers(1, len(lines) + 2))
    end = draw.draw(st.none() | st.integers(start, len(lines) + 3))
    shown = b"\n".join(lines[start - 1 : len(lines) if end is None else end]).decode()
    assert text.view_text(data, start, end) == shown
