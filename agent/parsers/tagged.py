"""Calls written as tags around bare values: the reader behind `qwen_xml` and `glm_xml`.

Values have no escape, so a value may itself hold `</parameter>` or a whole call. What decides is the turn as a whole:
free text, then calls with nothing but white space after and between them, to the very end. Each value ends at
the closing tag that balances it (as brackets do), where that leaves a turn of that form, else at the first one that
does. So tag text inside a value survives, and a turn that has no such reading (cut, unterminated, text after a call)
runs nothing at all: it could only be misread. What the format itself cannot tell: a value that holds the end of its own
call, white space and the beginning of another one reads as two calls. `spell` refuses to write that.
The reading takes one pass from right to left: linear in the turn's length, up to a logarithm.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.parsers import CallError, CallErrorKind, Parsed, Tools, Unspeakable
from agent.parsers.common import (
    THINK,
    THOUGHT,
    in_thought_error,
    missing,
    next_tag,
    skip_space,
    spoken,
    thought_end,
    to_json,
    unclosed,
)
from envs.environment import ToolCall


@dataclass(frozen=True)
class Grammar:
    """Patterns are matched where a tag may stand; white space before them is skipped."""

    open: str
    name: re.Pattern[str]
    """Right after `open`; group 1 is the tool's name."""
    key: re.Pattern[str]
    """Up to where the value begins; group 1 is the argument's name."""
    value_end: str
    close: re.Pattern[str]
    trim: bool
    """One line break at each end of a value belongs to the tags."""
    shape: str
    bare: Grammar | None = None
    """The same without the opening tag, where models forget it."""


def parse(grammar: Grammar, text: str, cut: bool, in_thought: bool, tools: Tools) -> Parsed:
    types = argument_types(tools)
    start, mention, hidden = _first_call(grammar, text, in_thought, types)
    if start is None:
        if hidden:
            return (in_thought_error(cut, grammar.shape),)
        if not cut and (found := _without_opening(grammar, text, mention, in_thought, tools)):
            return found
        return (missing(cut, grammar.shape) if mention is None else _error(grammar, text, mention, cut),)
    body = text[start:]
    reading = _Reading(grammar, body)
    torn = mention is not None and grammar.key.search(text, mention, start) is not None
    if torn or not reading.tail(0):
        return (_error(grammar, body, 0, cut),)
    if cut:
        # It reads as whole, but a value that was cut off can look like that.
        return (
            CallError(
                CallErrorKind.CUT_BY_LENGTH,
                "Your turn was cut off at its token limit, so none of its tool calls was run. "
                "Send them again with shorter text before them, or fewer at a time.",
            ),
        )
    return tuple(_call(grammar, name, pairs, types.get(name, {})) for name, pairs in reading.calls(0))


def _first_call(
    grammar: Grammar, text: str, in_thought: bool, known: Collection[str]
) -> tuple[int | None, int | None, bool]:
    """Where the first call outside of thoughts begins; where else its tag stands; whether a thought holds one."""
    tags = re.compile(f"</?think>|{re.escape(grammar.open)}")
    mention: int | None = None
    at = thought_end(text, 0) if in_thought else 0
    hidden = at is None and grammar.open in text
    while at is not None and (tag := next_tag(tags, text, at)):
        at = tag.end()
        if tag[0] == THOUGHT:  # all before it was thought
            hidden, mention = hidden or mention is not None, None
        elif tag[0] == THINK:
            at = thought_end(text, tag.end())
            hidden = at is None and text.find(grammar.open, tag.end()) >= 0
        elif _begins(grammar, text, tag, known):
            return tag.start(), mention, False
        elif mention is None:
            mention = tag.start()
    return None, mention, hidden and mention is None


def _begins(grammar: Grammar, text: str, tag: re.Match[str], known: Collection[str]) -> bool:
    """A tool's name follows, and then an argument or the end: a call, and not a word about its tag."""
    name = grammar.name.match(text, skip_space(text, tag.end()))
    if name is None:
        return False
    at = skip_space(text, name.end())
    if at == len(text) or grammar.key.match(text, at):
        return True
    own_line = tag.start() == 0 or text[tag.start() - 1] in "\n>"
    return bool(grammar.close.match(text, at)) and (own_line or name[1] in known)


def _without_opening(grammar: Grammar, text: str, mention: int | None, in_thought: bool, tools: Tools) -> Parsed | None:
    """Calls whose opening tag the model left out, as Qwen3-Coder does: where the turn ends in exactly that form, on
    lines of its own, outside of thoughts and fences, and every tool is one that is offered."""
    if grammar.bare is None or mention is not None or not tools:
        return None
    body = spoken(text, in_thought)
    known = argument_types(tools)
    for line in _BARE_LINE.finditer(body):
        name = grammar.bare.name.match(body, line.end())
        if name is None or name[1] not in known:
            continue
        reading = _Reading(grammar.bare, body[line.end() :])
        if len(_FENCE.findall(body, 0, line.start())) % 2 or not reading.tail(0):
            return None
        calls = reading.calls(0)
        if any(name not in known for name, _ in calls):
            return None
        return tuple(_call(grammar, name, pairs, known[name]) for name, pairs in calls)
    return None


_BARE_LINE = re.compile(r"^ {0,3}(?=<)", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)


def spell(
    grammar: Grammar, calls: Iterable[ToolCall], tools: Tools, write: Callable[[str, dict[str, str]], str]
) -> str:
    """Calls as one turn, each by `write(name, bare values)`, read back to be sure.

    Raises Unspeakable: no calls, or a value that would not be read back the same."""
    calls = tuple(calls)
    if not calls:
        raise Unspeakable("no calls")
    text = "\n".join(write(call.name, {key: _bare(value) for key, value in call.arguments.items()}) for call in calls)
    if parse(grammar, text, False, False, tools) != calls:
        raise Unspeakable("this format has no escape for a value that holds its own closing tags")
    return text


