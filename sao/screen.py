"""The console that every command prints to: nothing that passes through it can act on the operator's terminal.

Promises: what rich itself writes (colours, cursor movements of the live view) passes; in every text, wherever it came
from and also when piped, the characters of `data.visible` are shown as escapes. A terminal of another encoding than
UTF-8 (ASCII, cp1252) gets what it has: signs of ours as their plain form, the rest as escapes, never an error. Markup
is another matter: texts that are not ours are escaped or printed with `markup=False` where they are printed.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from data.visible import visible

_PLAIN = str.maketrans(
    {"·": "-", "—": "-", "–": "-", "−": "-", "…": "...", "→": "->", "×": "x", "±": "+-", "≥": ">=", "≤": "<="}
    | {"─": "-", "│": "|", "•": "*", "✓": "v", "✗": "x"}
    | dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True))
)


def fitting(text: str, encoding: str) -> str:
    """What a stream of this encoding can take."""
    if encoding.lower().replace("-", "").startswith("utf"):
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def never_fail_to_print() -> None:
    """What is printed past the console (JSON, help, tracebacks) is escaped too where the terminal has no such sign."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Screen(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        # Before rich makes texts of strings: it drops some control characters without a word.
        return super().render_str(visible(text), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # The one place through which every output of rich goes, tables, panels and live views included.
        encoding = self.encoding
        return super()._render_buffer(
            segment if segment.control else Segment(fitting(visible(segment.text), encoding), segment.style)
            for segment in buffer
        )
