"""Qwen3-Coder's calls: <tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>. See `tagged`.

The models leave the first tag out now and then; where a turn ends in such calls of known tools, they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.parsers import Parsed, Tools, tagged
from envs.environment import ToolCall

SHAPE = "<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nvalue\n</parameter>\n</function>\n</tool_call>"
_BARE = tagged.Grammar(
    open="",
    name=re.compile(r"<function=([^<>\n]+)>"),
    key=re.compile(r"<parameter=([^<>\n]+)>"),
    value_end="</parameter>",
    close=re.compile(r"</function>[ \t\r\n]*</tool_call>"),
    trim=True,
    shape=SHAPE,
)
GRAMMAR = tagged.Grammar(
    open="<tool_call>",
    name=re.compile(r"<function=([^<>\n]+)>"),
    key=re.compile(r"<parameter=([^<>\n]+)>"),
    value_end="</parameter>",
    close=re.compile(r"</function>[ \t\r\n]*</tool_call>"),
    trim=True,
    shape=SHAPE,
    bare=_BARE,
)


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, or one error. `tools` say which values are numbers."""
    return tagged.parse(GRAMMAR, text, cut, in_thought, tools)


def spell(calls: Iterable[ToolCall], tools: Tools = ()) -> str:
    """Raises Unspeakable for a value that would not be read back the same."""
    return tagged.spell(GRAMMAR, calls, tools, _write)


def _write(name: str, values: dict[str, str]) -> str:
    pairs = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"
