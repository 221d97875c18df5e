"""How an endpoint is reached, apart from the connection: whoever only reads a configuration loads no HTTP client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agent.endpoint.faults import EndpointRefused

_OWN = ("model", "messages", "tools", "stream", "n")
_SAMPLING = ("temperature", "top_p", "seed")


@dataclass(frozen=True)
class EndpointSettings:
    url: str
    """Up to and with /v1."""
    model: str
    key_env: str = ""
    """Environment variable that holds the key; empty: no key is sent."""
    limit_field: str = "max_tokens"
    """How the request names the most tokens of an answer."""
    omit: tuple[str, ...] = ()
    """Fields that are not sent."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of every request."""
    in_flight: int = 16
    timeout_s: float = 3600.0
    """Of one answer."""
    tries: int = 8
    patience_s: float = 900.0
    """Over all tries of one request, the pauses between them included."""

    def check(self) -> None:
        """Raises EndpointRefused, before anything is sent."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointRefused(f"{self.url!r} is no address of an endpoint, e.g. http://127.0.0.1:8000/v1.")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise EndpointRefused(
                "the endpoint's address holds a user, password or query, which would stand in the run folder. Put the "
                "key into an environment variable and name that one (--api-key-env)."
            )
        if not self.model:
            raise EndpointRefused("an endpoint needs the model's name (--endpoint-model).")
        if taken := sorted({*_OWN, *_SAMPLING, self.limit_field} & {*self.extra}):
            raise EndpointRefused(
                f"endpoint.extra sets {', '.join(taken)}, which the run sets itself and reports: change that instead "
                "(--endpoint-model, the temperature, the preset's limits)."
            )
        if needed := sorted({*_OWN} & {*self.omit}):
            raise EndpointRefused(f"endpoint.omit leaves out {', '.join(needed)}, without which there is no question.")

    def key(self) -> str:
        """Raises EndpointRefused."""
        if not self.key_env:
            return ""
        if not (key := os.environ.get(self.key_env, "").strip()):
            raise EndpointRefused(f"the environment variable {self.key_env}, which is to hold the key, is empty.")
        return key
