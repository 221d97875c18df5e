"""How images are fetched and how much room they may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageSettings:
    mirror: str = ""
    """`host[:port][/path]` that is asked first for Docker Hub's images; what it lacks comes from Docker Hub."""
    budget_bytes: int = 0
    """Most that all images of the engine may take on disk, by their distinct layers; 0: no budget."""
    keep_free_bytes: int = 5 << 30
    """Left free on the engine's disk for what sandboxes write."""
    parallel: int = 3
    """Pulls at once."""
    tries: int = 6
    """Of one image at one registry."""
    patience_s: float = 900.0
    """Longest time one image may spend waiting for registries that say "later"."""
    backoff_s: float = 1.0
    """First pause between tries; doubled each time, with jitter, up to a minute."""
    stall_s: float = 300.0
    """A pull without any sign of progress for so long is given up and tried again."""
