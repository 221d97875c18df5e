"""Which task rows `sao tasks validate` has looked at here, and what it said: in the runs folder, by the rows' hashes.

A row whose reference fix is not paid teaches nothing, and one that doing nothing solves teaches the wrong thing. Nobody
but validate can tell, so a start says aloud what it has not seen. Generated tasks are right by how they are made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from data.atomic import write_atomically
from data.reading import InputError, read_json, shown
from data.task import Task
from sao.config import Config
from sao.paths import runs_folder

_FILE = ".validated.json"
_SHOWN = 3


def remember(found: Sequence[tuple[Task, Sequence[str]]]) -> None:
    """Rows with their problems, of which a usable row has none. Raises OSError."""
    place = runs_folder() / _FILE
    known = {**_known(), **{_digest(task): list(problems) for task, problems in found}}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, json.dumps(known, indent=0).encode())


def unvalidated(config: Config, tasks: Sequence[Task]) -> str:
    """A warning about rows of a file or set that validate never saw, or that it called unusable; empty otherwise."""
    if not config.tasks.path and config.tasks.name.partition(":")[0] in ("micro-swe", "reasoning-gym"):
        return ""
    rows, known = [task for task in tasks if task.kind == "swe"], _known()
    said = {task.task_id: known.get(_digest(task)) for task in rows}
    bad = [f"{name} ({problems[0]})" for name, problems in said.items() if problems]
    unseen = sum(problems is None for problems in said.values())
    name, path = shown(config.tasks.name), shown(config.tasks.path)
    where = f"--tasks {path}" if config.tasks.path else f"--set tasks.name={name}"
    parts = []
    if unseen:
        parts.append(
            f"{unseen} of {len(rows)} rows were never checked on this machine: one whose reference fix is not paid "
            f"here teaches nothing. sao tasks validate {where} shows every such row."
        )
    if bad:
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        parts.append(f"sao tasks validate called unusable: {'; '.join(bad[:_SHOWN])}{more}.")
    return " ".join(parts)


def _known() -> Mapping[str, list[str]]:
    try:
        found = read_json(runs_folder() / _FILE)
    except (InputError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(task: Task) -> str:
    return hashlib.sha256(json.dumps(dict(task.row), sort_keys=True, default=str).encode()).hexdigest()[:32]
