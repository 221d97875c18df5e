"""Asking a registry about an image without pulling it (distribution protocol, version 2).

Promises: `ask` sends HEAD requests only, which registries do not count as pulls; `measure` reads the manifest (a pull
on Docker Hub) and the image's configuration. Credentials are the ones `docker login` stored, and go to the registry
and its token server only. Plain http is used only where the engine itself would use it. Blocking; call in a thread.
"""

from __future__ import annotations

import base64
import email.utils
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.images.faults import ImageFault, ImageRefused, busy, denied, not_found, trouble
from envs.images.names import HUB, ImageName

log = logging.getLogger(__name__)
TIMEOUT_S = (10.0, 30.0)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_MAX_MANIFEST = 8 << 20


@dataclass(frozen=True)
class Layer:
    digest: str
    size: int
    """Bytes as sent over the network."""
    diff_id: str = ""
    """The engine's name for the unpacked layer."""


@dataclass(frozen=True)
class Asked:
    digest: str
    """Of what the name stands for now; empty when the registry does not say."""
    pulls_left: int | None = None
    """How many more pulls the registry grants for now; None: it does not say."""


def parse_wait(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number or a date."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class Registries:
    """Sessions and tokens by registry. `engine_info`: the engine's `info` (architecture, insecure registries)."""

    def __init__(self, engine_info: Mapping[str, Any]) -> None:
        settings = engine_info.get("RegistryConfig") or {}
        self._insecure = {
            name for name, index in (settings.get("IndexConfigs") or {}).items() if not index.get("Secure", True)
        }
        machine = str(engine_info.get("Architecture") or "x86_64")
        self.architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
        self._tokens: dict[tuple[str, str], str] = {}
        self._local = threading.local()

    def ask(self, name: ImageName) -> Asked:
        """Is it there, and may it be pulled? Raises ImageFault."""
        answer = self._get(name, f"manifests/{name.reference}", head=True)
        left = re.match(r"\d+", answer.headers.get("ratelimit-remaining", ""))
        return Asked(answer.headers.get("Docker-Content-Digest", ""), int(left[0]) if left else None)

    def measure(self, name: ImageName) -> list[Layer]:
        """The layers of the image for the engine's platform, lowest first. Raises ImageFault."""
        manifest = self._json(name, f"manifests/{name.reference}")
        if "manifests" in manifest:
            for entry in manifest["manifests"]:
                platform = entry.get("platform") or {}
                if (platform.get("os"), platform.get("architecture")) == ("linux", self.architecture):
                    manifest = self._json(name, f"manifests/{entry['digest']}")
                    break
            else:
                raise ImageRefused(f"image {name} is not made for linux/{self.architecture}, which this engine runs")
        try:
            layers = [(str(layer["digest"]), int(layer["size"])) for layer in manifest["layers"]]
            config = self._json(name, f"blobs/{manifest['config']['digest']}")
            diffs = list(config["rootfs"]["diff_ids"])
        except (KeyError, TypeError, ValueError) as error:
            raise ImageRefused(f"image {name}: the registry's manifest is of no kind known here ({error!r})") from error
        if len(diffs) != len(layers):
            raise ImageRefused(f"image {name}: its manifest has {len(layers)} layers, its configuration {len(diffs)}")
        return [Layer(digest, size, str(diff)) for (digest, size), diff in zip(layers, diffs, strict=True)]

    def _json(self, name: ImageName, path: str) -> dict[str, Any]:
        answer = self._get(name, path)
        if len(answer.content) > _MAX_MANIFEST:
            raise trouble(name, f"{path} has {len(answer.content)} bytes")
        try:
            values = answer.json()
        except ValueError as error:
            raise trouble(name, f"{path} is no JSON ({error})") from error
        if not isinstance(values, dict):
            raise trouble(name, f"{path} is no JSON object")
        return values

    def _get(self, name: ImageName, path: str, *, head: bool = False) -> Any:
        import requests

        url = f"{self._base(name.registry)}/v2/{name.repository}/{path}"
        headers = {"Accept": ", ".join(_INDEXES + _MANIFESTS)}
        key = (name.registry, name.repository)
        try:
            for first in (True, False):
                if token := self._tokens.get(key):
                    headers["Authorization"] = token
                answer = self._session(name).request("HEAD" if head else "GET", url, headers=headers, timeout=TIMEOUT_S)
                if answer.status_code != 401 or not first:
                    break
                self._tokens[key] = self._authorize(name, answer.headers.get("WWW-Authenticate", ""))
        except requests.exceptions.RequestException as error:
            raise trouble(name, f"{name.registry} does not answer ({type(error).__name__})") from error
        if answer.status_code >= 400:
            raise self._fault(name, answer)
        return answer

    @staticmethod
    def _fault(name: ImageName, answer: Any) -> ImageFault:
        status = answer.status_code
        text = f"HTTP {status} from {name.registry}"
        if status == 429:
            return busy(name, text, parse_wait(answer.headers.get("Retry-After")))
        if status == 404:
            return not_found(name, text)
        if status in (401, 403):
            return denied(name, text)
        return trouble(name, text, parse_wait(answer.headers.get("Retry-After")))

    def _authorize(self, name: ImageName, challenge: str) -> str:
        """An Authorization header for what the registry asked for; "" where we have nothing to offer."""
        user = self._login(name.registry)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return "Basic " + base64.b64encode(":".join(user).encode()).decode() if user else ""
        if kind.lower() != "bearer":
            return ""
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = asked.get("realm", "")
        if not realm.startswith("https://") and not _LOOPBACK.fullmatch(realm.partition("://")[2].partition("/")[0]):
            user = None  # credentials go nowhere unencrypted
        params = {"service": asked.get("service", ""), "scope": f"repository:{name.repository}:pull"}
        answer = self._session(name).get(realm, params=params, auth=user, timeout=TIMEOUT_S)
        if answer.status_code >= 400:
            raise self._fault(name, answer)
        values = answer.json()
        return f"Bearer {values.get('token') or values.get('access_token') or ''}"

    @staticmethod
    def _login(registry: str) -> tuple[str, str] | None:
        from docker import auth, errors

        try:
            found = auth.resolve_authconfig(auth.load_config(), registry if registry != HUB else None)
        except errors.DockerException as error:  # a credential helper that is not installed
            log.warning("the login stored for %s cannot be read (%s): asking without one", registry, error)
            return None
        if not found or not found.get("username"):
            return None
        return found["username"], found.get("password") or ""

    def _base(self, registry: str) -> str:
        host = "registry-1.docker.io" if registry == HUB else registry
        plain = registry in self._insecure or _LOOPBACK.fullmatch(registry)
        return f"{'http' if plain else 'https'}://{host}"

    def _session(self, name: ImageName) -> Any:
        """One a thread and kind: this machine's own registries are never asked through a proxy."""
        import requests

        near = bool(_LOOPBACK.fullmatch(name.registry))
        sessions = self._local.__dict__.setdefault("sessions", {})
        if near not in sessions:
            sessions[near] = requests.Session()
            sessions[near].trust_env = not near
        return sessions[near]
