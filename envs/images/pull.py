"""One attempt to pull one image through the engine.

Promises: returns only when the engine holds the image; a pull without progress ends after `stall_s`; every failure is
an ImageFault that says whether another try may help. The engine often hides what the registry answered ("unknown",
500): then the registry itself is asked, which also tells how long to wait. Blocking; call in a thread.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from envs.images.faults import ImageFault, RegistryTrouble, read_fault, trouble
from envs.images.names import HUB, ImageName
from envs.images.registry import Registries

CONNECT_S = 10.0


@dataclass
class PullProgress:
    """Bytes over the network of the layers seen so far; `total` grows while the engine learns of them."""

    name: str
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    unpacking: bool = False

    @property
    def done(self) -> int:
        return sum(done for done, _ in self.layers.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self.layers.values())

    def take(self, event: dict[str, Any]) -> None:
        status, layer = event.get("status", ""), event.get("id", "")
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self.layers[layer] = (detail["current"], detail["total"])
        elif status in ("Download complete", "Extracting", "Pull complete") and layer in self.layers:
            self.layers[layer] = (self.layers[layer][1],) * 2
        self.unpacking = status == "Extracting"


Listener = Callable[[PullProgress], None]


def pull_once(
    api: Any,
    name: ImageName,
    registries: Registries,
    *,
    stall_s: float,
    listener: Listener | None = None,
    shown_as: str = "",
    stop: threading.Event | None = None,
) -> None:
    """Raises ImageFault; what requests raises when the engine itself is gone."""
    import requests

    progress = PullProgress(shown_as or str(name))
    try:
        with contextlib.closing(_request(api, name, stall_s)) as answer:
            if answer.status_code >= 400:
                raise _explain(name, _message(answer), registries)
            for event in _events(answer):
                if stop is not None and stop.is_set():
                    raise trouble(name, "the pull was stopped")
                if "error" in event:
                    raise _explain(name, str(event["error"]), registries)
                progress.take(event)
                if listener is not None:
                    listener(progress)
    except requests.exceptions.Timeout as error:
        raise trouble(name, f"no sign of progress for {stall_s:g} s") from error
    except requests.exceptions.ConnectionError as error:
        if "timed out" in str(error).lower():
            raise trouble(name, f"no sign of progress for {stall_s:g} s") from error
        api.ping()
        raise trouble(name, f"the connection to the engine broke ({error})") from error
    except requests.exceptions.RequestException as error:
        raise trouble(name, f"the engine's answer broke off ({error})") from error


def held(api: Any, name: ImageName) -> dict[str, Any] | None:
    """The engine's record of the image; None when it has none."""
    import docker

    try:
        return api.inspect_image(str(name))
    except docker.errors.ImageNotFound:
        return None


def _request(api: Any, name: ImageName, stall_s: float) -> Any:
    """docker's own `pull` would wait for ever."""
    from docker import auth

    path = f"{name.registry}/{name.repository}" if name.registry != HUB else name.repository.removeprefix("library/")
    header = auth.get_config_header(api, None if name.registry == HUB else name.registry)
    return api.post(
        f"{api.base_url}/v{api.api_version}/images/create",
        params={"fromImage": path, "tag": name.reference},
        headers={"X-Registry-Auth": header} if header else {},
        timeout=(CONNECT_S, stall_s),
        stream=True,
    )


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line:
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} from the engine"


def _explain(name: ImageName, text: str, registries: Registries) -> ImageFault:
    fault = read_fault(name, text)
    if fault is not None and not fault.transient:
        return fault
    try:
        registries.ask(name)
    except RegistryTrouble as answer:
        # A registry that cannot be reached from here says nothing: the engine may have another way to it.
        text = f"the engine says {text!r}; asked directly: {answer.reason}"
        return fault or trouble(name, text, answer.retry_after_s)
    except ImageFault as answer:
        return answer
    return fault or trouble(name, f"the engine says {text!r}")
