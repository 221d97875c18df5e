"""What a run needs, what is missing, and whether it fits, before anything starts.

Promises: nothing is pulled or removed; layers that images share, among themselves or with what the engine holds, are
counted once; figures that are estimates say so. On Docker Hub reading a manifest counts as a pull, so only `sample`
missing images are measured there and the others are taken to be like them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envs.images.disk import gib
from envs.images.faults import ImageDenied, ImageFault, ImageNotFound, ImageRefused
from envs.images.names import HUB, ImageName
from envs.images.registry import Asked, Layer
from envs.images.store import UNPACKED, ImageStore

Verdict = Literal["ready", "fits", "unknown", "fits after removing", "in turns", "too large", "not to be had"]
_AT_ONCE = 6


@dataclass(frozen=True)
class Need:
    """One image. Bytes beyond what the engine or an earlier image of the plan has; None: not measured."""

    name: str
    tasks: int
    state: Literal["present", "missing", "make"]
    """make: it comes from no registry and was not made yet."""
    download_bytes: int | None = None
    problem: str = ""
    """Why it cannot be had, or not be measured."""
    hopeless: bool = False
    """The problem will not pass by itself."""


@dataclass(frozen=True)
class ImagePlan:
    needs: tuple[Need, ...]
    download_bytes: int
    """Of all missing images together; an estimate unless every one was measured."""
    measured: int
    """How many of the missing were measured."""
    largest_bytes: int
    """On disk, of the largest missing image: measured, or the mean."""
    at_once: int
    """Sandboxes at once."""
    used_bytes: int
    free_bytes: int | None
    removable_bytes: int
    room_bytes: int | None
    """For more images, without removing any; None: no limit is known."""
    pulls_left: int | None

    def those(self, state: str) -> list[Need]:
        return [need for need in self.needs if need.state == state]

    @property
    def disk_bytes(self) -> int | None:
        """What the missing images take, estimated from what travels; None: none of them could be measured."""
        return UNPACKED * self.download_bytes if self.measured or not self.those("missing") else None

    @property
    def verdict(self) -> Verdict:
        if any(need.hopeless or need.state == "make" for need in self.needs):
            return "not to be had"
        if not self.those("missing"):
            return "ready"
        if self.disk_bytes is None:
            return "unknown"
        if self.room_bytes is None or self.disk_bytes <= self.room_bytes:
            return "fits"
        if self.disk_bytes <= self.room_bytes + self.removable_bytes:
            return "fits after removing"
        in_turns = min(self.at_once, len(self.those("missing"))) * self.largest_bytes
        return "in turns" if in_turns <= self.room_bytes + self.removable_bytes else "too large"

    @property
    def meaning(self) -> str:
        """The verdict in a sentence, with the way out."""
        missing, disk_use = len(self.those("missing")), gib(self.disk_bytes)
        return {
            "ready": "every image is on this machine",
            "fits": f"{missing} images to pull, about {disk_use} on disk: there is room",
            "unknown": f"{missing} images to pull, none of which could be measured: see the list",
            "fits after removing": f"{missing} images to pull, about {disk_use} on disk: others, not used lately, go",
            "in turns": f"{missing} images to pull, about {disk_use} on disk, more than there is room for: they come "
            "and go while the run uses them, and each further pass pulls again",
            "too large": f"there is not even room for {self.at_once} of the missing images at once (about "
            f"{gib(self.largest_bytes)} each): raise images.budget_gib, make room on the disk, or run fewer at once",
            "not to be had": "some images cannot be had, see the list: mend the names, log in, or make them here",
        }[self.verdict]


async def make_plan(store: ImageStore, wanted: Mapping[str, int], *, sample: int = 5, at_once: int = 8) -> ImagePlan:
    """`wanted`: image -> how many tasks want it. `sample`: how many of Docker Hub's missing images to measure (each
    costs a pull of the account's limit); negative: all. Raises BackendUnavailable, ImageRefused for a broken name."""
    names: dict[str, tuple[ImageName, int]] = {}
    for text, tasks in wanted.items():
        parsed = ImageName.parse(text)
        names[str(parsed)] = parsed, tasks + names.get(str(parsed), (parsed, 0))[1]
    layers_of = await store.known_layers()
    usage = await store.usage()
    here = {image.name for image in usage.images} | {image.image_id for image in usage.images}
    gate = asyncio.Semaphore(_AT_ONCE)
    missing: dict[str, ImageName] = {}
    needs: dict[str, Need] = {}
    for key, (name, tasks) in names.items():
        if key in here or await store.has(key):
            needs[key] = Need(key, tasks, "present")
        elif name.home_made:
            needs[key] = Need(key, tasks, "make", problem=name.home_made, hopeless=True)
        else:
            missing[key] = name

    spend = set(missing)
    hub = [key for key, name in missing.items() if (name.under(store.settings.mirror) or name).registry == HUB]
    if sample >= 0:
        spend -= set(hub[sample:])

    async def look(key: str) -> list[Layer] | ImageFault | None:
        async with gate:
            try:
                return await store.layers(missing[key], spend=key in spend)
            except ImageFault as fault:
                return fault

    looks = dict(zip(missing, await asyncio.gather(*map(look, missing)), strict=True))
    chains = {chain for layers in layers_of.values() for chain in _chains(layers)}
    own: list[int] = []
    for key, (_, tasks) in names.items():
        if key in missing:
            found = looks[key]
            if isinstance(found, list):
                size = 0
                for layer, chain in zip(found, _chains([layer.diff_id for layer in found]), strict=True):
                    size += 0 if chain in chains else layer.size
                    chains.add(chain)
                own.append(size)
                needs[key] = Need(key, tasks, "missing", size)
            else:
                hopeless = isinstance(found, ImageNotFound | ImageDenied | ImageRefused)
                needs[key] = Need(key, tasks, "missing", None, str(found or ""), hopeless)
    # The first image brings what the others share: it says little about them.
    others = own[1:] or own
    mean = sum(others) // len(others) if others else 0
    rooms = [usage.free_bytes - store.settings.keep_free_bytes] if usage.free_bytes is not None else []
    if store.settings.budget_bytes:
        rooms.append(store.settings.budget_bytes - usage.layers_bytes)

    asked: Asked | None = None
    if hub:
        try:
            asked = await store.ask(missing[hub[0]])
        except ImageFault:  # told above, as that image's own problem
            asked = None
    return ImagePlan(
        needs=tuple(needs[key] for key in names),
        download_bytes=sum(own) + mean * (len(missing) - len(own)),
        measured=len(own),
        largest_bytes=UNPACKED * max([*own, mean]),
        at_once=at_once,
        used_bytes=usage.layers_bytes,
        free_bytes=usage.free_bytes,
        removable_bytes=usage.removable_bytes,
        room_bytes=max(0, min(rooms)) if rooms else None,
        pulls_left=asked.pulls_left if asked else None,
    )


def _chains(diff_ids: Sequence[str]) -> list[tuple[str, ...]]:
    """What the engine stores a layer under: itself and all below it."""
    return [tuple(diff_ids[: i + 1]) for i in range(len(diff_ids))]
