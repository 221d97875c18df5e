"""What the live views share: a picture that is redrawn on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import abc
import time
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class LiveView(abc.ABC):
    """Context manager. A view gives `render` (the picture) and `line` (the words; empty says nothing), and calls
    `tick` whenever something happened."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._last_line = time.monotonic()
        self._said = ""

    @abc.abstractmethod
    def render(self) -> RenderableType: ...

    @abc.abstractmethod
    def line(self) -> str: ...

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._say()

    @property
    def redrawn(self) -> bool:
        """A terminal shows the picture; otherwise only printed lines are seen."""
        return self._live is not None

    def tick(self) -> None:
        if not self.redrawn and time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._say()

    def _say(self) -> None:
        self._last_line = time.monotonic()
        text = self.line()
        if text and text != self._said:
            self._said = text
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def progress_bar(console: Console) -> Progress:
    """Count, time gone and time left, to stand inside a view's picture."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
