"""What a terminal would show of a command's output.

Promises: text without control sequences comes back unchanged, but for CRLF, which is a line's end; a line that is
written over shows its last state; the time is linear and the memory bounded by the input's length, whatever it holds.

The terminal is `HEIGHT` rows of `WIDTH` columns. A longer line goes on in the next row without a line break, as
terminals do; what scrolls off the top stays as it was. Known are: carriage return, backspace, tab, cursor movements,
saved cursors, erasing, inserting and deleting of characters and lines, the alternate screen. Colours, titles, links,
bells and all other sequences show nothing and are dropped. Sequences: ECMA-48 and xterm's control sequences
(invisible-island.net/xterm/ctlseqs).
"""

from __future__ import annotations

import functools
import re
import unicodedata

WIDTH = 1000
"""Columns. Programs whose output is a pipe do not ask for the width and draw up to some hundred."""
HEIGHT = 50
"""Rows that cursor movements reach."""
_TAB = 8
_BLANKS = 1 << 16
"""Blanks that cursor movements may leave beyond one for each character read: five bytes could ask for a whole row."""

_CSI = r"\x1b\[([0-?]*+)[ -/]*+([@-~]?)"
_STRING = r"\x1b[\]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)"
"""Titles, links, device control: up to their terminator, which may not be missing or on another line."""
_OTHER = r"\x1b(?:[ -/]++[0-~]?|([0-Z\\-~])|)"
_SILENT = re.compile(
    rf"\x1b\[[0-9;:]*+m|\x1b\[\?(?:25|12|2004|1004|1|7)[hl]|{_STRING}|\x1b[ -/]++[0-~]|\x1b[=>]|[\x07\x0e\x0f]"
)
"""Shows nothing and moves nothing."""
_TOKEN = re.compile(rf"{_CSI}|{_STRING}|{_OTHER}|([\r\n\t\b])|[^\x1b\r\n\t\b]+")
_LEFT = re.compile("[\x1b\b\r]")
_NOT_ASCII_WIDE = re.compile("[^\x20-\x7e\xa1-\xff\u2500-\u259f]")
"""Outside of what is known to take one column each (box drawings are what progress bars are made of)."""


def screen_text(text: str) -> str:
    """`text` as it stands on a terminal's screen, with all that has scrolled off above it."""
    if not _LEFT.search(text) and not _SILENT.search(text):
        return text
    text = _SILENT.sub("", text)
    if "\r" in text:
        text = re.sub("\r++\n", "\n", text)
    if not _LEFT.search(text):
        return text
    screen = _Screen(len(text) + _BLANKS)
    for token in _TOKEN.finditer(text):
        parameters, final, letter, control = token.groups()
        if control:
            screen.control(control)
        elif final:
            screen.sequence(parameters, final)
        elif letter:
            screen.escape(letter)
        elif token[0][0] != "\x1b":
            screen.write(token[0])
    return screen.text()


class _Row:
    __slots__ = ("cells", "goes_on", "redrawn")

    def __init__(self) -> None:
        self.cells: list[str] = []
        """One a column. A wide character, or a tab, is followed by empty ones; combining marks are in their cell."""
        self.redrawn = False
        """Written to after the cursor was moved: blanks at its end are what is left of an erased longer line."""
        self.goes_on = False
        """The next row is the same line."""

    def text(self) -> str:
        shown = "".join(self.cells)
        return (shown.rstrip(" ") if self.redrawn and not self.goes_on else shown) + ("" if self.goes_on else "\n")


