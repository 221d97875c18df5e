"""What an endpoint answered: one chat-completions object, checked, its counts and reasons kept.

Promises: an answer without a message, or one that the server says it broke off, is a fault, never a turn; what the
endpoint did not say (usage, model) is None or empty, never made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.endpoint.faults import EndpointFault
from agent.renderers.plain import turn_text

THOUGHT_KEYS = ("reasoning_content", "reasoning")
"""Where servers put a turn's thoughts (DeepSeek, SGLang and older vLLM; OpenRouter and newer vLLM)."""
BROKEN_OFF = ("abort", "error", "insufficient_system_resource")
"""Finish reasons for which the server is to blame (vLLM and SGLang, OpenRouter, DeepSeek)."""


@dataclass(frozen=True)
class Usage:
    prompt: int
    completion: int
    reasoning: int | None = None
    cached: int | None = None


@dataclass(frozen=True)
class Answer:
    content: str
    calls: tuple[Any, ...]
    """`tool_calls` as they came."""
    finish: str
    """The endpoint's own word; empty where it gave none."""
    thought: str = ""
    thought_key: str = ""
    refusal: str = ""
    usage: Usage | None = None
    model: str = ""
    """That answered, as the endpoint says."""
    fingerprint: str = ""
    retries: int = 0
    message: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The whole turn, to look at."""
        pairs = []
        for call in self.calls:
            function = call.get("function") if isinstance(call, Mapping) else None
            function = function if isinstance(function, Mapping) else {}
            pairs.append((str(function.get("name", "?")), str(function.get("arguments", ""))))
        return turn_text(self.content or self.refusal, pairs, self.thought)


def read_answer(value: Any, retries: int = 0) -> Answer:
    """Raises EndpointFault, with all that came: whoever shows it blots out the key and shortens."""
    if not isinstance(value, Mapping):
        raise EndpointFault(f"the answer is no JSON object: {value}")
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise EndpointFault(f"the answer holds no message: {value}")
    if choice.get("error") or choice.get("finish_reason") in BROKEN_OFF:
        why = choice.get("error") or choice["finish_reason"]
        raise EndpointFault(f"the endpoint broke its answer off: {why}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise EndpointFault(f"tool_calls is {type(calls).__name__}, not a list: {calls}")
    key = next((key for key in THOUGHT_KEYS if isinstance(message.get(key), str) and message[key]), "")
    return Answer(
        content=_content(message.get("content")),
        calls=tuple(calls),
        finish=str(choice.get("finish_reason") or ""),
        thought=str(message[key]) if key else "",
        thought_key=key,
        refusal=str(message.get("refusal") or ""),
        usage=_usage(value.get("usage")),
        model=str(value.get("model") or ""),
        fingerprint=str(value.get("system_fingerprint") or ""),
        retries=retries,
        message=message,
    )


def _content(value: Any) -> str:
    if isinstance(value, list):  # parts of text
        return "".join(str(part.get("text", "")) for part in value if isinstance(part, Mapping))
    if value is None or isinstance(value, str):
        return value or ""
    raise EndpointFault(f"the message's content is {type(value).__name__}, not text")


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    prompt, completion = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    return Usage(
        prompt,
        completion,
        _count(_part(value, "completion_tokens_details").get("reasoning_tokens")),
        _count(_part(value, "prompt_tokens_details").get("cached_tokens")),
    )


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
