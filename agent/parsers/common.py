"""What the formats share: thoughts, JSON as models write it, the check of a {"name", "arguments"} object, error texts.

JSON here: strings may hold raw line breaks (what they mean is plain); a key given twice, NaN, Infinity and half of a
surrogate pair are errors. Nothing is repaired.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent.parsers import CallError, CallErrorKind, Unspeakable
from envs.environment import ToolCall

SPACE = " \t\r\n"
_BLANK = re.compile(f"[{SPACE}]*")
THINK, THOUGHT = "<think>", "</think>"


def skip_space(text: str, at: int) -> int:
    """The first place from `at` on that is no white space of JSON's. Other Unicode spaces are text."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


_THINK_TAG = re.compile("</?think>")
_QUOTES = "`'\""


def is_quoted(text: str, start: int, end: int) -> bool:
    """Right between two backticks or quotes: spoken of."""
    return start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[end] == text[start - 1]


def next_tag(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """The next one that is not quoted."""
    for found in pattern.finditer(text, at):
        if not is_quoted(text, found.start(), found.end()):
            return found
    return None


def thought_end(text: str, at: int) -> int | None:
    """Behind the tag that closes the thought in which `at` stands; None when it stays open."""
    for found in _THINK_TAG.finditer(text, at):
        if found[0] == THOUGHT and not is_quoted(text, found.start(), found.end()):
            return found.end()
    return None


def spoken(text: str, in_thought: bool) -> str:
    """The text outside of its thoughts. `in_thought`: it begins inside one."""
    parts: list[str] = []
    at: int | None = thought_end(text, 0) if in_thought else 0
    while at is not None:
        tag = next_tag(_THINK_TAG, text, at)
        if tag is None:
            return "".join([*parts, text[at:]])
        if tag[0] == THOUGHT:  # all before it was thought
            parts, at = [], tag.end()
        else:
            parts.append(text[at : tag.start()])
            at = thought_end(text, tag.end())
    return "".join(parts)


def in_thought_error(cut: bool, shape: str) -> CallError:
    if cut:
        return missing(cut, shape)
    return CallError(
        CallErrorKind.IN_THOUGHT,
        f"No tool call was run: it stands inside a thought. Close the thought with {THOUGHT}, then call the tool:\n"
        f"{shape}",
    )


def after_thought(text: str, in_thought: bool) -> str:
    """The text behind a leading <think>…</think>; nothing while the thought is open. `in_thought`: the prompt opened
    it already."""
    begin = text.lstrip(SPACE)
    if not in_thought and not begin.startswith(THINK):
        return text
    _, closed, after = begin.partition(THOUGHT)
    return after if closed else ""


class Refused(ValueError):
    """Valid JSON that cannot be taken as it stands."""


def _no_constant(name: str) -> Any:
    raise Refused(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, _ in pairs if counts[key] > 1)
        raise Refused(f"the key {twice!r} is given twice")
    return made


_decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant, object_pairs_hook=_unique)
BAD_JSON = (ValueError, RecursionError)
"""What `decode` raises."""


def decode(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and its end. Raises one of `BAD_JSON`."""
    return _decoder.raw_decode(text, at)


def to_json(value: Any) -> str:
    """As chat templates write it. Raises Unspeakable for what JSON cannot hold."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise Unspeakable(f"not JSON: {error}") from error
    return text


def missing(cut: bool, shape: str) -> CallError:
    if cut:
        return CallError(
            CallErrorKind.CUT_BY_LENGTH,
            f"Your turn was cut off at its token limit before a tool call. Be brief, then call a tool:\n{shape}",
        )
    return CallError(CallErrorKind.MISSING, f"No tool call found. Every turn must call a tool, like this:\n{shape}")


def unclosed(cut: bool, opened: str, how: str, shape: str) -> CallError:
    """`opened` is what was left open, `how` says how calls end."""
    if cut:
        return CallError(
            CallErrorKind.CUT_BY_LENGTH,
            "Your turn was cut off at its token limit inside a tool call, which was not run. "
            "Send the call again with shorter text before it, or in smaller pieces.",
        )
    return CallError(
        CallErrorKind.UNCLOSED_TAG,
        f"The tool call was not run: {opened} is not closed. {how}, like this:\n{shape}",
    )


def bad_json(error: Exception, begin: int, shape: str) -> CallError:
    if isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at character {max(error.pos - begin, 0)} of the call"
    elif isinstance(error, RecursionError):
        why = "it is nested too deeply"
    else:
        why = str(error)
    return CallError(
        CallErrorKind.BAD_JSON,
        f"The tool call was not run: it is not valid JSON ({why}). In strings write \\n for a line break, "
        f'\\" for a quote and \\\\ for a backslash. The shape is:\n{shape}',
    )


def called(value: Any, shape: str, keys: Sequence[str] = ("arguments",)) -> ToolCall | CallError:
    """The call that a decoded object {"name": …, "arguments": …} is. `keys`: where its arguments may stand."""
    if not isinstance(value, dict):
        return CallError(
            CallErrorKind.NOT_AN_OBJECT,
            f"The tool call was not run: it must be one JSON object, like this:\n{shape}",
        )
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return CallError(
            CallErrorKind.MISSING_NAME,
            f'The tool call was not run: "name" must be the name of a tool, like this:\n{shape}',
        )
    key = next((key for key in keys if key in value), keys[0])
    return with_arguments(name, value.get(key, {}), shape, key)


def with_arguments(name: str, arguments: Any, shape: str, key: str = "arguments") -> ToolCall | CallError:
    """The call, when `arguments` is an object of real text."""
    if not isinstance(arguments, dict):
        return CallError(
            CallErrorKind.BAD_ARGUMENTS,
            f'The tool call was not run: "{key}" must be a JSON object (not a string or list):\n{shape}',
        )
    if not _encodable([name, arguments]):
        return CallError(
            CallErrorKind.BAD_JSON,
            "The tool call was not run: it holds half of a \\u surrogate pair, which is no character. "
            "Write the character itself.",
        )
    return ToolCall(name, arguments)


def _encodable(value: Any) -> bool:
    """Strings with a lone surrogate are JSON but no text: no file or command can hold them."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
