"""Every command that help texts, README and documents show: collected, and read as the shell and the parser would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from sao.cli import app
from sao.config import load_config
from trainer.sft_cli import parse as parse_sft

ROOT = Path(__file__).resolve().parents[2]
_STARTS = re.compile(r"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:\.venv/bin/\w+|sao|make|python|scripts/\S+)(?: .*)?)$")


@dataclass(frozen=True, order=True)
class Shown:
    where: str
    line: str

    @property
    def words(self) -> list[str]:
        """Without variables before it, a comment behind it, and what it is piped into."""
        words = shlex.split(self.line, comments=True)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        words = words[: words.index("|")] if "|" in words else words
        return [words[0].removeprefix(".venv/bin/"), *words[1:]]


@cache
def the_command() -> Any:
    return typer.main.get_command(app)


def shown() -> list[Shown]:
    return sorted({*_in_help(the_command(), "sao"), *_in_documents()})


def _in_help(command: Any, name: str) -> Iterator[Shown]:
    for line in re.findall(r"(?m)^  \$ (.*)$", command.epilog or ""):
        yield Shown(f"{name} --help", line)
    for word, inner in getattr(command, "commands", {}).items():
        yield from _in_help(inner, f"{name} {word}")


def _in_documents() -> Iterator[Shown]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        fenced = False
        for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("```"):
                fenced = not fenced
            elif (fenced or line.startswith("    ")) and (found := _STARTS.match(line.strip())):
                yield Shown(str(path.relative_to(ROOT)), found[1])


def fault_of_sao(words: list[str]) -> str:
    """Of an unknown sub-command, option or setting; empty where the command would begin."""
    command: Any = the_command()  # typer brings a parser of its own, with click's names
    context = command.context_class(command, info_name="sao")
    rest = words[1:]
    if rest[0] == "sft":
        try:
            parse_sft(rest[1:])
        except SystemExit:
            return "sft refuses it"
        return ""
    while (
        hasattr(command, "commands") and rest and not rest[0].startswith("-")
    ):  # else a group that is a command itself
        name, rest = rest[0], rest[1:]
        inner = command.get_command(context, name)
        if inner is None:
            return f"there is no {name!r}"
        command, context = inner, inner.context_class(inner, info_name=name, parent=context)
    try:
        values, _, _ = command.make_parser(context).parse_args(list(rest))
        _resolves(values.get("config") or "demo", tuple(values.get("overrides") or ()))
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


@cache
def _resolves(config: str, overrides: tuple[str, ...]) -> None:
    load_config(config, overrides)
