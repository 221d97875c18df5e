"""Qwen3-Coder's calls: <tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>. See `tagged`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.parsers import Parsed, Tools, Unspeakable, tagged
from agent.parsers.common import to_json
from envs.environment import ToolCall

SHAPE = "<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nvalue\n</parameter>\n</function>\n</tool_call>"
GRAMMAR = tagged.Grammar(
    open="<tool_call>",
    name=re.compile(r"<function=([^<>\n]+)>"),
    key=re.compile(r"<parameter=([^<>\n]+)>"),
    value_end="</parameter>",
    close=re.compile(r"</function>[ \t\r\n]*</tool_call>"),
    trim=True,
    shape=SHAPE,
)


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, or one error. `tools` say which values are numbers."""
    return tagged.parse(GRAMMAR, text, cut, in_thought, tools)


def spell(calls: Iterable[ToolCall], tools: Tools = ()) -> str:
    """Raises Unspeakable for a value that would not be read back the same."""
    calls = tuple(calls)
    if not calls:
        raise Unspeakable("no calls")
    text = "\n".join(
        f"<tool_call>\n<function={call.name}>\n"
        + "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in call.arguments.items())
        + "</function>\n</tool_call>"
        for call in calls
    )
    return tagged.spell_checked(calls, text, lambda written: parse(written, tools=tools))


def _bare(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)
