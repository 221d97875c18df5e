"""Turns as text and marks: special tokens that the model sampled, told apart from text that only spells them.

Formats that are made of special tokens (DeepSeek, gpt-oss) are read from these pieces, so an argument may hold the text
"<|call|>" without ending anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Mark(str):
    """A sampled special token; its text is the token's name."""

    __slots__ = ()


def split(text: str, names: Iterable[str]) -> list[str]:
    """Written text as pieces: every spelling of a name becomes a mark. For written turns, never for samples."""
    pattern = "(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")"
    parts = re.split(pattern, text)
    return [Mark(part) if index % 2 else part for index, part in enumerate(parts) if part]


def is_mark(piece: str, name: str) -> bool:
    return isinstance(piece, Mark) and piece == name
