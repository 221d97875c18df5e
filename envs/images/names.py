"""Image names, read as Docker reads them.

Promises: two spellings of one image are one `ImageName`; a name that no registry could serve is refused with the
reason; names of images that are only ever made on this machine are never asked of a registry (a stranger could own
them there).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from data.installed import run_script
from envs.images.faults import ImageRefused

HUB = "docker.io"
HOME_MADE = {
    "sao-base": f"{run_script('base-image')} makes it",
    "sao-real/": "scripts/real_task.py makes it",
}
"""Repositories (all below a folder) without a registry that are made here -> the way to them."""

MADE_HERE = "sao.local-image"
"""Label of images that `envs.images.local` made."""

_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?")


@dataclass(frozen=True)
class ImageName:
    """`digest` is empty unless the name pins one; `tag` is empty exactly when a digest is given without one."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Raises ImageRefused."""
        name, at, digest = text.strip().partition("@")
        head, slash, rest = name.partition("/")
        has_host = bool(slash) and ("." in head or ":" in head or head == "localhost" or head.startswith("["))
        registry, path = (head, rest) if has_host else (HUB, name)
        path, colon, tag = path.partition(":")
        if registry in ("index.docker.io", "registry-1.docker.io"):
            registry = HUB
        if registry == HUB and "/" not in path:
            path = f"library/{path}"
        faults = []
        if has_host and not _HOST.fullmatch(registry):
            faults.append(f"{registry!r} is no host")
        if not all(_PART.fullmatch(part) for part in path.split("/")):
            faults.append("the repository must be lower-case words joined by . _ - and /")
        if colon and not _TAG.fullmatch(tag):
            faults.append(f"{tag!r} is no tag")
        if at and not _DIGEST.fullmatch(digest):
            faults.append(f"{digest!r} is no sha256 digest")
        if faults:
            raise ImageRefused(
                f"{text!r} is no image name: {'; '.join(faults)}. Mend the task row or the configuration"
            )
        return cls(registry, path, tag or ("" if at else "latest"), digest)

    @property
    def reference(self) -> str:
        """What the registry calls it: digest, else tag."""
        return self.digest or self.tag

    @property
    def home_made(self) -> str:
        """How to make an image that comes from no registry; empty for all others."""
        name = self.repository.removeprefix("library/")
        if self.registry != HUB:
            return ""
        return HOME_MADE.get(name) or HOME_MADE.get(name.partition("/")[0] + "/", "")

    def __str__(self) -> str:
        """As the engine lists it."""
        path = self.repository if self.registry == HUB else f"{self.registry}/{self.repository}"
        path = path.removeprefix("library/") if self.registry == HUB else path
        return path + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    def under(self, prefix: str) -> ImageName | None:
        """The same image below a mirror of Docker Hub (`host[:port][/path]`). None: not one of Docker Hub's, or pinned
        by digest, which the engine cannot rename to where tasks look for it."""
        if not prefix or self.registry != HUB or self.digest:
            return None
        mirror = ImageName.parse(f"{prefix.rstrip('/')}/{self.repository}:{self.tag}")
        if mirror.registry == HUB:
            raise ImageRefused(f"images.mirror {prefix!r} must begin with a host that has a dot or a port in it")
        return replace(mirror, tag=self.tag)
