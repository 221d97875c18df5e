"""The live view of a grading run: a bar, the counts so far, what runs now; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from eval.statistics import wilson_interval
from eval.swebench.grade import Progress as Graded
from eval.swebench.outcome import Verdict
from sao.live import LiveView, progress_bar

_STYLE = {Verdict.RESOLVED: "green", Verdict.UNRESOLVED: "yellow", Verdict.EMPTY: "dim", Verdict.ERROR: "red"}


class GradingView(LiveView):
    """`observe` is the grader's observer."""

    def __init__(self, console: Console, total: int, title: str) -> None:
        super().__init__(console)
        self.title, self._total = title, total
        self.counts: Counter[str] = Counter()
        self.reused = self.suspicious = self.done = 0
        self._running: dict[tuple[str, str], float] = {}
        self._last: list[str] = []
        self._bar = progress_bar(console)
        self._task = self._bar.add_task("graded", total=total)

    def observe(self, progress: Graded) -> None:
        key = progress.instance_id, progress.model
        if progress.graded is None:
            self._running[key] = time.monotonic()
            return
        self._running.pop(key, None)
        graded = progress.graded
        self.done += 1
        self.reused += progress.reused
        self.counts[str(graded.error or graded.verdict)] += 1
        self.suspicious += bool(graded.suspicious)
        self._bar.advance(self._task)
        if not progress.reused:
            flags = f" · {escape(str(graded.suspicious[0]))}" if graded.suspicious else ""
            what = f"[{_STYLE[graded.verdict]}]{graded.error or graded.verdict}[/] {escape(graded.instance_id)}"
            self._last = [*self._last[-4:], f"{what} [dim]{graded.seconds:.1f} s{flags}[/dim]"]
        self.tick()

    def _summary(self) -> str:
        graded = self.done
        low, high = wilson_interval(self.counts["resolved"], graded)
        rate = f"{100 * self.counts['resolved'] / graded:.1f} % [{100 * low:.1f}, {100 * high:.1f}]" if graded else "—"
        return f"resolved {rate} · " + " · ".join(f"{name} {count}" for name, count in self.counts.most_common())

    def line(self) -> str:
        return (
            f"{self.done}/{self._total} graded ({self.reused} stood already) · {self._summary()} · "
            f"{self.suspicious} suspicious"
        )

    def render(self) -> RenderableType:
        running = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for (name, _), since in list(self._running.items())[:8]:
            running.add_row(f"[dim]{escape(name)}[/dim]", f"{now - since:.0f} s")
        if len(self._running) > 8:
            running.add_row(f"[dim]… and {len(self._running) - 8} more[/dim]")
        counts = f"{self._summary()} · [magenta]{self.suspicious} suspicious[/magenta]"
        return Group(f"[bold cyan]{escape(self.title)}[/bold cyan]", self._bar, counts, *self._last, running)
