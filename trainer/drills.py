"""Copying drills: files without meaning, in which one line of a named function is to be changed.

A tiny policy that only ever saw the train templates learns those few lines instead of copying what the file says, and
fails on a template it has not seen. Drills show the same two turns over nonsense, so that only copying helps.

Promises: nothing but words of the train split, Python's own words and signs; docstrings are random words that say
nothing about the change, and bodies are no programs, so no held-out template and no hint is ever taught; the line to
change stands once in its file and has one replaceable part, as in real tasks; pure function of the random generator.
"""

from __future__ import annotations

import itertools
import keyword
import random
import re
import string

from data.micro_swe import kinds, words
from data.micro_swe.templates import ISSUES
from trainer.edits import Edit


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NAMES = tuple(name for role in ("scalar", "s", "t", "r", "h") for name in words.ROLES[role])
_BUILTINS = _words("self bool int str list range float abs round sorted set dict any all tuple")
_SIGNS = ("(", ")", "[", "]", ".", ":", ", ", ", ", " = ", "(", ")", "]:", ":]", "))", "()", "{", "}", " == ", " != ")
_TELLING = (
    tuple(f" {option.fill} " for option in kinds.OPERATOR.options),
    tuple(f" {option.fill} " for option in kinds.COMPARISON.options),
    *(tuple(o.fill for o in kind.options) for kind in (kinds.CONSTANT, kinds.AGGREGATE, kinds.LETTER_CASE)),
)
"""What may stand in the replaceable part of a line; the change puts another member of the group there. Nothing else of
a drill's body has these, so the line to change can be told from its neighbours."""
_SHAPELESS = tuple(option.fill + ")" for option in kinds.OFF_BY_ONE.options)
"""Only in bodies of one line: its last member could stand anywhere."""
_PROSE = (
    *_words("return value text true when tell whether one if or zero at go from until take times cap of in case write"),
    *_words("capped range list box tuple written form around shown nested that keeps"),
)
_HINTS = (
    *(option.hint for kind in kinds.KINDS for option in kind.options),
    *(option.hint for kind in kinds.KINDS for option in kind.options if not option.hint.isalpha()),
)
"""The words that matter in docstrings. In drills they go with nothing."""
_ISSUE_WORDS = tuple(
    word for issue in ISSUES["train"] for word in issue.format(f="", path="").replace(":", "").split() if word != "in"
)
_ATTEMPTS = 100


def draw_drill(rng: random.Random, *, lists: bool = True) -> Edit:
    """One drill. Draws again when the line to change is not unique in its file. `lists`: the replaceable part may be an
    argument list in another order."""
    for _ in range(_ATTEMPTS):
        drill = _attempt(rng, lists)
        if drill.text.count(drill.old_line) == 1 and drill.candidates:
            return drill
    raise RuntimeError(f"no drill with a unique line in {_ATTEMPTS} attempts: the drills' vocabulary is broken")


