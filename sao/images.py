"""`sao images`: what a run needs, fetching it, what is here, making room.

Promises: `plan` changes nothing; `pull` takes up where it was stopped; `prune` removes only images that this user's
runs pulled, or (`--made`) that were made here, and that nothing uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from data.task import Task
from envs.images import ImageFault, ImageName, ImagePlan, ImageStore, make_plan
from envs.images.disk import Image, Usage, gib, named
from envs.images.pull import Listener, PullProgress
from envs.maths.environment import read_maths_row
from envs.sandbox import BackendUnavailable
from envs.swe.row import image_of
from sao.assemble import image_settings, tasks_of
from sao.config import Config

log = logging.getLogger(__name__)
SHOWN = 20
_NAME_WIDTH = 64


def images_of(tasks: Iterable[Task]) -> Counter[str]:
    """Image -> how many tasks want it. Raises TaskError."""
    return Counter(read_maths_row(task).image if task.kind == "maths" else image_of(task) for task in tasks)


@contextlib.asynccontextmanager
async def _open(config: Config, listener: Listener | None = None) -> AsyncIterator[ImageStore]:
    store = ImageStore(image_settings(config), listener=listener)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _plan(store: ImageStore, config: Config, wanted: Mapping[str, int], sample: int) -> ImagePlan:
    return await make_plan(store, wanted, sample=sample, at_once=config.rollout.concurrency)


def plan_images(config: Config, console: Console, *, sample: int, as_json: bool, show_all: bool) -> int:
    """Exit code 1 when the run cannot get its images."""
    wanted = images_of(tasks_of(config, config.rollout.episodes))

    async def work() -> ImagePlan:
        async with _open(config) as store:
            return await _plan(store, config, wanted, sample)

    plan = asyncio.run(work())
    if as_json:
        print(json.dumps(plan_facts(plan), indent=2))
    else:
        show_plan(plan, console, show_all=show_all)
    return 1 if plan.verdict in ("too large", "not to be had") else 0


def plan_facts(plan: ImagePlan) -> dict[str, Any]:
    missing = plan.those("missing")
    return {
        "verdict": plan.verdict,
        "meaning": plan.meaning,
        "images": len(plan.needs),
        "present": len(plan.those("present")),
        "missing": len(missing),
        "measured": plan.measured,
        "download_bytes": plan.download_bytes if plan.measured or not missing else None,
        "disk_bytes_estimate": plan.disk_bytes,
        "used_bytes": plan.used_bytes,
        "free_bytes": plan.free_bytes,
        "room_bytes": plan.room_bytes,
        "removable_bytes": plan.removable_bytes,
        "pulls_left": plan.pulls_left,
        "needs": [
            {
                "image": need.name,
                "tasks": need.tasks,
                "state": need.state,
                "download_bytes": need.download_bytes,
                "problem": need.problem,
            }
            for need in plan.needs
        ],
    }


def show_plan(plan: ImagePlan, console: Console, *, show_all: bool = False) -> None:
    missing = [need for need in plan.needs if need.state != "present"]
    missing.sort(key=lambda need: (not need.problem, need.name))
    # A name that is cut cannot be told from its neighbours: it goes on in the next line instead.
    widest = min(max((len(need.name) for need in missing), default=0), _NAME_WIDTH)
    image = Column("image", overflow="fold", min_width=widest)
    table = Table(image, "tasks", "to pull", Column("", overflow="fold"), box=None)
    for need in missing if show_all else missing[:SHOWN]:
        size = "" if need.state == "make" else gib(need.download_bytes) if need.download_bytes is not None else "?"
        table.add_row(need.name, str(need.tasks), size, escape(need.problem))
    if missing:
        console.print(table)
        if len(missing) > SHOWN and not show_all:
            console.print(f"[dim]… and {len(missing) - SHOWN} more (--all shows them)[/dim]")
    facts = Table.grid(padding=(0, 2))
    tasks = sum(need.tasks for need in plan.needs)
    facts.add_row("needed", f"{len(plan.needs)} images for {tasks} tasks; {len(plan.those('present'))} are here")
    if plan.those("missing"):
        whole = plan.measured == len(plan.those("missing"))
        how = "measured" if whole else f"estimated from {plan.measured} of {len(plan.those('missing'))}"
        facts.add_row("to pull", f"{gib(plan.download_bytes)} over the network ({how})" if plan.measured else "unknown")
        facts.add_row("on disk", f"about {gib(plan.disk_bytes)} (an estimate)")
    room = "no limit known" if plan.room_bytes is None else f"{gib(plan.room_bytes)} for more"
    facts.add_row(
        "room",
        f"{room}; images take {gib(plan.used_bytes)}, {gib(plan.free_bytes)} free on the engine's disk, "
        f"{gib(plan.removable_bytes)} in images that may go",
    )
    if plan.pulls_left is not None:
        short = plan.pulls_left < len(plan.those("missing"))
        facts.add_row(
            "pulls left",
            f"{plan.pulls_left} for now, by the registry's count"
            + (": not enough; `docker login` raises it, a mirror (images.mirror) avoids it" if short else ""),
        )
    console.print(facts)
    bad = plan.verdict in ("too large", "not to be had")
    console.print(f"[{'red' if bad else 'green'}]{escape(plan.meaning)}[/]")


def pull_images(config: Config, console: Console, names: Sequence[str]) -> int:
    """`names`: these; none: what the configured tasks need. Exit code 3 when some could not be had."""
    wanted: Mapping[str, int] = Counter(names) if names else images_of(tasks_of(config, config.rollout.episodes))
    return asyncio.run(_pull_missing(config, console, wanted))


async def fetch_for_run(config: Config, tasks: Sequence[Task], console: Console) -> None:
    """Before a run: pull what is missing when all of it fits; otherwise the sandboxes fetch as they start.

    Raises ImageFault when the run could not be played anyway."""
    wanted = {name: count for name, count in images_of(tasks).items() if not ImageName.parse(name).home_made}
    if not wanted or config.sandbox.backend == "embedded":
        return
    try:
        async with _open(config) as store:
            missing = {name: count for name, count in wanted.items() if not await store.has(name)}
            if not missing:
                return
            plan = await _plan(store, config, missing, sample=3)
    except BackendUnavailable:
        if config.sandbox.backend == "auto":
            return  # the choice of the backend tells
        raise
    console.print(f"images: {escape(plan.meaning)}")
    if plan.verdict in ("too large", "not to be had"):
        show_plan(plan, console)
        raise ImageFault(f"{plan.meaning} (sao images plan)")
    if plan.verdict != "in turns" and await _pull_missing(config, console, missing):
        raise ImageFault("some images could not be pulled, see above; the same command goes on where this one stopped")


async def _pull_missing(config: Config, console: Console, wanted: Mapping[str, int]) -> int:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    failed: dict[str, ImageFault] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def show(state: PullProgress) -> None:  # called from the pulling threads; rich has its own lock
            if state.name not in bars:
                bars[state.name] = progress.add_task(_short(state.name))
            what = _short(state.name) + (" unpacking" if state.unpacking else "")
            progress.update(bars[state.name], description=what, completed=state.done, total=state.total or None)

        async with _open(config, show) as store:
            here = 0

            async def one(name: str) -> None:
                nonlocal here
                began, was_there = time.monotonic(), await store.has(name)
                try:
                    await store.ensure(name)
                except ImageFault as fault:
                    failed[name] = fault
                    console.print(f"[red]{escape(str(fault))}[/red]")
                    return
                finally:
                    if (bar := bars.pop(str(ImageName.parse(name)), None)) is not None:
                        progress.remove_task(bar)
                here += 1
                if not was_there:
                    console.print(f"[{here}/{len(wanted)}] {name} in {time.monotonic() - began:.1f} s", markup=False)

            await asyncio.gather(*map(one, wanted))
    console.print(f"{here} of {len(wanted)} images are on this machine")
    return 3 if failed else 0


def _short(name: str) -> str:
    return name if len(name) <= 48 else f"…{name[-47:]}"


def list_images(config: Config, console: Console, *, as_json: bool) -> None:
    async def work() -> Usage:
        async with _open(config) as store:
            return await store.usage()

    usage = asyncio.run(work())
    if as_json:
        rows = [
            {
                "image": image.name,
                "id": image.image_id,
                "bytes": image.bytes,
                "unique_bytes": image.unique_bytes,
                "containers": image.containers,
                "last_used": image.entry.last_used if image.entry else None,
                "kept_because": image.kept,
            }
            for image in usage.images
        ]
        print(
            json.dumps({"images": rows, "layers_bytes": usage.layers_bytes, "free_bytes": usage.free_bytes}, indent=2)
        )
        return
    table = Table("image", "size", "its own", "last used", "may go", box=None)
    for image in usage.images:
        table.add_row(
            image.name[:19] if image.name == image.image_id else image.name,
            gib(image.bytes),
            gib(image.unique_bytes),
            _ago(image),
            escape(image.kept and f"no: {image.kept}") or "yes",
        )
    console.print(table)
    console.print(
        f"{len(usage.images)} names; their layers take {gib(usage.layers_bytes)}, {gib(usage.removable_bytes)} may go; "
        f"{gib(usage.free_bytes)} free in {usage.root}"
    )


def _ago(image: Image) -> str:
    if image.entry is None:
        return ""
    hours = (time.time() - image.entry.last_used) / 3600
    return f"{hours / 24:.1f} d ago" if hours >= 48 else f"{hours:.1f} h ago"


def prune_images(
    config: Config, console: Console, *, everything: bool, dry_run: bool, made: bool = False, names: Sequence[str] = ()
) -> int:
    """Exit code 1 when the limits do not hold afterwards. `made`: those made here instead, of `names` if any; then 1
    when one of them did not go."""

    async def work() -> tuple[list[Image], Usage]:
        async with _open(config) as store:
            return await store.prune(everything=everything, dry_run=dry_run, made=made, names=names)

    gone, usage = asyncio.run(work())
    for image in gone:
        console.print(
            f"{'would remove' if dry_run else 'removed'} {image.name} ({gib(image.unique_bytes)})", markup=False
        )
    missed = [name for name in names if made and not any(named(image, [name]) for image in gone)]
    for name in missed:
        console.print(
            f"{name}: no image of this name was made here, or something uses it (sao images ls)",
            style="yellow",
            markup=False,
        )
    over = usage.lacking(0, image_settings(config))
    console.print(
        f"{len(gone)} images {'would go' if dry_run else 'removed'}; layers take {gib(usage.layers_bytes)}, "
        f"{gib(usage.free_bytes)} free"
    )
    if over > 0 and not dry_run and not made:
        console.print(
            f"[yellow]still {gib(over)} over images.budget_gib or images.keep_free_gib: nothing else may go[/]"
        )
        return 1
    return 1 if missed else 0
