"""What the doctor says about one thing, and where it reads the machine's facts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """`text`: what was found. `means`: what follows from it. `loses`: the promise that cannot be kept here. `mend`: how
    to change that. All but the first may be empty."""

    level: Level
    name: str
    text: str
    means: str = ""
    loses: str = ""
    mend: str = ""

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Load:
    """What the machine is judged for."""

    sandboxes: int = 8
    """At once."""
    memory_bytes: int = 1 << 30
    """Of one sandbox."""
    pids: int = 256
    """Of one sandbox."""


@dataclass(frozen=True)
class Host:
    """/proc and /sys of a machine; tests give folders of their own."""

    root: Path = Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Stripped text; None: no such file, or not for us to read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        text = self.read(f"/proc/sys/{name}")
        try:
            return int(text.split()[0]) if text else None
        except ValueError:
            return None

    def table(self, name: str) -> dict[str, int]:
        """`Key:  123 kB` lines as bytes."""
        found = {}
        for line in (self.read(name) or "").splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return found
