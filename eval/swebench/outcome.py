"""What came of one prediction.

Promises: exactly one of resolved, unresolved, empty, error; an error has a kind; faults of image, engine, sandbox or
package are errors that say nothing about the model (`about_model` False) and are tried again at the next start.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from envs.sandbox.contract import Network
from envs.swe.guard.findings import Finding


class Verdict(enum.StrEnum):
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EMPTY = "empty"
    ERROR = "error"


class ErrorKind(enum.StrEnum):
    DOES_NOT_APPLY = "patch_does_not_apply"
    BAD_BYTES = "patch_is_no_bytes"
    TIMED_OUT = "tests_timed_out"
    SANDBOX_ENDED = "tests_ended_sandbox"
    """What the tests ran on the patch killed the sandbox from inside, while the machine was well."""
    IMAGE = "image"
    OUT_OF_MEMORY = "out_of_memory"
    SANDBOX = "sandbox"
    ENVIRONMENT = "environment"
    HARNESS = "harness"


ABOUT_MODEL = frozenset({ErrorKind.DOES_NOT_APPLY, ErrorKind.BAD_BYTES, ErrorKind.TIMED_OUT, ErrorKind.SANDBOX_ENDED})
"""Errors that the patch itself makes; the official report counts them as errors, and so does this one."""


@dataclass(frozen=True)
class Graded:
    """`key` says what was graded: see `store.resume_key`."""

    instance_id: str
    model: str
    key: str
    verdict: Verdict
    image: str = ""
    """Content id of the image it ran in."""
    network: Network = "none"
    """What its tests could reach."""
    error: ErrorKind | None = None
    reason: str = ""
    suspicious: tuple[Finding, ...] = ()
    agrees: bool = True
    """Our own resolve function says the same as the package."""
    applied: str = ""
    """How the patch went on (a rung of `execute.LADDER`)."""
    infra_failure: bool = False
    """The package's own flag: no test results, and the log looks like a broken environment."""
    failure_reason: str = ""
    """What the package sees in the log of an instance that is not resolved; advisory, with its tier."""
    failure_tier: str = ""
    missed_network: bool = False
    """It failed, and its log shows that it missed a network: more than an installer's retries."""
    attempts: int = 1
    seconds: float = 0.0
    test_seconds: float = 0.0
    timeout_s: float = 0.0
    strange_bytes: int = 0
    report: Mapping[str, Any] = field(default_factory=dict)
    """The instance's part of report.json; empty where there is none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", Verdict(self.verdict))
        object.__setattr__(self, "error", None if self.error is None else ErrorKind(self.error))
        findings = tuple(each if isinstance(each, Finding) else Finding(**each) for each in self.suspicious)
        object.__setattr__(self, "suspicious", findings)
        if (self.verdict is Verdict.ERROR) != (self.error is not None):
            raise ValueError(f"{self.instance_id}: verdict {self.verdict} does not go with error kind {self.error}")

    @property
    def about_model(self) -> bool:
        """False: the infrastructure failed, the instance says nothing about the model."""
        if self.verdict is Verdict.ERROR:
            return self.error in ABOUT_MODEL
        return not self.infra_failure

    @property
    def score(self) -> float | None:
        """1 or 0; None where it says nothing about the model."""
        return float(self.verdict is Verdict.RESOLVED) if self.about_model else None

    @property
    def why(self) -> str:
        """The reason of the verdict in one line; empty where there is nothing to say."""
        return ": ".join(filter(None, (str(self.error or ""), self.reason))) or self.failure_reason

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
