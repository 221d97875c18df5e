"""Reports as Markdown tables, to paste into an issue or a paper's appendix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines."""
    return [_line(heads), "|" + "---|" * len(heads), *map(_line, rows)]


def document(title: str, *tables: Sequence[str]) -> str:
    """A heading and tables, an empty line between them."""
    return "\n\n".join([f"# {title}", *("\n".join(lines) for lines in tables if lines)]) + "\n"


def code(text: str, most: int = 40) -> str:
    """One line of somebody else's words, cut."""
    line = " ".join(text.split())
    return "`" + (line if len(line) <= most else line[: most - 1] + "…").replace("`", "'") + "`"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
