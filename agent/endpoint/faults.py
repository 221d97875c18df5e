"""What can go wrong between us and an endpoint. Faults are infrastructure's (EngineError), never the model's.

Two refusals are no faults, because they answer what the model or the task said: a conversation that has become too long
(`TooLong`) and one that the endpoint's filter does not answer (`Filtered`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.policy import EngineError


class EndpointFault(EngineError):
    """No usable answer (connection, time-out, 429, 5xx, unreadable): worth another try."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EndpointDown(EngineError):
    """Every try failed."""


class EndpointRefused(EngineError):
    """The endpoint refuses the request itself (key, address, model, parameter): it would again."""


@dataclass
class TooLong(Exception):
    """The conversation and the room for an answer exceed the model's context."""

    message: str
    input_tokens: int | None = None
    """Of the conversation, where the refusal says so."""
    limit: int | None = None


@dataclass
class Filtered(Exception):
    """The endpoint's filter refuses to answer."""

    message: str


@dataclass(frozen=True)
class Refusal:
    """An error answer, taken apart."""

    status: int
    message: str
    code: str = ""


_TOO_LONG = re.compile(
    r"maximum context length|context[_ ]length|context window|max_model_len|prompt is too long|too many (input )?tokens"
    r"|reduce the length|exceeds? the (available )?context|input is too long",
    re.I,
)
_LIMIT = re.compile(r"(?:context (?:window|length|size) (?:is|of)|max_model_len\D*) (\d+)", re.I)
_INPUT = re.compile(
    r"(\d+) input tokens|\((\d+) in (?:the )?messages|(\d+) in the messages|resulted in (\d+) tokens"
    r"|prompt contains (?:at least )?(\d+)",
    re.I,
)
_OUTPUT = re.compile(
    r"at most (\d+) completion tokens|> (\d+), which is the maximum allowed number of output tokens", re.I
)
"""The answer alone may not be so long, whatever the prompt."""
_FILTER = ("content_filter", "content_policy_violation", "invalid_prompt")
_RETRIED = (408, 409, 425, 429)
_BROKE = ("insufficient_quota", "billing_hard_limit_reached")


def fault_of(where: str, refusal: Refusal, retry_after_s: float | None) -> Exception:
    """The exception that an error answer stands for."""
    status, message, code = refusal.status, refusal.message, refusal.code
    said = f"{where}: status {status}: {message}" + (f" ({code})" if code else "")
    if status in (400, 413, 422) and (code == "context_length_exceeded" or _TOO_LONG.search(message)):
        found = _INPUT.search(message)
        limit = _LIMIT.search(message)
        tokens = next((int(group) for group in found.groups() if group), None) if found else None
        return TooLong(message, tokens, int(limit[1]) if limit else None)
    if status in (400, 422) and (most := _OUTPUT.search(message)):
        return TooLong(message, 0, int(most[1] or most[2]))
    if status in (400, 403, 422) and code in _FILTER:
        return Filtered(message)
    if (status in _RETRIED or status >= 500) and code not in _BROKE:
        return EndpointFault(said, retry_after_s)
    return EndpointRefused(f"{said}. {_HINTS.get(status, '')}".rstrip(". ") + ".")


_HINTS = {
    400: "If it is about a field: endpoint.omit leaves fields out, endpoint.limit_field renames max_tokens",
    401: "The key is missing or wrong: name the environment variable that holds it with --api-key-env",
    403: "The key may not use this model or address",
    404: "Check the address (most end in /v1) and the model's name (--endpoint, --endpoint-model)",
}
