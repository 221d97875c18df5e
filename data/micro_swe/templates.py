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


def _upto(rng: random.Random) -> list[Case]:
    return [{"a": rng.randint(3, 6)}]


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


_SHAPES: Mapping[str, tuple[str, tuple[str, ...], Callable[[random.Random], list[Case]], bool]] = {
    "operator": ("arithmetic", ("a", "b"), _pair, False),
    "comparison": ("decision", ("a", "b"), _edge, False),
    "off_by_one": ("sequence", ("s", "a"), _spot, False),
    "constant": ("arithmetic", ("a",), _single, False),
    "aggregate": ("sequence", ("s",), _list, False),
    "letter_case": ("text", ("t",), _text, False),
    "variable": ("names", ("a", "v0", "v1", "v2"), _three, True),
    "swapped": ("names", ("v0", "v1", "v2"), _three, True),
    "missing_return": ("return", ("a", "b"), _two, False),
}


def _make(
    split: str,
    kind: Kind,
    doc: str,
    *body: str,
    params: tuple[str, ...] | None = None,
    cases: Callable[[random.Random], list[Case]] | None = None,
) -> Template:
    usual_family, usual_params, usual_cases, shuffled = _SHAPES[kind.name]
    number = _counts[split, kind.name] = _counts.get((split, kind.name), 0) + 1
    return Template(
        name=f"{split}-{kind.name}-{number}",
        kind=kind,
        family=usual_family,
        split=split,
        doc=doc,
        body=body,
        params=params or usual_params,
        cases=cases or usual_cases,
        shuffled=shuffled,
    )


_counts: dict[tuple[str, str], int] = {}
_A, _B = ("a",), ("a", "b")

TRAIN: tuple[Template, ...] = (
    _make("train", kinds.OPERATOR, "Return {a} {hint} {b}.", "return {a} {fill} {b}"),
    _make("train", kinds.OPERATOR, "The value is {a} {hint} {b}.", "{r} = {a} {fill} {b}", "return {r}"),
    _make("train", kinds.OPERATOR, "Text of {a} {hint} {b}.", "return str({a} {fill} {b})"),
    _make("train", kinds.COMPARISON, "True when {a} {hint} {b}.", "return {a} {fill} {b}"),
    _make("train", kinds.COMPARISON, "Tell whether {a} {hint} {b}.", "{r} = {a} {fill} {b}", "return {r}"),
    _make("train", kinds.COMPARISON, "One if {a} {hint} {b} or zero.", "return 1 if {a} {fill} {b} else 0"),
    _make("train", kinds.OFF_BY_ONE, "Return {s} at {a} {hint}.", "return {s}[{a}{fill}]"),
    _make(
        "train",
        kinds.OFF_BY_ONE,
        "Go from {a} until {b} {hint}.",
        "return list(range({a}, {b}{fill}))",
        params=_B,
        cases=_span,
    ),
    _make("train", kinds.OFF_BY_ONE, "Take {s} from {a} {hint}.", "{r} = {s}[{a}{fill}:]", "return {r}"),
    _make("train", kinds.CONSTANT, "Return {a} times {hint}.", "return {a} * {fill}"),
    _make("train", kinds.CONSTANT, "The value is {a} plus {hint}.", "{r} = {a} + {fill}", "return {r}"),
    _make("train", kinds.CONSTANT, "Cap {a} at {hint}.", "return min({a}, {fill})"),
    _make("train", kinds.AGGREGATE, "Return {hint} of {s}.", "return {fill}({s})"),
    _make("train", kinds.AGGREGATE, "The value is {hint} of {s}.", "{r} = {fill}({s})", "return {r}"),
    _make("train", kinds.LETTER_CASE, "Return {t} in {hint} case.", "return {t}.{fill}()"),
    _make("train", kinds.LETTER_CASE, "Write {t} in {hint} case.", "{r} = {t}.{fill}()", "return {r}"),
    _make("train", kinds.VARIABLE, "Return {a} plus {hint}.", "return {a} + {fill}"),
    _make("train", kinds.VARIABLE, "The value is {hint} minus {a}.", "{r} = {fill} - {a}", "return {r}"),
    _make("train", kinds.VARIABLE, "Text of {hint}.", "return str({fill})", params=("v0", "v1", "v2")),
    _make("train", kinds.SWAPPED, "Call {h} on {hint}.", "return {h}({fill})"),
    _make("train", kinds.SWAPPED, "The value is {h} of {hint}.", "{r} = {h}({fill})", "return {r}"),
    _make("train", kinds.MISSING_RETURN, "Return {hint}.", "{v0} = {a} + {b}", "{v1} = {a} - {b}", "return {fill}"),
    _make(
        "train",
        kinds.MISSING_RETURN,
        "The value is {hint}.",
        "{v0} = {a} * 2",
        "{v1} = {a} + 3",
        "return {fill}",
        params=_A,
    ),
)

