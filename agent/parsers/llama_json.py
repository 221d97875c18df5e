"""Llama 3's calls: the bare object {"name": …, "parameters": {…}}, at the turn's end.

Text may stand before the calls, which begin at the start of a line; several objects may follow each other, with white
space or a semicolon between. "arguments" is taken for "parameters". JSON that stands elsewhere or has text after it is
no call: an object in the middle of an explanation must not be run.
"""

from __future__ import annotations

import re
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

PYTHON_TAG = "<|python_tag|>"
SHAPE = '{"name": "<tool>", "parameters": {...}}'
_BEGIN = re.compile(r'^[ \t]*(?:<\|python_tag\|>)?[ \t\r\n]*(?=\{[ \t\r\n]*"(?:name|type|parameters|arguments)")', re.M)
_BETWEEN = re.compile(r"[ \t\r\n;]*")


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, in order."""
    body = after_thought(text, in_thought)
    first = skip_space(body, 0)
    if body.startswith(PYTHON_TAG, first):
        first = skip_space(body, first + len(PYTHON_TAG))
    if not body.startswith("{", first):
        begin = _BEGIN.search(body)
        if begin is None:
            return (missing(cut, SHAPE),)
        first = begin.end()
    found: list[ToolCall | CallError] = []
    at = first
    while at < len(body):
        if not body.startswith("{", at):
            return (
                CallError(
                    CallErrorKind.TEXT_AFTER,
                    f"No tool call was run: text stands after it ({body[at:].strip()[:40]!r}). Write what you have to "
                    "say before the calls, and nothing after them.",
                ),
            )
        try:
            value, end = decode(body, at)
        except BAD_JSON as error:
            found.append(unclosed(True, "{", "", SHAPE) if cut else bad_json(error, at, SHAPE))
            break
        found.append(called(value, SHAPE, ("parameters", "arguments")))
        between = _BETWEEN.match(body, end)
        at = between.end() if between else end
    return tuple(found)


def spell(calls: Iterable[ToolCall]) -> str:
    return "; ".join(
        f'{{"name": {to_json(call.name)}, "parameters": {to_json(dict(call.arguments))}}}' for call in calls
    )
