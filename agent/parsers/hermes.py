"""Hermes-style calls (Qwen2.5, Qwen3, SmolLM2): <tool_call>{"name": …, "arguments": {…}}</tool_call>, one or several.

Promises beyond the package's: a bad call does not hide the good ones before or after it, and whole calls of a turn
that was cut are calls (JSON says where a value ends).
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.parsers import CallError, CallErrorKind, Parsed, Tools
from agent.parsers.common import (
    BAD_JSON,
    after_thought,
    bad_json,
    called,
    decode,
    missing,
    skip_space,
    to_json,
    unclosed,
)
from envs.environment import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f'{OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CLOSE}'


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, in order.

    `cut`: the turn was ended by its token limit, not by the model. `in_thought`: the prompt already opened <think>."""
    body = after_thought(text, in_thought)
    found: list[ToolCall | CallError] = []
    at = 0
    while (start := body.find(OPEN, at)) >= 0:
        item, at = _one(body, start + len(OPEN), cut)
        found.append(item)
    return tuple(found) if found else (missing(cut, SHAPE),)


def spell(calls: Iterable[ToolCall]) -> str:
    return "\n".join(
        f'{OPEN}\n{{"name": {to_json(call.name)}, "arguments": {to_json(dict(call.arguments))}}}\n{CLOSE}'
        for call in calls
    )


def _one(body: str, start: int, cut: bool) -> tuple[ToolCall | CallError, int]:
    """The call whose JSON begins at or after `start`, and where to go on."""
    begin = skip_space(body, start)
    try:
        value, end = decode(body, begin)
    except BAD_JSON as error:
        close = body.find(CLOSE, start)
        if close < 0:
            return _unclosed(cut), len(body)
        return bad_json(error, begin, SHAPE), close + len(CLOSE)
    after = skip_space(body, end)
    if not body.startswith(CLOSE, after):
        close = body.find(CLOSE, after)
        if close < 0:
            return _unclosed(cut), len(body)
        extra = body[after:close].strip()[:40]
        return (
            CallError(
                CallErrorKind.TEXT_AFTER,
                f"Text stands after the JSON object of the tool call: {extra!r}. Put exactly one object between "
                f"{OPEN} and {CLOSE}; write one {OPEN} block for each call.",
            ),
            close + len(CLOSE),
        )
    return called(value, SHAPE), after + len(CLOSE)


def _unclosed(cut: bool) -> CallError:
    return unclosed(cut, OPEN, f"End every call with {CLOSE}", SHAPE)
