"""Calls that an endpoint parsed itself: the `tool_calls` of a chat-completions message.

Promises: those of the package; arguments are the JSON text that the endpoint gives, never repaired; empty arguments are
none; an object in place of text (some servers send one) is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.parsers import CallError, CallErrorKind, Parsed
from agent.parsers.common import BAD_JSON, bad_json, called, decode, missing, skip_space, unclosed, with_arguments
from envs.environment import ToolCall

SHAPE = 'a function call with "name": "<tool>" and "arguments": {...}'


def parse(calls: Sequence[Any], *, cut: bool = False) -> Parsed:
    """One item for each entry of `tool_calls`, in order; one `missing` error where there are none.

    `cut`: the turn was ended by its token limit: a last call that is no whole JSON was cut, not malformed."""
    if not calls:
        return (missing(cut, SHAPE),)
    last = len(calls) - 1
    return tuple(_one(call, cut and number == last) for number, call in enumerate(calls))


def _one(call: Any, cut: bool) -> ToolCall | CallError:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return called(None, SHAPE)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        return called({"name": name}, SHAPE)
    if not isinstance(arguments, str):
        return with_arguments(name, {} if arguments is None else arguments, SHAPE)
    begin = skip_space(arguments, 0)
    if begin == len(arguments):
        return with_arguments(name, {}, SHAPE)
    try:
        value, end = decode(arguments, begin)
    except BAD_JSON as error:
        return unclosed(True, "", "", SHAPE) if cut else bad_json(error, begin, SHAPE)
    if skip_space(arguments, end) < len(arguments):
        extra = arguments[end:].strip()[:40]
        return CallError(
            CallErrorKind.TEXT_AFTER,
            f"The tool call was not run: text stands after the JSON object of its arguments: {extra!r}. The arguments "
            "are exactly one JSON object.",
        )
    return with_arguments(name, value, SHAPE)
