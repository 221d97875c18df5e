"""A second source beside the log: what the test runner itself holds, told by a witness inside its process.

Output is easy to forge: code under test may print a perfect log and leave with `os._exit(0)`. So a small module that
Python loads at its start (`witness`, as sitecustomize from a folder of the driver's) tells what the runner counted,
from which bytes each judged test ran, whether the framework's objects are still those it began with, and what code of
the repository did that honest code hardly ever does. It tells this through the log, between marks that hold a secret:
what is written cannot be taken back, and a process that leaves early leaves no end behind. `Watch.split` takes it out.

Commands of other people's images may keep Python from loading the module, for good reasons. There (`sure` False) only a
runner that began under watch and did not finish is a finding, no word at all is none.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from envs.swe.guard.witness import program_text

_WATCHABLE = re.compile(r"(?:^|&&|;|\n)\s*(?:exec )?python3? (?:-[Bu] )*-m (?:unittest|pytest)\b")
# These make Python ignore the driver's folder, or set their own.
_PREVENTS = re.compile(r"PYTHONPATH|PYTHONHOME|\benv -i\b|-p no:terminal|-n ?(?:auto|\d)")
_KNOWN = ("pytest", "r2e_gym", "unittest", "unittest_shown")
_RUNNER = re.compile(r"(?:^|[\s/;&(])(?:pytest|py\.test)\b|runtests\.py|-m (?:unittest|pytest)\b")
# These hide the driver's folder from the runner's Python, or start it in a process that the witness leaves alone.
_UNWATCHABLE = re.compile(r"PYTHONPATH|PYTHONHOME|\benv -i\b|\btox\b|\bnox\b|-p no:terminal|python3? -[A-Za-z]*[IES]")
_OUTPUT = re.compile(r"^: '>>>>> Start Test Output'\n(.*?)^: '>>>>> End Test Output'", re.MULTILINE | re.DOTALL)

# Programs that go on while the script does.
_SERVICES = re.compile(
    r"(?<![&>])&[ \t]*(?:$|\))|\b(?:nohup|setsid|daemon\w*|systemctl|Xvfb|redis-server|mysqld\w*|pg_ctl)\b|"
    r"\bservice \w+ (?:re)?start|/etc/init\.d/",
    re.MULTILINE,
)


@cache
def _program() -> Mapping[str, bytes]:
    """The witness's text, and compiled for Pythons of this one's version: others compile the text (some 10 ms)."""
    text = program_text().encode()
    code = marshal.dumps(compile(text, "<start>", "exec", dont_inherit=True))
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(text)
    return {"sitecustomize.py": text, f"__pycache__/sitecustomize.{sys.implementation.cache_tag}.pyc": head + code}


def prepare() -> None:
    """Compiles the witness. Called before episodes run: it takes so long that their event loop would stand still."""
    _program()


def can_watch(log_parser: str, eval_script: str) -> bool:
    """Only plain commands of our own rows: elsewhere a missing word would prove nothing."""
    simple = log_parser in ("unittest", "pytest") and _WATCHABLE.search(eval_script) is not None
    return simple and _PREVENTS.search(eval_script) is None and re.search(r"\bactivate\b", eval_script) is None


def may_watch(log_parser: str, eval_script: str) -> bool:
    """Where a missing word proves nothing, but one that began and has no end does."""
    return (log_parser in _KNOWN or log_parser.startswith("parse_log_")) and _PREVENTS.search(eval_script) is None


def can_watch_script(script: str) -> bool:
    """An eval script of SWE-bench's form starts a runner that the witness knows, in a Python that it reaches."""
    found = _OUTPUT.search(script)
    command = found[1] if found else script
    return _RUNNER.search(command) is not None and _UNWATCHABLE.search(script) is None


def starts_others(script: str) -> bool:
    """The row's own script starts what the tests need, so that what is left running may be its."""
    return _SERVICES.search(script) is not None


@dataclass(frozen=True)
class Word:
    kind: str
    facts: Any
    key: str = ""
    """Of the runner that was at work: made when it began, known to the witness's hook alone."""


@dataclass(frozen=True)
class Noted:
    """All that the witness told in one run of the eval script."""

    words: tuple[Word, ...] = ()
    damaged: bool = False
    """A part of what was told is missing."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Judged files -> git's blob id of what base_commit and test patch make, where that is known."""
    altered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Beside it, what the driver saw of the image's programs (envs.swe.guard.outside)."""

    def of(self, kind: str) -> list[Any]:
        return [word.facts for word in self.words if word.kind == kind]

    @property
    def ends(self) -> list[Mapping[str, Any]]:
        began = {word.key for word in self.words if word.kind == "began"}
        ended = [word for word in self.words if word.kind == "end" and isinstance(word.facts, dict)]
        return [word.facts for word in ended if word.key in began or not began]

    @property
    def outcomes(self) -> dict[str, str]:
        """By test id; of several sessions the later."""
        return {str(name): str(what) for facts in self.ends for name, what in facts.get("outcomes", {}).items()}

    @property
    def whole(self) -> bool:
        """Every runner that began came to its end."""
        began = [word.key for word in self.words if word.kind == "began"]
        ended = [word.key for word in self.words if word.kind == "end"]
        counted = all(ended.count(key) >= began.count(key) for key in began)
        return bool(self.ends) and counted and not self.damaged

    def to_json(self) -> list[list[Any]]:
        told: list[list[Any]] = [[word.kind, word.facts, word.key] for word in self.words]
        return [*told, ["altered", dict(self.altered), ""]] if self.altered else told


@dataclass(frozen=True)
class Watch:
    """One watched run. `sure`: where no word comes, the runner did not finish by itself."""

    folder: str
    root: str
    sure: bool
    judged: Mapping[str, str] = field(default_factory=dict)
    """Files below `root` (or folders, with a final slash) -> git's blob id of the bytes that are to be judged, or
    empty."""
    ends: bool = False
    """What an earlier step left running is ended before any test is loaded. Only where nothing runs but the driver's
    channel and this."""
    installs: bool = True
    """Code of the repository may run before the runner starts."""
    secret: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def files(self) -> Mapping[str, bytes]:
        """Below `folder`."""
        told = {"root": self.root, "judged": dict(self.judged), "ends": self.ends, "installs": self.installs}
        settings = repr(told).encode("utf-8", "surrogateescape")
        return {f"start/{name}": data for name, data in {**_program(), "settings": settings}.items()}

    @property
    def prefix(self) -> str:
        """Put before a command; its standard output goes on as descriptor 9, see `suffix`."""
        return f"PYTHONPATH={self.folder}/start${{PYTHONPATH:+:$PYTHONPATH}} SAO_NOTE={self.secret}:9"

    suffix = "9>&1"

    def split(self, output: bytes) -> tuple[bytes, Noted]:
        """The log as if nobody had watched, and what was told."""
        told: list[Word] = []
        parts: list[bytes] = []
        damaged = False
        for found in self._marked.finditer(output):
            parts.append(found[2])
            if found[1] == b"+":
                continue
            text, parts = b"".join(parts), []
            try:
                kind, facts, *key = ast.literal_eval(text.decode("ascii"))
                told.append(Word(str(kind), facts, str(key[0]) if key else ""))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                damaged = True
        return self._marked.sub(b"", output), Noted(tuple(told), damaged or bool(parts))

    @property
    def _marked(self) -> re.Pattern[bytes]:
        return re.compile(rb"\x1e" + self.secret.encode() + rb"([+.])([^\x1e\x1f]*)\x1f")
