"""Bug kinds: which right answers a kind has, which word of the docstring names each, and how a bug is drawn.

The promise that makes learning honest: given everything in the file but the hint word, every candidate is equally
likely to be the fix. The right option is drawn uniformly, the buggy one uniformly from those that differ by one step,
and that relation is symmetric.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """`hint` stands in the docstring, `fill` in the code."""

    hint: str
    fill: str


@dataclass(frozen=True)
class Kind:
    """`options` is fixed, or empty when they are built from the names of the function (`named_options`)."""

    name: str
    options: tuple[Option, ...] = ()
    names: int = 0
    """How many names the options are built from."""
    ordered: bool = False
    """Options are orders of the names rather than one of them."""
    missing: tuple[str, ...] = ()
    """Buggy lines that are no option at all: the return is missing."""

    def named_options(self, names: Sequence[str]) -> tuple[Option, ...]:
        if self.options:
            return self.options
        if not self.ordered:
            return tuple(Option(name, name) for name in names)
        return tuple(Option(", ".join(order), ", ".join(order)) for order in itertools.permutations(names))

    def alternatives(self, right: int, total: int) -> list[int]:
        """Indices of the options one step away from `right`: all others, or for orders its three transpositions."""
        if not self.ordered:
            return [index for index in range(total) if index != right]
        orders = list(itertools.permutations(range(self.names)))
        here = orders[right]
        return [i for i, order in enumerate(orders) if sum(x != y for x, y in zip(here, order, strict=True)) == 2]

    def draw(self, rng: random.Random, options: Sequence[Option]) -> tuple[int, int | None, list[int]]:
        """(right option, buggy option or None when the line is missing, candidate options)."""
        right = rng.randrange(len(options))
        if self.missing:
            return right, None, list(range(len(options)))
        buggy = rng.choice(self.alternatives(right, len(options)))
        return right, buggy, self.alternatives(buggy, len(options))


def _options(*pairs: tuple[str, str]) -> tuple[Option, ...]:
    return tuple(Option(hint, fill) for hint, fill in pairs)


OPERATOR = Kind("operator", _options(("plus", "+"), ("minus", "-"), ("times", "*"), ("per", "//")))
COMPARISON = Kind("comparison", _options(("above", ">"), ("below", "<"), ("reaches", ">="), ("within", "<=")))
OFF_BY_ONE = Kind("off_by_one", _options(("plus one", " + 1"), ("minus one", " - 1"), ("exactly", "")))
CONSTANT = Kind("constant", tuple(Option(digit, digit) for digit in ("2", "3", "5", "9")))
AGGREGATE = Kind("aggregate", _options(("smallest", "min"), ("largest", "max"), ("total", "sum"), ("number", "len")))
LETTER_CASE = Kind("letter_case", tuple(Option(word, word) for word in ("upper", "lower", "title")))
VARIABLE = Kind("variable", names=3)
SWAPPED = Kind("swapped", names=3, ordered=True)
MISSING_RETURN = Kind("missing_return", names=2, missing=("pass", "return None"))

KINDS: tuple[Kind, ...] = (
    OPERATOR,
    COMPARISON,
    OFF_BY_ONE,
    CONSTANT,
    AGGREGATE,
    LETTER_CASE,
    VARIABLE,
    SWAPPED,
    MISSING_RETURN,
)
HINT_WORDS: frozenset[str] = frozenset(
    word for kind in KINDS for option in kind.options for word in option.hint.split() if word.isalpha()
)
