"""What a terminal would show: values worked by hand, properties, and inputs that want time or memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.sandbox.contract import SandboxBackend, SandboxSpec
from envs.tools import ToolLimits, ToolSet, text
from envs.tools.terminal import HEIGHT, WIDTH, screen_text
from tests.envs.swe_support import call, embedded, run


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("", ""),
        ("abc\n", "abc\n"),
        ("a\tb  \n\n\x0c\x00c", "a\tb  \n\n\x0c\x00c"),
        # Ends of lines.
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\r\r\nb", "a\nb"),
        # Written over.
        (" 1%\r 2%\r100%\n", "100%\n"),
        ("hello\rbye\n", "byelo\n"),
        ("hello\rbye  \n", "bye\n"),
        ("100%\r    \rDone\n", "Done\n"),
        ("hello\r\x1b[Kbye\n", "bye\n"),
        ("hello\x1b[2K\rbye\n", "bye\n"),
        ("working\b\b\b\b\b\b\bdone   \n", "done\n"),
        ("-\b\\\b|\b/\b \n", "\n"),
        ("abc\x1b[2DX\n", "aXc\n"),
        ("abc\x1b[1GX\n", "Xbc\n"),
        ("abcd\r\x1b[2PX\n", "Xd\n"),
        ("abcd\r\x1b[2@\n", "  abcd\n"),
        ("abcd\r\x1b[2X\n", "  cd\n"),
        ("abcd\x1b[2D\x1b[1Kx\n", "  xd\n"),
        ("a\x1b[3Cb\n", "a   b\n"),
        ("a\x1b7b\x1b8c\n", "ac\n"),
        # Several lines redrawn, the way bars of many downloads are.
        ("a 1\nb 1\n\x1b[2A\x1b[Ka 2\n\x1b[Kb 2\n", "a 2\nb 2\n"),
        ("a\nb\nc\n\x1b[3F\x1b[Jx\n", "x\n"),
        ("a\nb\n\x1b[2A\x1b[Lx\n", "x\na\nb\n"),
        ("a\nb\nc\n\x1b[3A\x1b[2Mx\n", "x\n"),
        ("old\n\x1b[H\x1b[2Jnew\n", "new\n"),
        ("\x1b[3;2Hx", "\n\n x"),
        ("shell\n\x1b[?1049h\x1b[Hpager\x1b[?1049lback\n", "shell\nback\n"),
        # What shows nothing.
        ("\x1b[1;31mred\x1b[0m \x1b[38:2::1:2:3mx\x1b[m\n", "red x\n"),
        ("\x1b]0;title\x07\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\x1b[?25l\a\x1b(B\x1b=\n", "link\n"),
        ("\x1bP1$r0m\x1b\\\x1b_G;AAA\x1b\\x", "x"),
        # Broken ones take nothing else with them.
        ("\x1b]0;never closed\nx\n", "0;never closed\nx\n"),
        ("a\x1b", "a"),
        ("a\x1b[12", "a"),
        ("a\x1b[1\nb", "a\nb"),
        ("a\x1b[" + "9" * 9000 + "Db\n", "b\n"),
        # Wide characters and combining marks keep their columns.
        ("\u4e2d\u6587\rab\n", "ab\u6587\n"),
        ("\u4e2d\u6587\rx\n", "x \u6587\n"),
        ("e\u0301e\u0301\rx\n", "xe\u0301\n"),
        ("a\tb\rX\n", "X\tb\n"),
        ("a\tb\r  X\n", "  X     b\n"),
    ],
)
def test_shown(written: str, shown: str) -> None:
    assert screen_text(written) == shown


def test_three_thousand_updates_are_one_line() -> None:
    bar = "".join(f"\r{n / 30:3.0f}%|{'█' * (n // 100):<30}| {n}/3000 [00:01, 99it/s]" for n in range(3001))
    shown = text.bash_text(f"start\n{bar}\nend\n".encode(), 0)
    assert shown == f"start\n100%|{'█' * 30}| 3000/3000 [00:01, 99it/s]\nend"
    assert text.bash_text(b"1\r2\x1b[m\n", 1, raw=True) == "1\r2\x1b[m\n[exit code 1]"


def test_long_lines_stay_whole_and_what_scrolled_off_stays() -> None:
    line = "x" * (2 * WIDTH + 1)
    assert screen_text(f"{line}\x1b[m\r\n\x1b[m{line}") == f"{line}\n{line}"
    assert screen_text(f"{line}\bY\n") == f"{line[:-1]}Y\n"
    lines = [f"{n}\n" for n in range(HEIGHT + 10)]
    cleared = screen_text("".join(lines) + "\x1b[H\x1b[2J\x1b[3Jnew\n")
    assert cleared == "".join(lines[:11]) + "new\n"


_PLAIN = st.text(st.characters(exclude_characters="\r\b\x1b\x07\x0e\x0f", exclude_categories=["Cs"]))
_PIECE = st.sampled_from(
    ["\r", "\n", "\b", "\t", "\x1b", "[", "\x1b[", "m", "K", "2J", "A", "999", ";", "?1049", "h", "x"]
)


@given(_PLAIN)
def test_plain_text_is_unchanged(plain: str) -> None:
    assert screen_text(plain) == plain
    assert screen_text(plain.replace("\n", "\r\n")) == plain
    assert screen_text(f"\x1b[1m{plain}\x1b[0m") == plain


_NARROW = st.text(st.characters(categories=["Lu", "Ll", "Nd"], max_codepoint=0x24F), min_size=1, max_size=80)


@given(st.lists(_NARROW, min_size=1), _PLAIN)
def test_a_redrawn_line_shows_its_last_state(states: list[str], before: str) -> None:
    written = before + "\n" + "".join(f"\r\x1b[K{state}" for state in states) + "\n"
    assert screen_text(written) == f"{before}\n{states[-1]}\n"


@given(st.lists(_PIECE, max_size=60).map("".join))
def test_anything_gives_text_without_sequences(written: str) -> None:
    shown = screen_text(written)
    assert not set("\x1b\r\b") & set(shown)
    assert screen_text(shown) == shown
    assert len(shown) <= len(written) + HEIGHT * WIDTH


_HOSTILE = {
    "far": "\x1b[999Cx",
    "rows": "\x1b[50Bx\x1b[2J",
    "erase": "\x1b[999Gx\x1b[1K",
    "insert": "\x1b[999@x\r",
    "lines": "\x1b[50Lx",
    "openers": "\x1b[",
    "strings": "\x1b]",
    "numbers": "\x1b[" + "9" * 50,
    "marks": "a\r\u0301",
    "tabs": "\t\b\b\bx",
}


@pytest.mark.parametrize("unit", _HOSTILE.values(), ids=_HOSTILE)
def test_time_and_memory_are_bounded(unit: str) -> None:
    """Processor seconds, fifty times what the slowest takes; what takes time in the square of it takes hours."""
    began = time.thread_time()
    screen_text(unit * (50_000 // len(unit)))
    assert time.thread_time() - began < 10
    tracemalloc.start()
    screen_text(unit * (20_000 // len(unit)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_the_tool_shows_the_screen_or_the_bytes() -> None:
    command = r"printf 'a\r\nold\rnew\033[1m!\033[0m\n'"
    seen: list[str] = []

    async def go(backend: SandboxBackend) -> None:
        async with await backend.start(SandboxSpec(workdir="/testbed")) as sandbox:
            for raw in (False, True):
                tools = ToolSet(limits=ToolLimits(raw_output=raw))
                seen.append((await tools.run(call("bash", command=command), sandbox, "/testbed")).text)

    run(go, embedded())
    assert seen == ["a\nnew!", "a\r\nold\rnew\x1b[1m!\x1b[0m"]
