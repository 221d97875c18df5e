"""Why an image is not there. All are infrastructure errors: never a model failure, never "unresolved".

Promises: every fault names the image and the way out; `read_fault` tells what may pass with time from what will not.
"""

from __future__ import annotations

import re

from envs.sandbox.contract import ImageMissing


class ImageFault(ImageMissing):
    """Base of what can go wrong with an image. `transient`: another try may succeed; `reason`: what happened, without
    the way out; `retry_after_s`: what the registry asked to wait, where it did."""

    transient = False

    def __init__(self, text: str, *, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason or text
        self.retry_after_s = retry_after_s


class ImageRefused(ImageFault):
    """The name, or what the registry holds under it, cannot be used here."""


class ImageNotFound(ImageFault):
    """The registry has no such image."""


class ImageDenied(ImageFault):
    """The registry wants (other) credentials."""


class RegistryBusy(ImageFault):
    """429: too many requests, or the pull limit is used up."""

    transient = True


class RegistryTrouble(ImageFault):
    """5xx, a cut or stalled connection, damaged data: the registry or the way to it."""

    transient = True


class NoSpace(ImageFault):
    """Disk or budget are full, and nothing that may be removed would make enough room."""


_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded")
_NOT_FOUND = re.compile(r"manifest unknown|name unknown|manifest for \S+ not found|repository name not known")
_DENIED = re.compile(r"pull access denied|unauthorized|authentication required|no basic auth|denied: ")
_PLATFORM = re.compile(r"no matching manifest|image operating system .* cannot be used|unsupported media type|"
                       r"schema ?1|invalid reference format")  # fmt: skip
_BUSY = re.compile(r"toomanyrequests|too many requests|\b429\b|rate limit")


def read_fault(name: object, text: str) -> ImageFault | None:
    """What the engine's words mean; None when they do not tell (it often hides the registry's answer)."""
    low = text.lower()
    if _NO_SPACE.search(low):
        return NoSpace(f"no space left for image {name}: {text}. `sao images prune` makes room, or a larger disk")
    if _BUSY.search(low):
        return busy(name, text)
    if _PLATFORM.search(low):
        return ImageRefused(f"image {name} cannot be used on this engine: {text}")
    if _NOT_FOUND.search(low):
        return not_found(name, text)
    return denied(name, text) if _DENIED.search(low) else None


def not_found(name: object, text: str) -> ImageNotFound:
    return ImageNotFound(f"no registry has image {name} ({text}): check the name in the task row, or make it here")


def denied(name: object, text: str) -> ImageDenied:
    return ImageDenied(
        f"the registry gives image {name} only to users it knows, or it does not exist ({text}): `docker login` on "
        "this machine, or check the name"
    )


def busy(name: object, text: str, retry_after_s: float | None = None) -> RegistryBusy:
    asks = f"; it asks to wait {retry_after_s:.0f} s" if retry_after_s is not None else ""
    return RegistryBusy(
        f"the registry lets nobody pull image {name} now ({text}{asks}): wait, `docker login` for a higher limit, or "
        "use a mirror (images.mirror)",
        reason=text,
        retry_after_s=retry_after_s,
    )


def trouble(name: object, text: str, retry_after_s: float | None = None) -> RegistryTrouble:
    return RegistryTrouble(
        f"image {name} could not be fetched: {text}. Look at the network and at the registry",
        reason=text,
        retry_after_s=retry_after_s,
    )
