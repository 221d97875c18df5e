"""The final answer in a model's text, and exact integers.

Promises: the answer is the content of the last `\\boxed{}`, and none when that box is still open; an integer is read
from a closed list of spellings (docs/evaluation.md has the table), everything else is refused and says why; linear in
the text's length, whatever it holds. Pure functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ANSWER_CHARS = 4_000
"""Of a box's content. The longest gold known has 120; what is longer is refused unread."""
MAX_DIGITS = 40

_BOX = re.compile(r"\\boxed[ \t\r\n]*\{")
_TOKEN = re.compile(r"\\.|[{}]", re.S)


@dataclass(frozen=True)
class Answer:
    """`text` is None where there is no answer; `why` then says which kind of none."""

    text: str | None
    why: str = ""


NO_TEXT = "no_text"
"""The model ended inside its thoughts, or in a tool call."""
NO_BOX = "no_box"
OPEN_BOX = "open_box"
EMPTY_BOX = "empty_box"
TOO_LONG = "too_long"
NOT_AN_INTEGER = "not_an_integer"
NO_NUMBER = "no_number"


def boxed(text: str) -> Answer:
    """The last box of a text that holds no thoughts."""
    if not text.strip():
        return Answer(None, NO_TEXT)
    starts = [found.end() for found in _BOX.finditer(text)]
    if not starts:
        return Answer(None, NO_BOX)
    start, depth = starts[-1], 1
    for token in _TOKEN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            content = text[start : token.start()]
            if len(content) > MAX_ANSWER_CHARS:
                return Answer(None, TOO_LONG)
            return Answer(content) if content.strip() else Answer(None, EMPTY_BOX)
    return Answer(None, OPEN_BOX)


_SPACES = (r"\,", r"\;", r"\:", r"\!", r"\ ", "~", r"\quad", r"\displaystyle", "\u00a0", "\u2009", "\u202f")
_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mathit|mathsf|bf|boldsymbol|bm)[ ]*\{([^{}]*)\}")
_DEGREES = re.compile(r"(?:\^[ ]*(?:\{[ ]*\\circ[ ]*\}|\\circ)|°|\\degree|\\text\{[ ]*degrees?[ ]*\}|[ ]+degrees?)$")
_PLAIN = re.compile(r"[+-]?[0-9]+")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+")
_THIN_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+")


def integer_of(text: str) -> int | None:
    """The integer that `text` spells, or None. ASCII digits only: `int` would also take those of other scripts."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    bare = text.strip().replace("\u2212", "-")
    for opened, closed in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if len(bare) > 2 * len(opened) and bare.startswith(opened) and bare.endswith(closed):
            bare = bare[len(opened) : -len(closed)].strip()
            break
    bare = bare.removesuffix(".").rstrip()
    bare = _DEGREES.sub("", bare).rstrip()
    while (inside := _WRAPPED.fullmatch(bare)) or (inside := re.fullmatch(r"\{([^{}]*)\}", bare)):
        bare = inside[1].strip()
        bare = _DEGREES.sub("", bare).rstrip()
    bare = bare.replace("{,}", ",").replace(r"\,", "\u2009")
    for mark in _SPACES:
        bare = bare.replace(mark, " ")
    bare = re.sub(r" *, +| +,", ",", bare) if "," in bare else bare
    bare = re.sub(r"^([+-]) +", r"\1", re.sub(" +", " ", bare).strip())
    spaced = " " in bare and " " not in text.strip().strip("$").strip()
    if _PLAIN.fullmatch(bare):
        digits = bare
    elif _GROUPED.fullmatch(bare):
        digits = bare.replace(",", "")
    elif spaced and _THIN_GROUPED.fullmatch(bare):  # a typed space may part two numbers, a thin space parts thousands
        digits = bare.replace(" ", "")
    else:
        return None
    return int(digits) if len(digits.lstrip("+-")) <= MAX_DIGITS else None


_NUMBER = re.compile(r"(?<![0-9.,)])[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![0-9])")


def last_number(text: str) -> Answer:
    """The last number that stands in a text, for training tasks of small models that box nothing. A minus right behind
    a digit subtracts."""
    if not text.strip():
        return Answer(None, NO_TEXT)
    *_, found = ("", *(match.group() for match in _NUMBER.finditer(text)))
    return Answer(found) if found else Answer(None, NO_NUMBER)
