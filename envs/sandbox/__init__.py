"""One sandbox contract, two real backends: Docker and embedded (Linux namespaces)."""

from envs.sandbox.backends import KINDS, make_backend
from envs.sandbox.contract import (
    BY_COMMANDS,
    BackendUnavailable,
    EndedInside,
    ExecResult,
    ImageMissing,
    NetworkRefused,
    OutOfDisk,
    OutOfMemory,
    PathRefused,
    Sandbox,
    SandboxBackend,
    SandboxDead,
    SandboxError,
    SandboxLimits,
    SandboxSpec,
    StartFailed,
)

__all__ = [
    "BY_COMMANDS",
    "KINDS",
    "BackendUnavailable",
    "EndedInside",
    "ExecResult",
    "ImageMissing",
    "NetworkRefused",
    "OutOfDisk",
    "OutOfMemory",
    "PathRefused",
    "Sandbox",
    "SandboxBackend",
    "SandboxDead",
    "SandboxError",
    "SandboxLimits",
    "SandboxSpec",
    "StartFailed",
    "make_backend",
]
