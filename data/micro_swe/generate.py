"""Builds one repository with one bug from (split, index): same arguments, same repository, on every machine."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data.micro_swe import kinds, words
from data.micro_swe.kinds import Option
from data.micro_swe.templates import ISSUES, LAYOUTS, PLACES, TEMPLATES, Case, Template
from data.task import TaskError

VERSION = 4
"""Part of every seed: raise it when generated text changes."""
_ATTEMPTS = 100


@dataclass(frozen=True)
class Function:
    """A rendered function: `lines` are right, `buggy` is the wrong text of line `bug_at` where it holds the bug."""

    name: str
    template: Template
    lines: tuple[str, ...]
    fields: Mapping[str, str]
    """Parameter letter -> name, in signature order."""
    cases: tuple[Case, ...]
    bug_at: int
    buggy: str
    hint: str
    candidates: tuple[str, ...]
    fills: tuple[str, ...]
    form: str
    choice: str


@dataclass(frozen=True)
class Repository:
    """`before` and `after` map path to text; `test_path` is hidden and in neither."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    path: str
    old_line: str
    fixed_line: str
    line_at: int
    """Index of the buggy line in its file."""
    hint: str
    candidates: tuple[str, ...]
    fills: tuple[str, ...]
    template: Template
    layout: str
    place: str
    form: str
    choice: str
    issue: str
    test_path: str
    test_text: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    package: str
    test_modules: tuple[str, ...]


class _Names:
    """Hands out words, each once per repository."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pools = {role: list(pool) for role, pool in words.ROLES.items()}

    def take(self, role: str) -> str:
        pool = self._pools.get(role, self._pools["scalar"])
        return pool.pop(self._rng.randrange(len(pool)))


def _function(rng: random.Random, template: Template, names: _Names, helper: str, owner: str = "") -> Function:
    """Render `template`; with `owner` ("self.") as a method whose parameters are the object's fields."""
    order = list(template.params)
    if template.shuffled:
        rng.shuffle(order)
    taken = {letter: names.take(letter) for letter in order}
    sources = [letter for letter in order if letter.startswith("v")]
    if template.kind.missing:
        sources = ["v0", "v1"]
        local = {letter: names.take("scalar") for letter in sources}
    else:
        local = {}
    doc_names = {**taken, **local, "r": names.take("r"), "f": names.take("f"), "h": helper}
    code_names = {**doc_names, **{letter: owner + name for letter, name in taken.items()}}
    kind = template.kind
    hints = kind.named_options([doc_names[letter] for letter in sources])
    fills = kind.named_options([code_names[letter] for letter in sources])
    options = [Option(hint.hint, fill.fill) for hint, fill in zip(hints, fills, strict=True)]
    right, wrong, others = kind.draw(rng, options)
    signature = "self" if owner else ", ".join(taken.values())
    head = [
        f"def {doc_names['f']}({signature}):",
        f'    """{template.doc.format(**doc_names, hint=options[right].hint)}"""',
    ]
    bug_at = len(head) + template.bug_line

    def line(fill: str) -> str:
        return template.body[template.bug_line].format(**code_names, fill=fill)

    body = ["    " + text.format(**code_names, fill=options[right].fill) for text in template.body]
    buggy = line(options[wrong].fill) if wrong is not None else rng.choice(kind.missing)
    if wrong is None:
        form, choice = buggy, str(right)
    elif kind.ordered:
        before, after = options[wrong].fill.split(", "), options[right].fill.split(", ")
        form, choice = "order", str([at for at in range(len(before)) if before[at] != after[at]])
    else:
        form, choice = str(wrong), str(right)
    return Function(
        name=doc_names["f"],
        template=template,
        lines=(*head, *body),
        fields=taken,
        cases=tuple(template.cases(rng)),
        bug_at=bug_at,
        buggy="    " + buggy,
        hint=options[right].hint,
        candidates=tuple(line(options[other].fill) for other in others),
        fills=tuple(options[other].fill for other in others),
        form=form,
        choice=choice,
    )