HELDOUT: tuple[Template, ...] = (
    _make("heldout", kinds.OPERATOR, "Find {a} {hint} {b}.", "{r} = 0", "return {r} + {a} {fill} {b}"),
    _make("heldout", kinds.OPERATOR, "Answer with {a} {hint} {b}.", "return int({a} {fill} {b})"),
    _make(
        "heldout",
        kinds.COMPARISON,
        "Find out if {a} {hint} {b}.",
        "if {a} {fill} {b}:",
        "    return True",
        "return False",
    ),
    _make("heldout", kinds.COMPARISON, "Check that {a} {hint} {b}.", "return bool({a} {fill} {b})"),
    _make("heldout", kinds.OFF_BY_ONE, "Find {s} before {a} {hint}.", "{r} = {s}", "return {r}[:{a}{fill}]"),
    _make(
        "heldout", kinds.OFF_BY_ONE, "Count until {a} {hint}.", "return list(range({a}{fill}))", params=_A, cases=_upto
    ),
    _make("heldout", kinds.CONSTANT, "Find {a} minus {hint}.", "{r} = {a}", "return {r} - {fill}"),
    _make("heldout", kinds.CONSTANT, "Lift {a} to {hint}.", "return max({a}, {fill})"),
    _make("heldout", kinds.AGGREGATE, "Find {hint} of {s}.", "{r} = list({s})", "return {fill}({r})"),
    _make("heldout", kinds.AGGREGATE, "Answer with {hint} of {s}.", "return int({fill}({s}))"),
    _make("heldout", kinds.LETTER_CASE, "Find {t} in {hint} case.", "{r} = str({t})", "return {r}.{fill}()"),
    _make("heldout", kinds.VARIABLE, "Find {hint} times {a}.", "{r} = {a}", "return {fill} * {r}"),
    _make("heldout", kinds.VARIABLE, "Answer with {hint}.", "return int({fill})", params=("v0", "v1", "v2")),
    _make("heldout", kinds.SWAPPED, "Find {h} of {hint}.", "return list({h}({fill}))"),
    _make("heldout", kinds.MISSING_RETURN, "Find {hint}.", "{v0}, {v1} = {a} + 1, {a} * 3", "return {fill}", params=_A),
)

UNSEEN: tuple[Template, ...] = tuple(
    replace(template, family="class")
    for template in (
        _make("unseen", kinds.OPERATOR, "Give {a} {hint} {b}.", "return {a} {fill} {b}"),
        _make("unseen", kinds.OPERATOR, "Hold {a} {hint} {b}.", "{r} = {a} {fill} {b}", "return {r}"),
        _make("unseen", kinds.COMPARISON, "See if {a} {hint} {b}.", "return {a} {fill} {b}"),
        _make("unseen", kinds.COMPARISON, "Hold if {a} {hint} {b}.", "{r} = {a} {fill} {b}", "return {r}"),
        _make("unseen", kinds.OFF_BY_ONE, "Give {s} at {a} {hint}.", "return {s}[{a}{fill}]"),
        _make("unseen", kinds.CONSTANT, "Give {a} times {hint}.", "return {a} * {fill}"),
        _make("unseen", kinds.AGGREGATE, "Give {hint} of {s}.", "return {fill}({s})"),
        _make("unseen", kinds.LETTER_CASE, "Give {t} in {hint} case.", "return {t}.{fill}()"),
        _make("unseen", kinds.VARIABLE, "Give {hint} back.", "return {fill}", params=("v0", "v1", "v2")),
        _make("unseen", kinds.SWAPPED, "Give {h} of {hint}.", "return {h}({fill})"),
        _make(
            "unseen",
            kinds.MISSING_RETURN,
            "Give {hint}.",
            "{v0} = {a} + 1",
            "{v1} = {a} * 3",
            "return {fill}",
            params=_A,
        ),
    )
)

TEMPLATES: Mapping[str, Sequence[Template]] = {"train": TRAIN, "heldout": HELDOUT, "unseen": UNSEEN}
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "train": ("plain", "titled"),
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
