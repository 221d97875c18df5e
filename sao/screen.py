"""The console that every command prints to: nothing that passes through it can act on the operator's terminal.

Promises: what rich itself writes (colours, cursor movements of the live view) passes; in every text, wherever it came
from and also when piped, the characters of `data.visible` are shown as escapes. Markup is another matter: texts that
are not ours are escaped or printed with `markup=False` where they are printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from data.visible import visible


class Screen(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        # Before rich makes texts of strings: it drops some control characters without a word.
        return super().render_str(visible(text), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # The one place through which every output of rich goes, tables, panels and live views included.
        return super()._render_buffer(
            segment if segment.control else Segment(visible(segment.text), segment.style) for segment in buffer
        )
