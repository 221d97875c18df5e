"""Where the Docker engine answers, as the docker command would find it, and in words why one cannot be used.

Order: DOCKER_CONTEXT, DOCKER_HOST, the current context (`docker context use`; Docker Desktop, Colima and rootless
Docker make one), the system's socket. Promises: what is found is a Unix socket or plain TCP; a sandbox's stream is a
connection of its own that asyncio reads, which ssh:// and TLS do not give: they are refused with the way out before
anything starts.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from envs.sandbox.contract import BackendUnavailable

DEFAULT = "unix:///var/run/docker.sock"
_FORWARD = (
    "forward its socket and use that: ssh -NL /tmp/docker.sock:/var/run/docker.sock USER@HOST, then "
    "DOCKER_HOST=unix:///tmp/docker.sock"
)


def find_engine() -> str:
    """Raises BackendUnavailable for a context that is not there and for an address of a kind that cannot be used."""
    if name := os.environ.get("DOCKER_CONTEXT"):
        return _of_context(name, f"DOCKER_CONTEXT={name}")
    if host := os.environ.get("DOCKER_HOST"):
        tls = bool(os.environ.get("DOCKER_TLS_VERIFY") or os.environ.get("DOCKER_CERT_PATH"))
        return usable(host, tls, f"DOCKER_HOST={host}")
    if not (Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json").is_file():
        return DEFAULT  # docker's package need not be imported
    from docker.context.config import get_current_context_name

    name = get_current_context_name()
    return _of_context(name, f"the current docker context {name!r}")


def _of_context(name: str, where: str) -> str:
    if name == "default":
        return DEFAULT
    from docker.context import Context

    try:
        context = Context.load_context(name)
    except Exception as error:  # the package raises plain ones for files it cannot read
        raise BackendUnavailable(f"{where} cannot be read ({error}): docker context inspect {name}") from error
    host = context.endpoints.get("docker", {}).get("Host") if context is not None else None
    if not host:
        raise BackendUnavailable(
            f"{where} names no engine (no such context, or without an address): `docker context ls` shows all; unset "
            "DOCKER_CONTEXT or `docker context use default`, or use --sandbox embedded"
        )
    return usable(str(host), "docker" in context.tls_cfg, where)


def usable(host: str, tls: bool, where: str) -> str:
    kind = host.partition("://")[0]
    if kind == "ssh":
        raise BackendUnavailable(f"{where} is an engine over ssh, which sandboxes cannot use: {_FORWARD}")
    if kind == "https" or (kind == "tcp" and tls):
        raise BackendUnavailable(f"{where} is an engine over TLS, which sandboxes cannot use: {_FORWARD}")
    if kind not in ("unix", "tcp", "http") or "://" not in host:
        raise BackendUnavailable(f"{where}: {host} is no address of an engine: use unix://PATH or tcp://HOST:PORT")
    return host


def refusal(address: str) -> str:
    """What keeps this user from an engine's socket, and the way out; empty when its rights do not."""
    path = Path(address.removeprefix("unix://"))
    if not address.startswith("unix://"):
        return ""
    try:
        found = path.stat()
    except PermissionError:
        return f"{path} lies in a folder that this user may not enter: use --sandbox embedded, or an engine of your own"
    except OSError:
        others = ", ".join(f"unix://{each}" for each in _other_sockets() if each != path)
        return f"no socket is there{f', but others are: DOCKER_HOST={others}' if others else ''}"
    if not stat.S_ISSOCK(found.st_mode):
        return f"{path} is no socket"
    if os.access(path, os.W_OK):
        return ""
    group, user = _name(grp.getgrgid, found.st_gid), _name(pwd.getpwuid, os.geteuid())
    if group == "root" or not found.st_mode & stat.S_IWGRP:
        return (
            f"the engine runs, but only root may use {path}: run sao as root, or give the socket a group (dockerd -G)"
        )
    return (
        f"the engine runs, but {path} is for group {group}, and {user} is not in it here: sudo usermod -aG {group} "
        f"{user}, then log in again (or: newgrp {group})"
    )


def _name(find: Callable[[int], tuple[object, ...]], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def _other_sockets() -> Iterable[Path]:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    home = Path.home()
    for path in (
        Path("/var/run/docker.sock"),
        runtime / "docker.sock",
        home / ".docker" / "run" / "docker.sock",
        home / ".docker" / "desktop" / "docker.sock",
        home / ".colima" / "default" / "docker.sock",
        runtime / "podman" / "podman.sock",
        Path("/run/podman/podman.sock"),
    ):
        try:
            if path.is_socket():
                yield path
        except OSError:
            continue