def _with_bug(function: Function) -> Function:
    lines = list(function.lines)
    lines[function.bug_at] = function.buggy
    return replace(function, lines=tuple(lines))


def _module(layout: str, module: str, package: str, functions: Sequence[Function], imports: str) -> str:
    """Text of the viewed file."""
    titles = {
        "titled": f'"""The {module} module."""',
        "credited": f"# Made for the {package}.",
        "noted": f"# The {module} of the {package}.",
    }
    title = titles.get(layout, "")
    head = "\n\n".join(part for part in (title, imports) if part)
    head += "\n\n\n" if head else ""
    if layout != "class":
        text = head + "\n\n\n".join("\n".join(function.lines) for function in functions) + "\n"
        return text + f"\n\n# End of {module}.\n" if layout == "footed" else text
    fields = [name for function in functions for name in function.fields.values()]
    methods = [f"def __init__(self, {', '.join(fields)}):"]
    methods += [f"    self.{name} = {name}" for name in fields]
    for function in functions:
        methods += ["", *function.lines]
    lines = [f"class {module.capitalize()}:", *("    " + line if line else "" for line in methods)]
    return head + "\n".join(lines) + "\n"


def _helper(name: str, names: _Names) -> str:
    first, second, third = (names.take("scalar") for _ in range(3))
    return (
        f"def {name}({first}, {second}, {third}):\n"
        f'    """Keep {first}, {second}, {third}."""\n'
        f"    return [{first}, {second}, {third}]\n"
    )


def _calls(module: str, functions: Sequence[Function], layout: str) -> list[list[str]]:
    """Per function its test calls as source text, e.g. ``cart.quote(7, 2)``."""
    if layout != "class":
        return [
            [f"{module}.{f.name}({', '.join(repr(case[letter]) for letter in f.fields)})" for case in f.cases]
            for f in functions
        ]
    usual = [f.cases[0] for f in functions]
    calls = []
    for at, function in enumerate(functions):
        here = []
        for case in function.cases:
            values = [(*usual[:at], case, *usual[at + 1 :])[i][x] for i, f in enumerate(functions) for x in f.fields]
            here.append(f"{module}.{module.capitalize()}({', '.join(map(repr, values))}).{function.name}()")
        calls.append(here)
    return calls


def _evaluate(source: str, calls: Sequence[Sequence[str]], module: str) -> list[list[Any]]:
    """Run our own generated source in process; its import of the helper is already replaced by the helper's text."""
    space: dict[str, Any] = {}
    exec(compile(source, "<micro-swe>", "exec"), space)
    return [[eval(call.removeprefix(f"{module}."), space) for call in group] for group in calls]


def _test_text(package: str, module: str, functions: Sequence[Function], asserts: Sequence[Sequence[str]]) -> str:
    lines = [
        "import unittest",
        "",
        f"from {package} import {module}",
        "",
        "",
        f"class Test{module.capitalize()}(unittest.TestCase):",
    ]
    for function, group in zip(functions, asserts, strict=True):
        lines += [f"    def test_{function.name}(self):", *("        " + text for text in group), ""]
    return "\n".join(lines[:-1]) + "\n"


def _smoke_text(package: str, module: str, sibling: str, name: str, check: str) -> str:
    return (
        f"import unittest\n\nfrom {package} import {module}, {sibling}\n\n\n"
        "class TestSmoke(unittest.TestCase):\n"
        "    def test_import(self):\n"
        f'        self.assertEqual({module}.__name__, "{package}.{module}")\n\n'
        f"    def test_{name}(self):\n"
        f"        {check}\n"
    )


@functools.lru_cache(maxsize=256)
def build(split: str, index: int) -> Repository:
    """The repository of (split, index). Draws again, deterministically, in the rare case of an ambiguous bug line."""
    for attempt in range(_ATTEMPTS):
        rng = random.Random(f"micro-swe/{VERSION}/{split}/{index}/{attempt}")
        made = _attempt(rng, split)
        text = made.before[made.path]
        if text.count(made.old_line) == 1 and made.old_line not in made.candidates:
            return made
    raise TaskError(
        f"micro-swe/{split}/{index}: no unambiguous bug line in {_ATTEMPTS} draws; add words to data/micro_swe/words.py"
    )