def _bare(value: object) -> str:
    """As it stands between the tags: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else to_json(value)


def argument_types(tools: Tools) -> dict[str, dict[str, str]]:
    """Tool -> argument -> JSON type."""
    return {
        tool["function"]["name"]: {
            key: str(schema.get("type", ""))
            for key, schema in tool["function"].get("parameters", {}).get("properties", {}).items()
        }
        for tool in tools
    }


def typed(text: str, kind: str) -> Any:
    """A bare value as its schema's type. What does not read as that type stays text: the tool says so by name."""
    if kind in ("", "string"):
        return text
    stripped = text.strip()
    if kind == "boolean":
        return {"true": True, "false": False}.get(stripped.lower(), text)
    try:
        value = json.loads(stripped, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return text
    wanted: Mapping[str, tuple[type, ...]] = {
        "integer": (int, float),
        "number": (int, float),
        "array": (list,),
        "object": (dict,),
    }
    right = isinstance(value, wanted.get(kind, (object,))) and not isinstance(value, bool)
    return value if right or value is None else text


class _Reading:
    """Which places of a turn begin something that reads on to the turn's end."""

    def __init__(self, grammar: Grammar, body: str) -> None:
        self.grammar, self.body = grammar, body
        self._all_good: set[int] = set()
        self._good: list[int] = []  # negated starts of closing tags of values that read on: ascending
        self._tails: dict[int, bool] = {}  # ends of calls
        ends = [match.start() for match in re.finditer(re.escape(grammar.value_end), body)]
        self._balanced = _pairs([match.end() for match in grammar.key.finditer(body)], ends)
        closes = [match.start() for match in grammar.close.finditer(body)]
        # From the right: what a place needs to know lies to its right. A call's end may begin where a value's does not.
        for at, is_close in sorted([(at, False) for at in ends] + [(at, True) for at in closes], reverse=True):
            if is_close:
                close = grammar.close.match(body, at)
                if close:
                    self._tails[close.end()] = self.tail(close.end())
            elif self._inside(at + len(grammar.value_end)):
                self._good.append(-at)
        self._all_good = set(self._good)

    def tail(self, at: int) -> bool:
        """Nothing but white space and whole calls from here to the end."""
        at = skip_space(self.body, at)
        if at == len(self.body):
            return True
        name = self._name(at)
        return name is not None and self._inside(name.end())

    def calls(self, at: int) -> list[tuple[str, list[tuple[str, str]]]]:
        """(name, [(argument, value), …]) of every call from `at`, where `tail` holds."""
        found = []
        while (at := skip_space(self.body, at)) < len(self.body):
            name = self._name(at)
            assert name is not None
            pairs: list[tuple[str, str]] = []
            at = name.end()
            while not (close := self.grammar.close.match(self.body, skip_space(self.body, at))):
                key = self.grammar.key.match(self.body, skip_space(self.body, at))
                assert key is not None
                end = self._value_end(key.end())
                assert end is not None
                pairs.append((key[1], self.body[key.end() : end]))
                at = end + len(self.grammar.value_end)
            found.append((name[1], pairs))
            at = close.end()
        return found

    def _name(self, at: int) -> re.Match[str] | None:
        if not self.body.startswith(self.grammar.open, at):
            return None
        return self.grammar.name.match(self.body, skip_space(self.body, at + len(self.grammar.open)))

    def _inside(self, at: int) -> bool:
        """Between the arguments of a call, and it reads on."""
        at = skip_space(self.body, at)
        close = self.grammar.close.match(self.body, at)
        if close:
            return self._tails.get(close.end(), False)
        key = self.grammar.key.match(self.body, at)
        return key is not None and self._value_end(key.end()) is not None

    def _value_end(self, start: int) -> int | None:
        balanced = self._balanced.get(start)
        if balanced is not None and -balanced in self._all_good:
            return balanced
        index = bisect.bisect_right(self._good, -start) - 1
        return -self._good[index] if index >= 0 else None


def _pairs(starts: list[int], ends: list[int]) -> dict[int, int]:
    """Beginnings of values with the closing tag that balances each."""
    pairs: dict[int, int] = {}
    open_: list[int] = []
    for at, is_end in sorted([(at, False) for at in starts] + [(at, True) for at in ends]):
        if not is_end:
            open_.append(at)
        elif open_:
            pairs[open_.pop()] = at
    return pairs


def _call(grammar: Grammar, name: str, pairs: list[tuple[str, str]], types: Mapping[str, str]) -> ToolCall | CallError:
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        if key in arguments:
            return CallError(
                CallErrorKind.BAD_ARGUMENTS,
                f"The tool call was not run: the argument {key!r} is given twice. The shape is:\n{grammar.shape}",
            )
        if grammar.trim:
            value = value.removeprefix("\n").removesuffix("\n")
        arguments[key] = typed(value, types.get(key, ""))
    return ToolCall(name, arguments)


def _error(grammar: Grammar, body: str, start: int, cut: bool) -> CallError:
    closes = list(grammar.close.finditer(body, start))
    if cut or not closes:
        return unclosed(cut, grammar.open, "End every call and every argument", grammar.shape)
    after = body[closes[-1].end() :].strip()
    if after:
        return CallError(
            CallErrorKind.TEXT_AFTER,
            f"No tool call was run: text stands after the last one ({after[:40]!r}), so its end is not certain. "
            "Write what you have to say before the calls, and nothing after them.",
        )
    return CallError(
        CallErrorKind.BAD_FORMAT,
        f"No tool call was run: the tags do not fit together. Between calls only white space may stand. The shape is:\n"
        f"{grammar.shape}",
    )
