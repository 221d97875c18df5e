"""Which backend a run gets.

Promises: "docker" and "embedded" are what they say or an error with the way out; "auto" is Docker where an engine
answers, else embedded with a warning that says what that means.
"""

from __future__ import annotations

import logging
from typing import Any

from envs.sandbox.contract import BackendUnavailable, SandboxBackend

log = logging.getLogger(__name__)
KINDS = ("auto", "docker", "embedded")


def make_backend(kind: str, run_id: str, *, starts_at_once: int = 0, runtime: str = "") -> SandboxBackend:
    """A checked backend. Asks the engine or tries a namespace: may block for some 0.1 s. Raises BackendUnavailable.

    `starts_at_once` and `runtime` are for Docker, see DockerBackend."""
    if kind == "none":
        from envs.sandbox.none import NoSandbox

        return NoSandbox(run_id)
    if kind not in KINDS:
        raise ValueError(f"no sandbox backend {kind!r}; choose one of {', '.join(KINDS)}")
    reason = ""
    if kind in ("auto", "docker"):
        try:
            return _docker(run_id, starts_at_once=starts_at_once, runtime=runtime)
        except BackendUnavailable as error:
            if kind == "docker":
                raise
            reason = str(error)
    embedded = _embedded(run_id)
    log.warning(
        "EMBEDDED SANDBOX: commands run in namespaces of this machine, sharing its kernel, /usr and Python read-only, "
        "without an image; fit for trusted demo tasks, not for hostile code.%s",
        f" Why: {reason}" if reason else "",
    )
    return embedded


def every_backend(run_id: str) -> list[tuple[str, SandboxBackend | BackendUnavailable]]:
    """Each kind's backend, or why it does not run here: for looking after what is left, not for a run."""
    found: list[tuple[str, SandboxBackend | BackendUnavailable]] = []
    for kind, make in (("docker", _docker), ("embedded", _embedded)):
        try:
            found.append((kind, make(run_id)))
        except BackendUnavailable as error:
            found.append((kind, error))
    return found


def _docker(run_id: str, **settings: Any) -> SandboxBackend:
    from envs.sandbox.docker_backend import DockerBackend
    from envs.sandbox.docker_engine import connect

    return DockerBackend(run_id, connect(), **settings)


def _embedded(run_id: str) -> SandboxBackend:
    from envs.sandbox.embedded import EmbeddedBackend

    return EmbeddedBackend(run_id)