def _attempt(rng: random.Random, split: str) -> Repository:
    names = _Names(rng)
    package, module, sibling = names.take("package"), names.take("module"), names.take("module")
    helper = names.take("h")
    by_kind: dict[str, list[Template]] = {}
    for template in TEMPLATES[split]:
        by_kind.setdefault(template.kind.name, []).append(template)
    target = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    layout = rng.choice(LAYOUTS[split])
    at, count = rng.choice([place for place in PLACES[split] if place[1] == 2 or len(target.body) < 3])
    plain = [t for t in TEMPLATES[split] if t.kind is not kinds.SWAPPED and not t.kind.missing and len(t.body) < 3]
    chosen = [rng.choice(plain) for _ in range(count)]
    chosen[at] = target
    owner = "self." if layout == "class" else ""
    functions = [_function(rng, template, names, helper, owner) for template in chosen]
    swapped = target.kind is kinds.SWAPPED
    if swapped:
        sibling_text, sibling_name, case = _helper(helper, names), helper, repr(tuple(rng.sample(range(1, 9), 3)))
        sibling_call = f"{sibling}.{helper}{case}"
    else:
        other = _function(rng, rng.choice(plain), names, helper)
        sibling_text, sibling_name = "\n".join(other.lines) + "\n", other.name
        sibling_call = _calls(sibling, [other], "plain")[0][0]
    imports = f"from {package}.{sibling} import {helper}" if swapped else ""
    before_text = _module(
        layout, module, package, [_with_bug(f) if i == at else f for i, f in enumerate(functions)], imports
    )
    after_text = _module(layout, module, package, functions, imports)
    calls = _calls(module, functions, layout)
    source = after_text.replace(imports, sibling_text) if swapped else after_text
    asserts = [
        [f"self.assertEqual({call}, {value!r})" for call, value in zip(group, values, strict=True)]
        for group, values in zip(calls, _evaluate(source, calls, module), strict=True)
    ]
    [[sibling_value]] = _evaluate(sibling_text, [[sibling_call]], sibling)
    path = f"{package}/{module}.py"
    shared = {
        f"{package}/__init__.py": f'"""The {package}."""\n',
        f"{package}/{sibling}.py": sibling_text,
        "tests/__init__.py": f'"""Tests of the {package}."""\n',
        "tests/test_smoke.py": _smoke_text(
            package, module, sibling, sibling_name, f"self.assertEqual({sibling_call}, {sibling_value!r})"
        ),
    }
    before_lines, after_lines = before_text.split("\n"), after_text.split("\n")
    line_at = next(i for i, (old, new) in enumerate(zip(before_lines, after_lines, strict=True)) if old != new)
    test = f"tests.test_{module}.Test{module.capitalize()}.test_"
    bug, what = functions[at], "method" if owner else "function"
    return Repository(
        before={path: before_text, **shared},
        after={path: after_text, **shared},
        path=path,
        old_line=before_lines[line_at].strip(),
        fixed_line=after_lines[line_at].strip(),
        line_at=line_at,
        hint=bug.hint,
        candidates=bug.candidates,
        fills=bug.fills,
        template=target,
        layout=layout,
        place=f"{what} {at + 1} of {count}, line {target.bug_line + 1} of {len(target.body)}",
        form=bug.form,
        choice=bug.choice,
        issue=rng.choice(ISSUES[split]).format(f=bug.name, path=path),
        test_path=f"tests/test_{module}.py",
        test_text=_test_text(package, module, functions, asserts),
        fail_to_pass=(test + bug.name,),
        pass_to_pass=(
            *(test + f.name for i, f in enumerate(functions) if i != at),
            "tests.test_smoke.TestSmoke.test_import",
            f"tests.test_smoke.TestSmoke.test_{sibling_name}",
        ),
        package=package,
        test_modules=(f"tests.test_{module}", "tests.test_smoke"),
    )
