"""Hermes-style calls: <tool_call>{"name": …, "arguments": {…}}</tool_call>, one or several in a turn.

Promises:
* never raises, whatever the text; the result is never empty;
* arguments are what the JSON says, byte for byte: tags and braces inside strings, raw line breaks, any Unicode;
* a bad call does not hide the good ones before or after it;
* thinking text (a leading <think>…</think>) is never searched for calls.
"""

from __future__ import annotations

import json
from typing import Any

from agent.parsers import CallError, CallErrorKind, Parsed
from envs.environment import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SHAPE = f'{OPEN}\n{{"name": "<tool>", "arguments": {{...}}}}\n{CLOSE}'
_SPACE = " \t\r\n"


class _Refused(ValueError):
    """Valid JSON that cannot be taken as it stands."""


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise _Refused(f"the key {twice!r} is given twice")
    return made


# strict=False: models write raw line breaks inside strings, and what they mean is plain.
_decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant, object_pairs_hook=_unique)


def parse(text: str, *, cut: bool = False, in_thought: bool = False) -> Parsed:
    """All calls of one model turn, in order.

    `cut`: the turn was ended by its token limit, not by the model. `in_thought`: the prompt already opened <think>."""
    body = _after_thought(text, in_thought)
    found: list[ToolCall | CallError] = []
    at = 0
    while (start := body.find(OPEN, at)) >= 0:
        item, at = _one(body, start + len(OPEN), cut)
        found.append(item)
    return tuple(found) if found else (_missing(cut),)


def _after_thought(text: str, in_thought: bool) -> str:
    begin = text.lstrip(_SPACE)
    if not in_thought and not begin.startswith("<think>"):
        return text
    _, closed, after = begin.partition("</think>")
    return after if closed else ""


def _missing(cut: bool) -> CallError:
    if cut:
        return CallError(
            CallErrorKind.CUT_BY_LENGTH,
            f"Your turn was cut off at its token limit before a tool call. Be brief, then call a tool:\n{_SHAPE}",
        )
    return CallError(CallErrorKind.MISSING, f"No tool call found. Every turn must call a tool, like this:\n{_SHAPE}")


def _one(body: str, start: int, cut: bool) -> tuple[ToolCall | CallError, int]:
    """The call whose JSON begins at or after `start`, and where to go on."""
    begin = _skip_space(body, start)
    try:
        value, end = _decoder.raw_decode(body, begin)
    except (ValueError, RecursionError) as error:
        close = body.find(CLOSE, start)
        if close < 0:
            return _unclosed(cut), len(body)
        return _bad_json(error, begin), close + len(CLOSE)
    after = _skip_space(body, end)
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
    return _checked(value), after + len(CLOSE)


def _skip_space(body: str, at: int) -> int:
    while at < len(body) and body[at] in _SPACE:
        at += 1
    return at


def _unclosed(cut: bool) -> CallError:
    if cut:
        return CallError(
            CallErrorKind.CUT_BY_LENGTH,
            "Your turn was cut off at its token limit inside a tool call, which was not run. "
            "Send the call again with shorter text before it, or in smaller pieces.",
        )
    return CallError(
        CallErrorKind.UNCLOSED_TAG,
        f"The tool call was not run: {OPEN} is not closed. End every call with {CLOSE}, like this:\n{_SHAPE}",
    )


def _bad_json(error: Exception, begin: int) -> CallError:
    if isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at character {max(error.pos - begin, 0)} of the call"
    elif isinstance(error, RecursionError):
        why = "it is nested too deeply"
    else:
        why = str(error)
    return CallError(
        CallErrorKind.BAD_JSON,
        f"The tool call was not run: it is not valid JSON ({why}). In strings write \\n for a line break, "
        f'\\" for a quote and \\\\ for a backslash. The shape is:\n{_SHAPE}',
    )


def _checked(value: Any) -> ToolCall | CallError:
    if not isinstance(value, dict):
        return CallError(
            CallErrorKind.NOT_AN_OBJECT,
            f"The tool call was not run: it must be one JSON object, like this:\n{_SHAPE}",
        )
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return CallError(
            CallErrorKind.MISSING_NAME,
            f'The tool call was not run: "name" must be the name of a tool, like this:\n{_SHAPE}',
        )
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return CallError(
            CallErrorKind.BAD_ARGUMENTS,
            f'The tool call was not run: "arguments" must be a JSON object (not a string or list):\n{_SHAPE}',
        )
    if not _encodable(value):
        return CallError(
            CallErrorKind.BAD_JSON,
            "The tool call was not run: it holds half of a \\u surrogate pair, which is no character. "
            "Write the character itself.",
        )
    return ToolCall(name, arguments)


def _encodable(value: dict[str, Any]) -> bool:
    """Strings with a lone surrogate are JSON but no text: no file or command can hold them."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
