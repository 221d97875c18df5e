"""Hermes-style calls (Qwen2.5, Qwen3, SmolLM2): <tool_call>{"name": …, "arguments": {…}}</tool_call>, one or several.

Promises beyond the package's: a bad call does not hide the good ones before or after it, and whole calls of a turn
that was cut are calls (JSON says where a value ends).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.parsers import CallError, CallErrorKind, Parsed, Tools
from agent.parsers.common import (
    BAD_JSON,
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

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile("</?think>|<tool_call>")
_OBJECT = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*["}]')
_BROKEN = 20
"""Bad calls of one turn that are told; behind them nothing is read."""
SHAPE = f'{OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CLOSE}'


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, in order.

    `cut`: the turn was ended by its token limit, not by the model. `in_thought`: the prompt already opened <think>."""
    found: list[ToolCall | CallError] = []
    mentions: list[CallError] = []  # of tags that hold no JSON object: only told where there is nothing else
    at: int | None = thought_end(text, 0) if in_thought else 0
    hidden = at is None and OPEN in text
    broken, done = 0, at or 0
    while at is not None and broken < _BROKEN and (tag := next_tag(_TAG, text, at)):
        at = tag.end()
        if tag[0] == THINK:
            at = thought_end(text, tag.end())
            hidden = at is None and text.find(OPEN, tag.end()) >= 0
        elif tag[0] == THOUGHT:  # all before it was thought
            if broken and text[tag.start() - 1] != "\n":
                continue  # it may stand in the string of a call that could not be read
            hidden = bool(found or mentions)
            found, mentions = [], []
        elif _OBJECT.match(text, at):
            item, at = _one(text, at, cut)
            broken += isinstance(item, CallError)
            found.append(item)
        else:
            item, at = _not_an_object(text, at, cut)
            in_prose = text[max(done, text.rfind("\n", done, tag.start())) : tag.start()].strip()
            is_call = item.kind is not CallErrorKind.UNCLOSED_TAG and not (cut and at == tag.end())
            told = is_call and (not in_prose or text.startswith("{", skip_space(text, tag.end())))
            broken += is_call
            (found if told else mentions).append(item)
        done = at or 0
    if not found and mentions and not hidden:
        found = [mentions[-1]]
    return tuple(found) if found else (in_thought_error(cut, SHAPE) if hidden else missing(cut, SHAPE),)


def spell(calls: Iterable[ToolCall]) -> str:
    return "\n".join(
        f'{OPEN}\n{{"name": {to_json(call.name)}, "arguments": {to_json(dict(call.arguments))}}}\n{CLOSE}'
        for call in calls
    )


def _not_an_object(body: str, start: int, cut: bool) -> tuple[CallError, int]:
    """A tag with something else behind it: a bad call where it is closed before the next one opens, else a mention."""
    following = body.find(OPEN, start)
    close = body.find(CLOSE, start, following if following >= 0 else len(body))
    if close < 0:
        return _unclosed(cut), start
    begin = skip_space(body, start)
    try:
        decode(body[begin:close], 0)
    except BAD_JSON as error:
        return bad_json(error, 0, SHAPE), close + len(CLOSE)
    return CallError(CallErrorKind.NOT_AN_OBJECT, f"The tool call was not run: it must be one JSON object:\n{SHAPE}"), (
        close + len(CLOSE)
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
        thought = body.find(THOUGHT, begin, close)  # the reader of tags must see it
        return bad_json(error, begin, SHAPE), thought if thought >= 0 else close + len(CLOSE)
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
