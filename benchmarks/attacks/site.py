"""What an attack knows of the row that it attacks, and what an attack is.

Attacks are written once and made for each layout: they see names of files and tests, as somebody does who has seen many
such rows. None of them mends the bug; honest inputs do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from data.task import Task

Content = str | bytes | None
"""Of a file: text, bytes, None (deleted); `-> x` is a link to x."""
Files = Mapping[str, Content]


@dataclass(frozen=True)
class Site:
    """One layout: a row with one wrong function."""

    name: str
    task: Task
    runner: str
    """unittest or pytest."""
    judges: tuple[str, ...]
    """train (envs.swe), eval (eval.swebench)."""
    backends: tuple[str, ...]
    product: str
    """The file with the wrong function."""
    text: str
    """Its text."""
    function: str
    hidden: str
    """The hidden test file."""
    tests: Mapping[str, tuple[str, ...]]
    """Judged tests of the hidden file that a fix makes pass: class ("" for none) -> functions."""
    report: str
    """What the runner would print if all passed."""
    base: Mapping[str, str]
    """Other files of the repository that attacks change: path -> text."""
    gold: str = ""
    """The reference fix."""
    answers: Mapping[tuple[object, ...], object] = field(default_factory=dict)
    """Arguments -> result that the hidden tests ask for."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The runner's own ids of the judged tests -> file."""
    trained: Task | None = None
    """The row as training has it, where that differs."""
    spare: tuple[str, ...] = ()
    """Words in names of tests that must go on failing."""
    own_tests: str | None = None
    """Folder where somebody who works there would put tests; None: that of the hidden file."""
    installs: bool = False
    """The test command runs the repository's setup.py before it puts the hidden tests in."""

    @property
    def module(self) -> str:
        return self.product.removesuffix(".py").replace("/", ".")

    @property
    def test_module(self) -> str:
        return self.hidden.removesuffix(".py").replace("/", ".")

    @property
    def folder(self) -> str:
        """The hidden file's folder, with a final slash unless it is the root."""
        return self.hidden.rpartition("/")[0] + "/" if "/" in self.hidden else ""

    @property
    def tests_folder(self) -> str:
        return self.folder if self.own_tests is None else self.own_tests

    @property
    def unless(self) -> str:
        """A Python expression over `name`: this test must go on failing."""
        return f"any(word in str(name) for word in {self.spare!r})"

    def code(self, *lines: str) -> Files:
        """The wrong function's file with more code at its end."""
        return {self.product: self.text.rstrip("\n") + "\n\n\n" + "\n".join(lines) + "\n"}

    def at_call(self, body: str) -> Files:
        """As `code`: the wrong function does `body` before its own work."""
        inside = "\n".join(f"    {line}" for line in body.split("\n"))
        wrong = f"_wrong = {self.function}\n\n\ndef {self.function}(*words, **named):\n{inside}\n"
        return self.code(wrong + "    return _wrong(*words, **named)")

    def fake_tests(self, imports: bool = True) -> str:
        """A module with tests of the judged names, all of which pass."""
        lines = ["import unittest"] if self.runner == "unittest" else []
        lines += [f"import {self.module}"] if imports else []
        for name, functions in self.tests.items():
            kind = "(unittest.TestCase)" if self.runner == "unittest" else ""
            lines += ["", "", f"class {name}{kind}:"] if name else []
            pad = "    " if name else ""
            for function in functions:
                self_word = "self" if name else ""
                lines += ["", f"{pad}def {function}({self_word}):", f"{pad}    pass"]
        return "\n".join(lines) + "\n"


Make = Callable[[Site], Files | None]
"""Files that an attack changes; None where it makes no sense."""


@dataclass(frozen=True)
class Attack:
    """A patch, or what an agent does. `fixes` is the true verdict."""

    name: str
    kind: str
    make: Make | None = None
    act: str = ""
    """Shell commands of an agent, instead of a patch; `{product}` and other fields of the site may stand in it."""
    on: tuple[str, ...] = ("unittest", "pytest")
    sites: tuple[str, ...] = ()
    """Names of layouts, where an attack is about one."""
    fixes: bool = False
    beyond: str = ""
    """Why no grader can tell; such an attack is not counted as fooling."""
    slow: bool = False
    """Seconds of work: left out of the quick run."""
    executable: tuple[str, ...] = field(default=())
    """Files with mode 755."""

    def fits(self, site: Site) -> bool:
        return site.runner in self.on and (not self.sites or site.name in self.sites)


class Table:
    """Attacks of one kind, collected with a decorator."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.attacks: list[Attack] = []

    def add(self, name: str, make: Make | None = None, **more: object) -> None:
        self.attacks.append(Attack(name, self.kind, make, **more))  # type: ignore[arg-type]

    def lines(self, name: str, *lines: str, **more: object) -> None:
        """Code at the end of the wrong function's file."""
        self.add(name, lambda site: site.code(*lines), **more)

    def call(self, name: str, body: str, **more: object) -> None:
        """Code that runs when the wrong function is called."""
        self.add(name, lambda site: site.at_call(body), **more)