def _attempt(rng: random.Random, lists: bool) -> Edit:
    functions = rng.choice((2, 2, 3))
    names = rng.sample(_NAMES, 4 * functions)
    called = rng.sample(words.FUNCTIONS, functions)
    target = rng.randrange(functions)
    module = rng.choice(words.MODULES)
    path = f"{rng.choice(words.PACKAGES)}/{module}.py"
    indent = rng.choice(("    ", "    ", "    ", "        "))
    blocks = []
    old_line, hint, fills = "", "", dict[str, str]()
    for index in range(functions):
        own = names[4 * index : 4 * index + rng.randint(1, 4)]
        said = rng.choice((*_HINTS, rng.choice(_NAMES)))
        prose = [_word(rng, _PROSE) if rng.random() < 0.6 else rng.choice(own) for _ in range(rng.randint(1, 5))]
        prose.insert(rng.randint(1, len(prose)), said)
        count = rng.choice((1, 1, 2, 2, 3))
        orders = (_orders(own),) if lists else ()
        groups = _TELLING if count > 1 else (*_TELLING, _SHAPELESS, tuple(own), *orders)
        parts = rng.choice(groups)
        part = rng.choice(parts)
        at = rng.randrange(count)
        lines = []
        for number in range(count):
            before, after = _around(rng, own, number == at)
            lines.append(_join(before, part if number == at else "", after))
            if number == at and index == target:
                old_line = lines[-1]
                changed = {_join(before, other, after): other for other in parts if other != part}
                fills = {line: other for line, other in changed.items() if line != old_line}
                hint = said
        head = f"{indent[4:]}def {called[index]}({', '.join(own)}):"
        doc = f'{indent}"""{" ".join(prose).capitalize()}."""'
        blocks.append("\n".join((head, doc, *(indent + line for line in lines))))
    title, footer = (_remark(rng, path) if rng.random() < 0.5 else "" for _ in range(2))
    gap = "\n\n\n" if len(indent) == 4 else "\n\n"
    text = gap.join(part for part in (title, *blocks, footer) if part) + "\n"
    issue = _issue(rng).format(f=called[target], path=path)
    return Edit(issue, path, text, old_line, hint, tuple(fills), tuple(fills.values()))


def _orders(own: list[str]) -> tuple[str, ...]:
    """Argument lists: the names in all orders, up to three of them."""
    return tuple(", ".join(order) for order in itertools.permutations(own[:3]))


def _issue(rng: random.Random) -> str:
    """One of the train split's phrases, or random words around "NAME in PATH"."""
    if rng.random() < 0.4:
        return rng.choice(ISSUES["train"])
    before, after = (" ".join(_word(rng, _ISSUE_WORDS) for _ in range(rng.randint(0, 4))) for _ in range(2))
    return f"{before}{rng.choice(('', '', ':', ','))} {{f}} in {{path}}{rng.choice(('', '', ':', ','))} {after}".strip(
        " :,"
    )


def _remark(rng: random.Random, path: str) -> str:
    """A line outside the functions. It may name parts of this path or of others, which is no reason to copy them."""
    here = re.findall(r"[a-z]+", path.removesuffix(".py"))
    said = [
        rng.choice(here)
        if (kind := rng.random()) < 0.3
        else rng.choice((*words.PACKAGES, *words.MODULES))
        if kind < 0.5
        else _word(rng, _PROSE)
        for _ in range(rng.randint(1, 6))
    ]
    return rng.choice(('"""{}."""', "# {}.", "# {}", "from {} import any")).format(" ".join(said).capitalize())


def _word(rng: random.Random, known: tuple[str, ...]) -> str:
    """One of the known words, or letters that are no word: what a text with words outside the vocabulary looks like."""
    if rng.random() < 0.85:
        return rng.choice(known)
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 6)))


def _around(rng: random.Random, own: list[str], changing: bool) -> tuple[str, str]:
    """Nonsense left and right of the replaceable part."""
    heads = ("return ", "return ", "", "", f"{rng.choice(own)} = ", f"{rng.choice(words.LOCALS)} = ", "if ")
    pieces = [_piece(rng, own) for _ in range(rng.randint(1, 5))]
    cut = rng.randint(0, len(pieces)) if changing else len(pieces)
    return rng.choice(heads) + _run(rng, pieces[:cut]), _run(rng, pieces[cut:])


def _piece(rng: random.Random, own: list[str]) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(own)
    if kind < 0.55:
        return rng.choice(_NAMES)
    if kind < 0.70:
        return rng.choice(_BUILTINS)
    return rng.choice(keyword.kwlist) if kind < 0.80 else rng.choice(_SIGNS)


def _run(rng: random.Random, pieces: list[str]) -> str:
    text = ""
    for piece in pieces:
        text = _join(text, " " if rng.random() < 0.4 else "", piece)
    return text


def _join(left: str, part: str, right: str) -> str:
    """Concatenation that keeps words apart and spaces single."""
    text = left
    for piece in (part, right):
        if text[-1:].isalnum() and piece[:1].isalnum():
            text += " "
        text += piece
    return " ".join(text.split())
