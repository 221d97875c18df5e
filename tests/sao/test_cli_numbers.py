"""Every number that a command takes has a bound: here, or in the configuration that it becomes a part of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from sao.cli import app

CHECKED_BY_THE_CONFIGURATION = {"episodes", "steps", "batch"}
ANY_NUMBER = {"seed"}


def options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, part in getattr(command, "commands", {}).items():
        yield from options(part, (*path, name))
    for option in getattr(command, "params", ()):
        yield " ".join((*path, option.name)), option


def test_no_number_is_without_a_bound() -> None:
    numbers = {
        where: option
        for where, option in options(typer.main.get_command(app))
        if any(kind in str(option.type_descriptor.annotation) for kind in ("int", "float"))
    }
    assert {"eval tasks temperature", "eval micro-swe tasks", "serve port", "replay limit"} <= numbers.keys()
    free = {where for where, option in numbers.items() if option.min is None}
    assert {where.split()[-1] for where in free} <= CHECKED_BY_THE_CONFIGURATION | ANY_NUMBER, free
