"""Which backend a run gets.

Promises: "docker" and "embedded" are what they say or an error with the way out; "auto" is Docker where an engine
answers, else embedded with a warning that says what that means.
"""

from __future__ import annotations

import logging

from envs.sandbox.contract import BackendUnavailable, SandboxBackend

log = logging.getLogger(__name__)
KINDS = ("auto", "docker", "embedded")


def make_backend(kind: str, run_id: str, *, starts_at_once: int = 0, runtime: str = "") -> SandboxBackend:
    """A checked backend. Asks the engine or tries a namespace: may block for some 0.1 s. Raises BackendUnavailable.

    `starts_at_once` and `runtime` are for Docker, see DockerBackend."""
    if kind not in KINDS:
        raise ValueError(f"no sandbox backend {kind!r}; choose one of {', '.join(KINDS)}")
    reason = ""
    if kind in ("auto", "docker"):
        from envs.sandbox.docker_backend import DockerBackend
        from envs.sandbox.docker_engine import connect

        try:
            return DockerBackend(run_id, connect(), starts_at_once=starts_at_once, runtime=runtime)
        except BackendUnavailable as error:
            if kind == "docker":
                raise
            reason = str(error)
    from envs.sandbox.embedded import EmbeddedBackend

    embedded = EmbeddedBackend(run_id)
    log.warning(
        "EMBEDDED SANDBOX: commands run in namespaces of this machine, sharing its kernel, /usr and Python read-only, "
        "without an image; fit for trusted demo tasks, not for hostile code.%s",
        f" Why: {reason}" if reason else "",
    )
    return embedded
