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
    SPACE,
    THINK,
    THOUGHT,
    bad_json,
    called,
    decode,
    in_thought_error,
    missing,
    next_tag,
    skip_space,
    thought_end,
    to_json,
    unclosed,
)
from envs.environment import ToolCall

PYTHON_TAG = "<|python_tag|>"
SHAPE = '{"name": "<tool>", "parameters": {...}}'
_KEY = r'\{[ \t\r\n]*"(?:name|type|parameters|arguments)"'
_OBJECT = re.compile(_KEY)
_TAG = re.compile(f"</?think>|{_KEY}")
_THINK_TAG = re.compile("</?think>")
_BETWEEN = re.compile(r"[ \t\r\n;]*")


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, in order."""
    at: int | None = thought_end(text, 0) if in_thought else 0
    hidden = at is None and _OBJECT.search(text) is not None
    while at is not None and (tag := next_tag(_TAG, text, at)):
        at = tag.end()
        if tag[0] == THINK:
            at = thought_end(text, tag.end())
            hidden = at is None and _OBJECT.search(text, tag.end()) is not None
        elif tag[0] == THOUGHT:
            continue
        elif _begins(text, tag.start(), at):
            found, at = _calls(text, tag.start(), cut)
            thought = next_tag(_THINK_TAG, text, at)
            if thought is None or thought[0] != THOUGHT:
                return found
            hidden, at = True, thought.end()  # all before it was thought
    begin = skip_space(text, 0)
    if not hidden and not in_thought and text.startswith("{", begin):
        return _calls(text, begin, cut)[0]
    return (in_thought_error(cut, SHAPE) if hidden else missing(cut, SHAPE),)


def _begins(text: str, start: int, end: int) -> bool:
    """The object at `start` begins the text or a line, perhaps behind the Python tag."""
    blank = start
    while blank and text[blank - 1] in SPACE:
        blank -= 1
    if text.endswith(PYTHON_TAG, 0, blank):
        blank = start = blank - len(PYTHON_TAG)
        while blank and text[blank - 1] in " \t":
            blank -= 1
        return blank == 0 or text[blank - 1] == "\n" or text.endswith(THOUGHT, 0, blank)
    return blank == 0 or "\n" in text[blank:start] or text.endswith(THOUGHT, 0, blank)


def _calls(body: str, at: int, cut: bool) -> tuple[Parsed, int]:
    """The calls from `at` on, and where their reading ended."""
    found: list[ToolCall | CallError] = []
    while at < len(body):
        if not body.startswith("{", at):
            return (
                CallError(
                    CallErrorKind.TEXT_AFTER,
                    f"No tool call was run: text stands after it ({body[at : at + 200].strip()[:40]!r}). Write what "
                    "you have to say before the calls, and nothing after them.",
                ),
            ), at
        try:
            value, end = decode(body, at)
        except BAD_JSON as error:
            found.append(unclosed(True, "{", "", SHAPE) if cut else bad_json(error, at, SHAPE))
            return tuple(found), len(body)
        found.append(called(value, SHAPE, ("parameters", "arguments")))
        between = _BETWEEN.match(body, end)
        at = between.end() if between else end
    return tuple(found), at


def spell(calls: Iterable[ToolCall]) -> str:
    return "; ".join(
        f'{{"name": {to_json(call.name)}, "parameters": {to_json(dict(call.arguments))}}}' for call in calls
    )
