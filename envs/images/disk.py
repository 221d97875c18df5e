"""What images take on the engine's disk, and which of them may go.

Promises: an image is up for removal only when this user's runs pulled it, it still is what they pulled, no container
uses it, no living process is about to, and nobody gave it another name; the least recently used goes first. Images that
were made here (their label says so) never make room by themselves, as no registry has them: they go when asked for.
Removal is never forced: the engine itself refuses for an image that a container began to use in the meantime.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.images.ledger import Entry, Ledger
from envs.images.names import MADE_HERE
from envs.images.settings import ImageSettings
from envs.sandbox.contract import SandboxSpec
from envs.sandbox.docker_survey import RUN

log = logging.getLogger(__name__)
_BASE = SandboxSpec().image.removesuffix(":latest")


@dataclass(frozen=True)
class Image:
    """One name of an image on the engine. Bytes are unpacked; `unique_bytes` are in no other image."""

    name: str
    image_id: str
    bytes: int
    unique_bytes: int
    containers: int
    entry: Entry | None
    """Set where this user's runs pulled it."""
    kept: str
    """Why it may not be removed; empty when it may."""
    made: bool = False
    """Made here (`envs.images.local`), and nothing uses it: goes when asked for."""


@dataclass(frozen=True)
class Usage:
    images: tuple[Image, ...]
    """Least recently used first."""
    layers_bytes: int
    """All images of the engine, by their distinct layers."""
    free_bytes: int | None
    """On the engine's disk; None: not visible from here (a remote engine, a virtual machine)."""
    root: str
    """Where the engine keeps them."""

    @property
    def removable_bytes(self) -> int:
        """At least so much; layers that only removable images share come on top."""
        return sum(image.unique_bytes for image in self.images if not image.kept)

    def lacking(self, needed_bytes: int, settings: ImageSettings) -> int:
        """Bytes that must go before `needed_bytes` more fit; 0 or less: they fit."""
        over = self.layers_bytes + needed_bytes - settings.budget_bytes if settings.budget_bytes else 0
        if self.free_bytes is not None:
            over = max(over, settings.keep_free_bytes + needed_bytes - self.free_bytes)
        return over


def usage(api: Any, ledger: Ledger, root: str) -> Usage:
    """Blocking. `root`: the engine's DockerRootDir."""
    facts = api.df()
    using: dict[str, int] = {}
    for container in facts.get("Containers") or []:
        using[container["ImageID"]] = using.get(container["ImageID"], 0) + 1
    entries, leased = ledger.entries(), ledger.leased()
    images = []
    for record in facts.get("Images") or []:
        tags = [tag for tag in record.get("RepoTags") or [] if not tag.startswith("<none>")]
        labels = record.get("Labels") or {}
        digests = [digest for digest in record.get("RepoDigests") or [] if digest in entries]
        for name in [*tags, *digests] or [record["Id"]]:
            entry, count = entries.get(name), using.get(record["Id"], 0)
            others = [tag for tag in tags if tag != name and tag not in entries]
            kept, made = "", False
            if count:
                kept = f"{count} containers use it"
            elif name in leased:
                kept = "about to be used"
            elif RUN in labels:  # first: it has its image's labels too
                kept = "a run's prepared state (sao sandbox gc)"
            elif MADE_HERE in labels:
                kept, made = "made here (prune --made)", True
            elif name.removesuffix(":latest") == _BASE:
                kept = "the base image of sandboxes"
            elif entry is None:
                kept = "not pulled by sao"
            elif entry.image_id != record["Id"]:
                kept = "no longer what sao pulled"
            elif others:
                kept = f"also named {others[0]}"
            size, shared = int(record["Size"]), max(0, int(record.get("SharedSize") or 0))
            images.append(Image(name, record["Id"], size, size - shared, count, entry, kept, made))
    images.sort(key=lambda image: (image.entry.last_used if image.entry else float("inf"), image.name))
    visible = Path(root)
    free = shutil.disk_usage(visible).free if root and visible.is_dir() else None
    return Usage(tuple(images), int(facts.get("LayersSize") or 0), free, root)


def make_room(
    api: Any, ledger: Ledger, root: str, settings: ImageSettings, needed_bytes: int
) -> tuple[list[Image], Usage]:
    """Remove least recently used images until `needed_bytes` more fit or none is left that may go; what was removed,
    and the usage then. Blocking."""
    removed: list[Image] = []
    refused: set[str] = set()
    while True:
        now = usage(api, ledger, root)
        victims = [image for image in now.images if not image.kept and image.name not in refused]
        if now.lacking(needed_bytes, settings) <= 0 or not victims:
            return removed, now
        if remove(api, ledger, victims[0]):
            removed.append(victims[0])
        else:
            refused.add(victims[0].name)


def named(image: Image, names: Collection[str]) -> bool:
    """Whether `image` is one of `names`; with none everything is."""
    return not names or bool({image.name, image.name.removesuffix(":latest")} & set(names))


def remove_made(api: Any, ledger: Ledger, root: str, names: Collection[str]) -> tuple[list[Image], Usage]:
    """Remove what was made here, of `names` where some are given; what was removed, and the usage then. Blocking."""
    chosen = [image for image in usage(api, ledger, root).images if image.made and named(image, names)]
    return [image for image in chosen if remove(api, ledger, image)], usage(api, ledger, root)


def remove(api: Any, ledger: Ledger, image: Image) -> bool:
    """False when the engine refuses: something uses it after all. Blocking."""
    import docker

    if image.name in ledger.leased():
        return False
    try:
        api.remove_image(image.name)
    except docker.errors.ImageNotFound:
        ledger.forget(image.name)
        return False
    except docker.errors.APIError as error:
        if error.response is None or error.response.status_code != 409:
            raise
        return False
    ledger.forget(image.name)
    log.info("removed image %s (last used %s ago)", image.name, _ago(image.entry))
    return True


def _ago(entry: Entry | None) -> str:
    return "?" if entry is None else f"{(time.time() - entry.last_used) / 3600:.1f} h"


def gib(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "unknown"
    return f"{count / (1 << 30):.1f} GiB" if count >= 100 << 20 else f"{count / (1 << 20):.1f} MiB"


def known_layers(api: Any) -> Mapping[str, tuple[str, ...]]:
    """Image id -> ids of its unpacked layers, for every image on the engine. Blocking."""
    found = {}
    for record in api.images():
        found[record["Id"]] = tuple((api.inspect_image(record["Id"]).get("RootFS") or {}).get("Layers") or ())
    return found
