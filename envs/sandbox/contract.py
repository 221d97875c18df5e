"""The sandbox contract. Both backends pass the same contract tests (tests/envs/test_sandbox_contract.py).

Promises: no network, unless a spec asks for one by name (grading of rows that need it; an agent's sandbox never does,
and none ever has this machine's own); limits on memory, cpus, processes, open files; commands run in a fresh session
each with stdin closed and stdout+stderr merged in order; on a time-out every process in the sandbox except its init and
channel is dead, and that is proved from the process table; output is capped at the source; errors are typed; when the
driver dies, however it dies, the sandbox ends by itself.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from envs.sandbox.owner import Found
from envs.sandbox.states import States

Network = Literal["none", "bridge"]


class SandboxError(RuntimeError):
    """Base of all infrastructure faults. Never a model failure, never a reward of 0."""


class SandboxDead(SandboxError):
    """The sandbox is gone or its channel broke."""


class EndedInside(SandboxDead):
    """What ran in the sandbox ended it or made its channel silent, while engine and machine were well."""


class OutOfMemory(SandboxError):
    """The sandbox's memory limit killed it (a command killed inside a living sandbox is a result, not an error)."""


class OutOfDisk(SandboxError):
    """The sandbox wrote several times its disk limit (a command ended at the limit is a result, not an error)."""


class StartFailed(SandboxError):
    """The sandbox could not be started."""


class NetworkRefused(StartFailed):
    """A network was asked for that no sandbox of this backend can have here. Trying again does not help."""

    transient = False


class ImageMissing(StartFailed):
    """The image is not on this machine and could not be fetched."""


class BackendUnavailable(SandboxError):
    """No such backend here (no engine answers, namespaces are off). The text says how to mend it."""


class PathRefused(ValueError):
    """put/get was asked for a path outside the sandbox's root. A caller's mistake, not an infrastructure fault."""


BY_COMMANDS = (EndedInside, OutOfMemory, OutOfDisk)
"""Faults that only a sandbox's own commands can have caused. Where those were an agent's, or the tests of its patch,
they are its failure and not the machine's."""


@dataclass(frozen=True)
class ExecResult:
    """`output` is stdout and stderr merged in order, capped; `truncated` counts the bytes left out, which are missing
    at `output[cut_at]`."""

    output: bytes
    exit_code: int
    duration_s: float
    timed_out: bool = False
    truncated: int = 0
    cut_at: int = 0

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


@dataclass(frozen=True)
class SandboxLimits:
    memory_bytes: int = 1 << 30
    cpus: float = 1.0
    pids: int = 256
    nofile: int = 1024
    disk_bytes: int = 2 << 30
    """Size of one file (RLIMIT_FSIZE) and of each writable place where the backend has such (see docs/sandboxes.md)."""
    output_bytes: int = 1 << 20
    """Cap of one command's output, at the source."""


@dataclass(frozen=True)
class SandboxSpec:
    """What to start. `image` is for Docker; the embedded backend uses this machine's /usr."""

    image: str = "sao-base:latest"
    workdir: str = "/testbed"
    """Made if missing; where commands run by default."""
    state: str = ""
    """What `keep_state` returned: start from those files instead of from the image's."""
    limits: SandboxLimits = SandboxLimits()
    deadline_s: float = 3600.0
    """The sandbox ends by itself after this many seconds, even if driver and client are gone."""
    network: Network = "none"
    """"bridge": the engine's own bridge, out to wherever the machine reaches. Docker only."""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Extra labels; run id, owner pid and deadline are always there."""

    def __post_init__(self) -> None:
        if self.network not in get_args(Network):
            raise ValueError(f"no sandbox has network {self.network!r}: choose {' or '.join(get_args(Network))}")


class Sandbox(abc.ABC):
    """A started sandbox. Async context manager: leaving the block removes it."""

    sandbox_id: str
    spec: SandboxSpec

    @abc.abstractmethod
    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        last: bool = False,
    ) -> ExecResult:
        """Run `command` with the sandbox's POSIX shell, in its own session. One at a time per sandbox.

        `last`: probably no further command will come, so none is made ready.
        Raises SandboxDead (EndedInside where a command did it), OutOfMemory, OutOfDisk; a command that fails or times
        out is a result."""

    @abc.abstractmethod
    async def put(self, path: str, data: bytes, *, mode: int | None = 0o644) -> None:
        """Write a file, making parents. Relative paths are under the workdir. `mode` None: a file that is there keeps
        its own.

        Raises PathRefused, or an OSError (IsADirectoryError, PermissionError, ...) when it cannot be written."""

    @abc.abstractmethod
    async def put_tar(self, directory: str, archive: bytes) -> None:
        """Unpack an uncompressed tar under `directory` (made if missing)."""

    @abc.abstractmethod
    async def get(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Read a regular file. Raises FileNotFoundError, IsADirectoryError, ValueError when larger than max_bytes."""

    async def altered(self, rules: Sequence[str]) -> tuple[str, ...] | None:
        """Files that what ran in the sandbox changed since its start, even where they have their old bytes again; told
        by what runs outside of it or before it, by no program that it could have replaced. None: nobody can tell here.

        `rules`: `T/folder` what stands in it, `R/folder` all below it, `-name` folders that are not gone into; parts of
        a folder's path may hold one `*`. Folders that are links are left out. Raises SandboxError."""
        return None

    @property
    @abc.abstractmethod
    def alive(self) -> bool:
        """False once it is known to have ended. Asks nobody."""

    @abc.abstractmethod
    def adopt(self, spec: SandboxSpec) -> None:
        """Serve `spec` from now on, which differs from its own in labels, deadline and the cap of outputs only."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Kill and remove everything. Never raises for a sandbox that is already gone; may be called twice."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SandboxBackend(abc.ABC):
    """Starts sandboxes for one run and cleans up after dead ones."""

    name: str
    run_id: str

    @cached_property
    def states(self) -> States:
        """Its prepared states, from which sandboxes are forked."""
        return States(self)

    @abc.abstractmethod
    async def check(self) -> None:
        """Raise BackendUnavailable with the way out when sandboxes cannot run here."""

    async def check_network(self) -> None:
        """Raise NetworkRefused where sandboxes cannot have the network "bridge"."""
        raise NetworkRefused(
            f"a sandbox with a network was asked for, and the {self.name} sandbox never has one: use --sandbox docker, "
            "or leave --network away"
        )

    @abc.abstractmethod
    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Raises StartFailed, ImageMissing, NetworkRefused."""

    @abc.abstractmethod
    async def survey(self) -> list[Found]:
        """What sandboxes of any run are or left on this machine, and whose they are."""

    @abc.abstractmethod
    async def reap(self) -> list[str]:
        """Remove what dead owners left on this machine (containers, volumes, folders); returns what was removed."""

    @abc.abstractmethod
    async def keep_state(self, sandbox: Sandbox) -> str:
        """Keep a quiet sandbox's files as they are now, so that others start from them (`SandboxSpec.state`).

        With Docker all its files, else its workdir. Kept until `drop_state` or `close`. Raises SandboxError."""

    @abc.abstractmethod
    async def drop_state(self, state: str) -> None:
        """Forget a kept state. While sandboxes still stand on it, it goes with the backend instead."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End every sandbox this backend still holds."""
