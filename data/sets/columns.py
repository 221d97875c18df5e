"""Reading columns of foreign rows: every complaint names the set, the row and the column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.reading import InputError, parse_json
from data.task import TaskError


def text(row: Mapping[str, Any], number: int, source: str, *names: str) -> str:
    """The first of the columns that holds text (or a number)."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(int(value) if isinstance(value, float) and value.is_integer() else value)
        if isinstance(value, str) and value.strip():
            return value
    raise TaskError(
        f"{source}, row {number + 1}: no text in column {' or '.join(names)} (it has {', '.join(map(str, row))[:300]})"
    )


def decoded(row: Mapping[str, Any], number: int, source: str, name: str) -> Any:
    """A column that is JSON text in some revisions and nested data in others."""
    value = row.get(name)
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, f"column {name}")
    except InputError as error:
        raise TaskError(f"{source}, row {number + 1}: column {name} is no JSON: {error}") from error
