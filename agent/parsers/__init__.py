"""Parsers of tool calls: text in, calls or named errors out. Errors are values; a parser never raises on any text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from envs.environment import ToolCall


class CallErrorKind(enum.StrEnum):
    MISSING = "missing"
    """No tool call in the turn."""
    BAD_JSON = "bad_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_NAME = "missing_name"
    BAD_ARGUMENTS = "bad_arguments"
    """`arguments` is there but is no object."""
    TEXT_AFTER = "text_after"
    """Something stands between the JSON object and </tool_call>."""
    UNCLOSED_TAG = "unclosed_tag"
    """The model ended its turn inside a call."""
    CUT_BY_LENGTH = "cut_by_length"
    """The turn was cut by its token limit inside a call, or before any."""


@dataclass(frozen=True)
class CallError:
    """What was wrong with one call; `message` tells the model what to do."""

    kind: CallErrorKind
    message: str


Parsed = tuple[ToolCall | CallError, ...]
"""In the order of the text, never empty: a turn without a call is one `missing` error."""
