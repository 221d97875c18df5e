"""What this user's runs pulled, when each image was last used, and what living processes are about to use.

Promises: one small file per fact, written by rename, so that many processes share it without a lock; a dead process's
leases do not count; only images recorded here were pulled by us, nobody else's image is ever up for removal. A ledger
that cannot be written costs eviction, never a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.sandbox.owner import owner_alive, owner_id

log = logging.getLogger(__name__)


def state_folder() -> Path:
    """SAO_STATE, else the XDG state folder."""
    if chosen := os.environ.get("SAO_STATE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sao"


@dataclass(frozen=True)
class Entry:
    """An image that we pulled. Times are seconds since 1970."""

    name: str
    image_id: str
    pulled_at: float
    last_used: float


class Ledger:
    """One for each engine (its images are its own)."""

    def __init__(self, engine_id: str, folder: Path | None = None) -> None:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", engine_id).strip("-") or "engine"
        self.folder = (folder or state_folder()) / "images" / slug
        self._leases: dict[str, int] = {}
        self._token = os.urandom(4).hex()
        """One process may have several ledgers of one engine."""
        self._warned = False

    def pulled(self, name: str, image_id: str) -> None:
        now = time.time()
        self._write(self._file("pulled", name), {"name": name, "image_id": image_id, "pulled_at": now})

    def used(self, name: str) -> None:
        """Now. Images that we did not pull have no entry, and get none."""
        with contextlib.suppress(OSError):
            os.utime(self._file("pulled", name))

    def forget(self, name: str) -> None:
        _unlink(self._file("pulled", name))

    def entries(self) -> dict[str, Entry]:
        found = {}
        for file, values in self._all("pulled"):
            with contextlib.suppress(FileNotFoundError):
                entry = Entry(values["name"], values["image_id"], values["pulled_at"], file.stat().st_mtime)
                found[entry.name] = entry
        return found

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[None]:
        """While held, no process removes the image: it is about to be used. Counted; may be nested."""
        self._count(name, 1)
        try:
            yield
        finally:
            self._count(name, -1)

    def leased(self) -> set[str]:
        """Names that living processes hold, this one included."""
        names: set[str] = set()
        for file, values in self._all("leases"):
            if owner_alive(file.stem.partition("~")[0]) is False:
                _unlink(file)
            else:
                names |= set(values["names"])
        return names | set(self._leases)

    def remember(self, kind: str, key: str, values: Mapping[str, Any]) -> None:
        """A fact that may be looked up again (`recall`), such as an image's size by digest."""
        self._write(self._file(kind, key), values)

    def recall(self, kind: str, key: str) -> dict[str, Any] | None:
        return _read(self._file(kind, key))

    def _count(self, name: str, step: int) -> None:
        self._leases[name] = self._leases.get(name, 0) + step
        if self._leases[name] <= 0:
            del self._leases[name]
        file = self.folder / "leases" / f"{owner_id()}~{self._token}.json"
        if self._leases:
            self._write(file, {"names": sorted(self._leases)})
        else:
            _unlink(file)

    def _file(self, kind: str, key: str) -> Path:
        return self.folder / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _all(self, kind: str) -> Iterable[tuple[Path, dict[str, Any]]]:
        for file in sorted((self.folder / kind).glob("*.json")):
            if (values := _read(file)) is not None:
                yield file, values

    def _write(self, file: Path, values: Mapping[str, Any]) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
            temporary.write_text(json.dumps(values))
            temporary.replace(file)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s cannot be written (%s): images pulled now will not be removed by themselves. "
                    "Set SAO_STATE to a folder that can be written.",
                    self.folder,
                    error,
                )


def _unlink(file: Path) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        file.unlink()


def _read(file: Path) -> dict[str, Any] | None:
    """None: not there, or damaged (then it is as if it was never written)."""
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
