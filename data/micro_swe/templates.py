"""Program templates: docstring, body and sample inputs of one small function each, by split.

Promises: no template, docstring phrasing, file layout or bug place is shared by two splits; hint words are. In a
docstring the hint stands next to the same name as its code does: copying, or one association of word and sign, is
enough to mend the bug.

Placeholders: `{a}` and `{b}` numbers, `{s}` a list, `{t}` a text, `{v0}` to `{v2}` the names that options are built
from, `{r}` a local, `{h}` a helper of a sibling module, `{hint}` and `{fill}` the two sides of an option.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data.micro_swe import kinds
from data.micro_swe.kinds import Kind

Case = Mapping[str, Any]


def _pair(rng: random.Random) -> list[Case]:
    """Sum, difference, product and quotient of 7..9 and 2..3 all differ."""
    return [{"a": rng.randint(7, 9), "b": rng.randint(2, 3)}]


def _edge(rng: random.Random) -> list[Case]:
    """Below, at and above the limit: any two of the four comparisons differ somewhere."""
    limit = rng.randint(3, 9)
    return [{"a": limit + step, "b": limit} for step in (-1, 0, 1)]


def _spot(rng: random.Random) -> list[Case]:
    return [{"s": rng.sample(range(10, 60), 5), "a": rng.randint(1, 3)}]


def _span(rng: random.Random) -> list[Case]:
    return [{"a": rng.randint(0, 2), "b": rng.randint(5, 7)}]


def _single(rng: random.Random) -> list[Case]:
    """One number below every constant and one above: caps and floors both show."""
    return [{"a": 1}, {"a": rng.randint(12, 20)}]


def _list(rng: random.Random) -> list[Case]:
    """Smallest, largest, total and number differ: at least 10 each, four of them."""
    return [{"s": rng.sample(range(10, 30), 4)}]


def _text(rng: random.Random) -> list[Case]:
    return [{"t": rng.choice(("red Fox", "old Oak", "big Sky", "new Day"))}]


def _three(rng: random.Random) -> list[Case]:
    v0, v1, v2 = rng.sample(range(5, 30), 3)
    return [{"a": rng.randint(2, 4), "v0": v0, "v1": v1, "v2": v2}]


def _two(rng: random.Random) -> list[Case]:
    """Used by missing returns: the two locals of every such template differ for these."""
    return [{"a": rng.randint(11, 15), "b": rng.randint(3, 5)}]


@dataclass(frozen=True)
class Template:
    name: str
    kind: Kind
    family: str
    split: str
    doc: str
    body: tuple[str, ...]
    params: tuple[str, ...]
    cases: Callable[[random.Random], list[Case]]
    shuffled: bool = False
    """Parameters come in random order, so that the signature does not give the right name or order away."""

    @property
    def bug_line(self) -> int:
        return next(index for index, line in enumerate(self.body) if "{fill}" in line)


@dataclass(frozen=True)
class Core:
    """What a function computes: an expression with one replaceable part, and the words that say what it should be."""

    kind: Kind
    family: str
    says: str
    code: str
    params: tuple[str, ...]
    cases: Callable[[random.Random], list[Case]]
    before: tuple[str, ...] = ()
    """Lines ahead of the one with the expression."""

    @property
    def shuffled(self) -> bool:
        return any(letter.startswith("v") for letter in self.params)


@dataclass(frozen=True)
class Shape:
    """How a function hands out what it computes: docstring and body around a core."""

    name: str
    doc: str
    body: tuple[str, ...]


_B, _S, _V = ("a", "b"), ("s", "a"), ("v0", "v1", "v2")

CORES: tuple[Core, ...] = (
    Core(kinds.OPERATOR, "arithmetic", "{a} {hint} {b}", "{a} {fill} {b}", _B, _pair),
    Core(kinds.COMPARISON, "decision", "{a} {hint} {b}", "{a} {fill} {b}", _B, _edge),
    Core(kinds.OFF_BY_ONE, "sequence", "{s} at {a} {hint}", "{s}[{a}{fill}]", _S, _spot),
    Core(kinds.OFF_BY_ONE, "sequence", "range from {a} until {b} {hint}", "list(range({a}, {b}{fill}))", _B, _span),
    Core(kinds.OFF_BY_ONE, "sequence", "{s} from {a} {hint}", "{s}[{a}{fill}:]", _S, _spot),
    Core(kinds.CONSTANT, "arithmetic", "{a} times {hint}", "{a} * {fill}", ("a",), _single),
    Core(kinds.CONSTANT, "arithmetic", "{a} plus {hint}", "{a} + {fill}", ("a",), _single),
    Core(kinds.CONSTANT, "arithmetic", "{a} capped at {hint}", "min({a}, {fill})", ("a",), _single),
    Core(kinds.AGGREGATE, "sequence", "{hint} of {s}", "{fill}({s})", ("s",), _list),
    Core(kinds.LETTER_CASE, "text", "{t} in {hint} case", "{t}.{fill}()", ("t",), _text),
    Core(kinds.VARIABLE, "names", "{a} plus {hint}", "{a} + {fill}", ("a", *_V), _three),
    Core(kinds.VARIABLE, "names", "{hint} minus {a}", "{fill} - {a}", ("a", *_V), _three),
    Core(kinds.SWAPPED, "names", "{h} on {hint}", "{h}({fill})", _V, _three),
    Core(kinds.MISSING_RETURN, "return", "{hint}", "{fill}", _B, _two, ("{v0} = {a} + {b}", "{v1} = {a} - {b}")),
    Core(kinds.MISSING_RETURN, "return", "{hint}", "{fill}", ("a",), _two, ("{v0} = {a} * 2", "{v1} = {a} + 3")),
)
SHAPES: tuple[Shape, ...] = (
    Shape("plain", "Return {says}.", ("return {code}",)),
    Shape("local", "The value is {says}.", ("{r} = {code}", "return {r}")),
    Shape("text", "Text of {says}.", ("return str({code})",)),
    Shape("boxed", "List of {says}.", ("return [{code}]",)),
    Shape("stored", "Box with {says}.", ("{r} = [{code}]", "return {r}")),
    Shape("tuple", "Tuple of {says}.", ("return ({code},)",)),
    Shape("written", "Written form of {says}.", ("{r} = str({code})", "return {r}")),
    Shape("wrapped", "List around {says}.", ("{r} = {code}", "return [{r}]")),
    Shape("shown", "Shown is {says}.", ("{r} = {code}", "return str({r})")),
    Shape("nested", "Nested list of {says}.", ("return [[{code}]]",)),
    Shape("kept", "Tuple that keeps {says}.", ("{r} = ({code},)", "return {r}")),
    Shape("formed", "Form of {says}.", ("return repr({code})",)),
)
_RETURNS = tuple(shape.name for shape in SHAPES if len(shape.body) == 1)
"""A return can only be missing from a shape that has its expression in it."""


def _template(split: str, core: Core, shape: Shape, number: int) -> Template:
    return Template(
        name=f"{split}-{core.kind.name}-{number}-{shape.name}",
        kind=core.kind,
        family=core.family,
        split=split,
        doc=shape.doc.replace("{says}", core.says),
        body=(*core.before, *(line.replace("{code}", core.code) for line in shape.body)),
        params=core.params,
        cases=core.cases,
        shuffled=core.shuffled,
    )


def _grid() -> dict[str, tuple[Template, ...]]:
    """Every core in every shape, each pair in one split only, two shapes of a core held out: a program and a docstring
    that train has never shown, while every core and every shape is met in train with others."""
    made: dict[str, list[Template]] = {"train": [], "heldout": [], "unseen": []}
    for row, core in enumerate(CORES):
        fitting = [shape for shape in SHAPES if not core.kind.missing or shape.name in _RETURNS]
        out = {row % len(fitting), (row + len(fitting) // 2) % len(fitting)}
        for column, shape in enumerate(fitting):
            split = "heldout" if column in out else "train"
            made[split].append(_template(split, core, shape, row))
    # As methods of a class, on self's fields: a family that train never shows at all.
    method = Shape("method", "Give {says}.", ("return {code}",))
    made["unseen"] = [replace(_template("unseen", core, method, row), family="class") for row, core in enumerate(CORES)]
    return {split: tuple(group) for split, group in made.items()}


TEMPLATES: Mapping[str, Sequence[Template]] = _grid()
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "train": ("plain", "titled", "credited"),
    "heldout": ("noted", "footed"),
    "unseen": ("class",),
}
PLACES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "train": ((0, 2), (1, 3), (2, 3)),
    "heldout": ((1, 2), (0, 3)),
    "unseen": ((0, 2), (1, 2)),
}
"""(which function, of how many) may hold the bug. In the unseen split they are methods of a class."""
ISSUES: Mapping[str, tuple[str, ...]] = {
    "train": (
        "tests fail: {f} in {path} gives a wrong result",
        "{f} in {path} is broken, its result is wrong",
        "wrong result from {f} in {path}",
        "please fix {f} in {path}, the result is wrong",
    ),
    "heldout": (
        "look at {f} in {path}: the result is not right",
        "bad result: {f} in {path}",
        "the result of {f} in {path} fails its tests",
    ),
    "unseen": ("the method {f} in {path} gives a wrong result", "wrong: method {f} in {path}"),
}
