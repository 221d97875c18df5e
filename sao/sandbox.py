"""`sao sandbox`: what sandboxes are on this machine, whose they are, and removing what nobody owns any more.

Promises: `ls` changes nothing; `gc` touches only what a dead driver left or what is past its deadline, of every run
and every user that this engine shows; a backend that does not run here is said, not an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envs.sandbox import BackendUnavailable, SandboxBackend, SandboxError
from envs.sandbox.backends import every_backend
from envs.sandbox.owner import Found

_STYLE = {"in use": "green", "abandoned": "red", "elsewhere": "yellow"}


def list_sandboxes(console: Console, *, as_json: bool) -> int:
    """Exit code 1 when something is abandoned, so that a script can ask."""
    found: dict[str, list[Found]] = {}

    async def look(backend: SandboxBackend) -> None:
        found[backend.name] = await backend.survey()

    missing = asyncio.run(_each_backend("ls", look))
    if as_json:
        print(json.dumps({"found": {kind: [asdict(each) for each in all_] for kind, all_ in found.items()},
                          "unavailable": missing}))  # fmt: skip
    else:
        _show(console, found, missing)
    return int(any(each.standing == "abandoned" for all_ in found.values() for each in all_))


def collect_garbage(console: Console, *, dry_run: bool) -> int:
    """Exit code 1 when something that is abandoned could not be removed now."""
    left = 0

    async def reap(backend: SandboxBackend) -> None:
        nonlocal left
        if dry_run:
            removed = [f"{one.kind} {one.name}" for one in await backend.survey() if one.standing == "abandoned"]
        else:
            removed = await backend.reap()
            left += sum(1 for one in await backend.survey() if one.standing == "abandoned")
        verb = "would remove" if dry_run else "removed"
        console.print(f"{backend.name}: {verb} {len(removed)}" + "".join(f"\n  {escape(name)}" for name in removed))

    for kind, why in asyncio.run(_each_backend("gc", reap)).items():
        console.print(f"{kind}: {escape(why)}")
    if left:
        console.print(f"[yellow]{left} are still ending or could not be removed: `sao sandbox ls` shows them[/yellow]")
    return int(left > 0)


async def _each_backend(run_id: str, work: Callable[[SandboxBackend], Awaitable[None]]) -> dict[str, str]:
    """`work` on every backend that runs here; why the others do not."""
    missing = {}
    for kind, backend in await asyncio.to_thread(every_backend, run_id):
        if isinstance(backend, BackendUnavailable):
            missing[kind] = str(backend)
            continue
        try:
            await work(backend)
        except SandboxError as error:
            missing[kind] = str(error)
        finally:
            await backend.close()
    return missing


def _show(console: Console, found: dict[str, list[Found]], missing: dict[str, str]) -> None:
    if not console.is_terminal:
        console.width = 200  # names stay whole for who searches them
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("backend", "what", "name", "run", "owner", "", "age", "ends in", "note"):
        table.add_column(title, overflow="fold", min_width=24 if title == "name" else None)
    now = time.time()
    for kind, each in [(kind, each) for kind, all_ in found.items() for each in all_]:
        age = "" if each.made_at is None else duration(now - each.made_at)
        ends = "" if each.ends_at is None else duration(each.ends_at - now)
        owner = "" if each.pid is None else f"process {each.pid}"
        colour = _STYLE[each.standing]
        cells = (
            kind,
            escape(each.kind),
            escape(each.name),
            escape(each.run),
            owner,
            f"[{colour}]{each.standing}[/{colour}]",
            age,
            ends,
        )
        table.add_row(*cells, escape(each.note))
    if table.row_count:
        console.print(table)
    total: Sequence[Found] = [each for all_ in found.values() for each in all_]
    counts = ", ".join(f"{sum(e.standing == s for e in total)} {s}" for s in _STYLE)
    console.print(f"{len(total)} found: {counts}" if total else "nothing: no sandbox and nothing left of one")
    for kind, why in missing.items():
        console.print(f"[dim]{kind}: {escape(why)}[/dim]")
    if any(each.standing == "abandoned" for each in total):
        console.print("`sao sandbox gc` removes what is abandoned (the next start of a run does so too)")


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 12 min, 3 h 5 min, overdue 2 min."""
    if seconds < 0:
        return f"overdue {duration(-seconds)}"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d"