class _Screen:
    def __init__(self, blanks: int) -> None:
        self._blanks = blanks
        self._gone: list[str] = []
        """Lines above the screen."""
        self._rows = [_Row()]
        self._row = self._column = 0
        self._saved = (0, 0)
        self._main: tuple[list[_Row], int, int] | None = None
        """The main screen and its cursor while the alternate one is shown."""

    def text(self) -> str:
        rows = (self._main[0] if self._main else []) + self._rows
        shown = "".join([*self._gone, *(row.text() for row in rows)])
        return shown[:-1] if shown.endswith("\n") else shown  # the last row is no ended line

    def write(self, run: str) -> None:
        if _NOT_ASCII_WIDE.search(run) is None:
            at = 0
            while at < len(run):
                room = self._room(1)
                part = run[at : at + room]
                self._put(list(part))
                at += len(part)
            return
        for char in run:
            width = _width(char)
            if width:
                self._room(width)
                self._put([char] + [""] * (width - 1))
            elif not self._combine(char):
                self._put([char])

    def _room(self, needed: int) -> int:
        """Columns left in the row, after going on in the next one where they are too few."""
        if self._column + needed > WIDTH:
            self._at(self._row).goes_on = True
            self._line_feed()
        return WIDTH - self._column

    def _combine(self, mark: str) -> bool:
        """Put a mark to the character before the cursor; False where there is none."""
        cells, at = self._at(self._row).cells, min(self._column, WIDTH) - 1
        while 0 <= at < len(cells) and not cells[at]:
            at -= 1
        if not 0 <= at < len(cells) or len(cells[at]) > 32:
            return False
        cells[at] += mark
        return True

    def _put(self, new: list[str]) -> None:
        row = self._at(self._row)
        cells, start, end = row.cells, self._column, self._column + len(new)
        if start == len(cells):
            cells += new
        else:
            row.redrawn = True
            if start > len(cells):
                self._pad(cells, start)
            else:
                _split(cells, start)
                _split(cells, end)
            cells[start:end] = new
        self._column = end

    def _pad(self, cells: list[str], to: int) -> None:
        count = min(to - len(cells), self._blanks)
        self._blanks -= count
        cells += [" "] * count + [""] * (to - len(cells) - count)

    def _at(self, number: int) -> _Row:
        while len(self._rows) <= number:
            self._rows.append(_Row())
        return self._rows[number]

    def _line_feed(self) -> None:
        self._down()
        self._column = 0

    def _down(self) -> None:
        self._at(self._row)  # an empty row is a line too
        if self._row < HEIGHT - 1:
            self._row += 1
            self._at(self._row)
            return
        gone = self._rows.pop(0)
        if self._main is None:  # the alternate screen has nothing above it
            self._gone.append(gone.text())
        self._rows.append(_Row())

    def control(self, char: str) -> None:
        if char == "\n":
            self._at(self._row).goes_on = False
            self._line_feed()
        elif char == "\r":
            self._column = 0
        elif char == "\b":
            self._column = max(0, min(self._column, WIDTH - 1) - 1)
        else:
            stop = min((self._column // _TAB + 1) * _TAB, WIDTH)
            if self._column == len(self._at(self._row).cells) and stop > self._column:
                self._put(["\t"] + [""] * (stop - self._column - 1))
            self._column = stop

    def escape(self, letter: str) -> None:
        if letter == "7":
            self._saved = (self._row, self._column)
        elif letter == "8":
            self._row, self._column = self._saved
        elif letter == "D":
            self._down()
        elif letter == "E":
            self._line_feed()
        elif letter == "M":
            self._row = max(0, self._row - 1)
        elif letter == "c":
            self._erase_display(2)
            self._row = self._column = 0

    def sequence(self, parameters: str, final: str) -> None:
        """One control sequence, `parameters` as they stand between ESC [ and the final byte."""
        if parameters[:1] in ("?", ">", "<", "="):
            if final in "hl" and parameters[1:] in ("47", "1047", "1049"):
                self._alternate(final == "h")
            return
        numbers = [int(part[:5]) if part.isdigit() else 0 for part in parameters[:64].split(";")]
        first = numbers[0]
        count = max(1, first)
        if final == "A":
            self._row = max(0, self._row - count)
        elif final in "Be":
            self._row = min(HEIGHT - 1, self._row + count)
        elif final in "Ca":
            self._column = min(WIDTH - 1, self._column + count)
        elif final == "D":
            self._column = max(0, min(self._column, WIDTH - 1) - count)
        elif final == "E":
            self._row, self._column = min(HEIGHT - 1, self._row + count), 0
        elif final == "F":
            self._row, self._column = max(0, self._row - count), 0
        elif final in "G`":
            self._column = min(WIDTH, count) - 1
        elif final == "d":
            self._row = min(HEIGHT, count) - 1
        elif final in "Hf":
            self._row = min(HEIGHT, count) - 1
            self._column = min(WIDTH, max(1, numbers[1] if len(numbers) > 1 else 1)) - 1
        elif final == "J":
            self._erase_display(first)
        elif final == "K":
            self._erase_line(first)
        elif final in "LM":
            self._shift_lines(count, insert=final == "L")
        elif final in "@PX":
            self._shift_characters(count, final)
        elif final == "s":
            self._saved = (self._row, self._column)
        elif final == "u":
            self._row, self._column = self._saved

    def _erase_line(self, part: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: all."""
        if self._row >= len(self._rows):
            return
        row = self._rows[self._row]
        row.redrawn = True
        if part == 0:
            _split(row.cells, self._column)
            del row.cells[self._column :]
            row.goes_on = False
        elif part == 1:
            self._blank(row.cells, 0, self._column + 1)
        elif part == 2:
            row.cells.clear()
            row.goes_on = False

    def _erase_display(self, part: int) -> None:
        """0: from the cursor on, 1: up to the cursor, 2: all. What has scrolled off stays (3 would take that)."""
        if part == 0:
            self._erase_line(0)
            del self._rows[self._row + 1 :]
        elif part == 1:
            for number in range(min(self._row, len(self._rows))):
                if self._rows[number].cells:
                    self._rows[number] = _Row()
            self._erase_line(1)
        elif part == 2:
            self._rows = []

    def _shift_lines(self, count: int, *, insert: bool) -> None:
        if self._row >= len(self._rows):
            return
        count = min(count, HEIGHT - self._row)
        if insert:
            self._rows[self._row : self._row] = [_Row() for _ in range(count)]
            del self._rows[HEIGHT:]
        else:
            del self._rows[self._row : self._row + count]

    def _shift_characters(self, count: int, how: str) -> None:
        """@: insert blanks, P: delete, X: erase."""
        row = self._at(self._row)
        cells, start = row.cells, self._column
        if start >= len(cells):
            return
        row.redrawn = True
        end = min(start + count, len(cells))
        if how == "X":
            self._blank(cells, start, end)
            return
        _split(cells, start)
        if how == "P":
            _split(cells, end)
            del cells[start:end]
            return
        count = min(count, WIDTH - start, self._blanks)
        self._blanks -= count
        cells[start:start] = [" "] * count
        _split(cells, WIDTH)
        del cells[WIDTH:]

    def _blank(self, cells: list[str], start: int, end: int) -> None:
        end = min(end, len(cells))
        if start < end:
            _split(cells, start)
            _split(cells, end)
            cells[start:end] = [" "] * (end - start)

    def _alternate(self, on: bool) -> None:
        if on and self._main is None:
            self._main = (self._rows, self._row, self._column)
            self._rows, self._row, self._column = [_Row()], 0, 0
        elif not on and self._main is not None:
            (self._rows, self._row, self._column), self._main = self._main, None


def _split(cells: list[str], at: int) -> None:
    """Blanks for a wide character or a tab that `at` would cut in two."""
    if not 0 < at < len(cells) or cells[at]:
        return
    start = at - 1
    while start > 0 and not cells[start]:
        start -= 1
    end = at + 1
    while end < len(cells) and not cells[end]:
        end += 1
    cells[start:end] = [" "] * (end - start)


@functools.lru_cache(4096)
def _width(char: str) -> int:
    """Columns: 0 for combining marks and joiners, 2 for East Asian wide characters and most emoji."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
