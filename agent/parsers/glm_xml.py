"""GLM-4.5's calls: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>…</arg_value></tool_call>. See `tagged`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.parsers import Parsed, Tools, tagged
from envs.environment import ToolCall

SHAPE = "<tool_call>TOOL\n<arg_key>ARGUMENT</arg_key>\n<arg_value>value</arg_value>\n</tool_call>"
GRAMMAR = tagged.Grammar(
    open="<tool_call>",
    name=re.compile(r"([^\s<>]+)"),
    key=re.compile(r"<arg_key>([^<>]*)</arg_key>[ \t\r\n]*<arg_value>"),
    value_end="</arg_value>",
    close=re.compile(r"</tool_call>"),
    trim=False,
    shape=SHAPE,
)


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, or one error. `tools` say which values are numbers."""
    return tagged.parse(GRAMMAR, text, cut, in_thought, tools)


def spell(calls: Iterable[ToolCall], tools: Tools = ()) -> str:
    """Raises Unspeakable for a value that would not be read back the same."""
    return tagged.spell(GRAMMAR, calls, tools, _write)


def _write(name: str, values: dict[str, str]) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"
