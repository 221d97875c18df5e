"""Parsers of tool calls: what a model wrote in, calls or named errors out.

One module per format, each with `parse` (never raises, never returns nothing: errors are values) and `spell` (how a
call is written, for demonstrations and scripted play). What all of them promise:
* a call that was cut off or not closed is never returned as a call;
* an argument is what the model wrote, byte for byte, whatever it holds: braces, tags, quotes, any Unicode;
* thinking text is never searched for calls, wherever in the turn a thought begins; what stands before a closing tag
  without an opening one was thought as well. A tag right between backticks or quotes is spoken of, not used;
* the time is linear in the turn's length.
A format whose values have no escape (`tagged`, `fenced`) keeps the first promise by reading a turn whole or not at all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.environment import ToolCall


class CallErrorKind(enum.StrEnum):
    MISSING = "missing"
    """No tool call in the turn."""
    BAD_JSON = "bad_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_NAME = "missing_name"
    BAD_ARGUMENTS = "bad_arguments"
    """`arguments` is there but is no object, or names an argument twice."""
    BAD_FORMAT = "bad_format"
    """The tags or channels of a call do not fit together."""
    TEXT_AFTER = "text_after"
    """Something stands where the format wants the call's end."""
    UNCLOSED_TAG = "unclosed_tag"
    """The model ended its turn inside a call."""
    CUT_BY_LENGTH = "cut_by_length"
    """The turn was cut by its token limit inside a call, or before any."""
    IN_THOUGHT = "in_thought"
    """What could be a call stands inside a thought, which runs nothing."""
    SEVERAL_CALLS = "several_calls"
    """More calls in one turn than the preset or the format allows; none was run."""


@dataclass(frozen=True)
class CallError:
    """What was wrong with one call; `message` tells the model what to do."""

    kind: CallErrorKind
    message: str


Parsed = tuple[ToolCall | CallError, ...]
"""In the order of the text, never empty: a turn without a call is one `missing` error."""

Tools = Sequence[Mapping[str, Any]]
"""JSON schemas as the environment offers them (OpenAI function format)."""


class Unspeakable(ValueError):
    """A format has no way to write this call so that it is read back the same."""
