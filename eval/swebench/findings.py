"""What a guard found: a kind of hole, and what exactly. Shown beside the official verdict, never instead of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Hole(enum.StrEnum):
    """The ways in which a verdict can be wrong although the package is right about the log."""

    REPORTING = "how tests report"
    """The patch changes configuration, plugins or code that decide what a test run says."""
    MARKERS = "forged markers"
    """The log holds the harness's own marks more often, or at other places, than the harness wrote them."""
    RESULTS = "result files"
    """The patch brings what the eval script or Python would read instead of making it."""
    TESTS = "tests touched"
    """The patch stands where the judged tests stand."""
    LISTS = "test lists"
    """A judged test is in neither list of the package's report, or there is nothing to judge."""
    LOG = "log against itself"
    """The log's lines contradict each other, its summary or its exit code, or it is damaged."""
    RUNNER = "the runner's own count"
    """What the runner held in memory is not what the log says."""
    PATCH = "patch bytes"
    """The patch could only be put on by guessing, or its form hides what it changes."""


@dataclass(frozen=True)
class Finding:
    hole: Hole
    what: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "hole", Hole(self.hole))

    def __str__(self) -> str:
        return f"{self.hole}: {self.what}"
