"""Messages of chat and Responses APIs, as agents store them, into `ForeignMessage`s; nothing that is text is lost.

A thought is taken from wherever APIs put it (`reasoning_content`, `thinking_blocks`, content parts, reasoning items),
once where fields repeat it. A user message whose parts answer tools becomes a message of the role `tool` for each. What
is no text is counted by its kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from data.foreign.run import ForeignCall, ForeignError, ForeignMessage, as_text, mapping, sequence, text_of

_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details")
_TURN_ITEMS = ("function_call", "custom_tool_call", "reasoning")
_RESULT_ITEMS = ("function_call_output", "custom_tool_call_output")


class Messages:
    """Collects the messages of one run; `where` names it in errors."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.made: list[ForeignMessage] = []
        self.kinds: Counter[str] = Counter()
        """Parts that are no text."""
        self._names: dict[str, str] = {}
        self._open = False
        """The last message is a turn that single Responses items are still added to."""

    def read(self, given: Sequence[Any]) -> None:
        """Raises ForeignError."""
        for number, message in enumerate(given):
            self.add(message, number)

    def add(self, message: Any, number: int) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        if isinstance(message, dict) and "role" not in message and isinstance(message.get("output"), list):
            self._open = False
            self._items(message["output"], number)  # an answer of the Responses API, whole
            self._open = False
        elif kind in _TURN_ITEMS:
            self._items([message], number)
        elif kind in _RESULT_ITEMS:
            self.result(self._parts(number, message.get("output")).content, text_of(message.get("call_id")))
        elif not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ForeignError(f"{self.where}: message {number} has no role")
        else:
            self._chat(message, number)

    def result(self, content: str, call_id: str = "", name: str = "") -> None:
        """A tool's answer."""
        self.say(ForeignMessage("tool", content, answers=call_id, name=name or self._names.get(call_id, "")))

    def say(self, message: ForeignMessage) -> None:
        self._names |= {call.id: call.name for call in message.calls if call.id}
        self.made.append(message)
        self._open = False

    def chat(self, message: Mapping[str, Any], number: int) -> ForeignMessage:
        """One message of the chat form; its parts answer no tools."""
        return self._message(message, self._parts(number, message.get("content")))

    def _message(self, message: Mapping[str, Any], parts: _Parts) -> ForeignMessage:
        content, role = parts.content, message["role"]
        thoughts = [*_thoughts(message, self.kinds), "".join(parts.thoughts)]
        extra = text_of(message.get("thought"))  # SWE-agent's; usually it is in the content too
        if extra.strip() not in content:
            thoughts.append(extra)
        calls = [*map(_call, sequence(message.get("tool_calls"))), *parts.calls]
        if isinstance(message.get("function_call"), dict):  # the chat API's old form
            calls.append(_call(message["function_call"]))
        if not content and not calls:
            content = text_of(message.get("action"))
        if role not in ("tool", "function"):
            return ForeignMessage(role, content, _once(thoughts), tuple(calls))
        ids = sequence(message.get("tool_call_ids"))
        answers = text_of(message.get("tool_call_id")) or (text_of(ids[0]) if ids else "")
        name = text_of(message.get("name")) or self._names.get(answers, "")
        return ForeignMessage("tool", content, _once(thoughts), tuple(calls), answers, name)

    def content(self, value: Any, number: int) -> str:
        """Text of a content, in parts or not."""
        return self._parts(number, value).content

    def _chat(self, message: Mapping[str, Any], number: int) -> None:
        if message.get("type") == "message" and message["role"] == "assistant":  # a Responses item
            self._items([message], number)
            return
        parts = self._parts(number, message.get("content"))
        made = self._message(message, parts)
        for call_id, text in parts.results:
            self.result(text, call_id)
        if not parts.results or made.text:
            self.say(made)

    def _items(self, items: Sequence[Any], number: int) -> None:
        """Items of the Responses API make one turn."""
        turn = self.made.pop() if self._open else ForeignMessage("assistant")
        for item in map(mapping, items):
            if item.get("type") in ("function_call", "custom_tool_call"):
                turn = replace(turn, calls=(*turn.calls, _call(item)))
            elif item.get("type") == "reasoning":
                thoughts = [turn.thought, *_reasoning(item, self.kinds)]
                turn = replace(turn, thought="\n\n".join(filter(None, thoughts)))
            elif isinstance(item.get("content"), list | str):
                said = self._parts(number, item["content"])
                turn = replace(turn, content=turn.content + said.content, calls=(*turn.calls, *said.calls))
            else:
                self.kinds[str(item.get("type") or "unknown")] += 1
        self.say(turn)
        self._open = True

    def _parts(self, number: int, content: Any) -> _Parts:
        made = _Parts()
        if content is None or isinstance(content, str):
            return _Parts(content or "")
        if isinstance(content, dict):
            content = [content]
        if not isinstance(content, list):
            raise ForeignError(f"{self.where}: the content of message {number} is {type(content).__name__}, not text")
        for part in content:
            self._part(number, part, made)
        return made

    def _part(self, number: int, part: Any, made: _Parts) -> None:
        if isinstance(part, str):
            made.content += part
            return
        part = mapping(part)
        kind = text_of(part.get("type"))
        if kind in ("thinking", "reasoning"):
            made.thoughts += _reasoning(part, self.kinds)
        elif kind == "tool_use":
            made.calls.append(_call(part))
        elif kind == "tool_result":
            inner = self._parts(number, part.get("content"))
            made.results.append((text_of(part.get("tool_use_id")), inner.content))
        elif isinstance(part.get("text"), str):
            made.content += part["text"]
        elif isinstance(part.get("refusal"), str):
            made.content += part["refusal"]
        else:
            self.kinds[kind or "unknown"] += 1

    @property
    def not_carried(self) -> tuple[str, ...]:
        return tuple(f"{count} × {kind}, which is no text" for kind, count in sorted(self.kinds.items()))


@dataclass
class _Parts:
    content: str = ""
    thoughts: list[str] = field(default_factory=list)
    calls: list[ForeignCall] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)


def _call(value: Any) -> ForeignCall:
    call = mapping(value)
    inner = mapping(call.get("function")) or call
    given: Any = next((inner[key] for key in ("arguments", "input", "parameters") if key in inner), {})
    key = next((key for key in ("call_id", "id") if text_of(call.get(key))), "")
    return ForeignCall(text_of(inner.get("name")) or "?", as_text(given), text_of(call.get(key)))


def _thoughts(message: Mapping[str, Any], kinds: Counter[str]) -> list[str]:
    made: list[str] = []
    for holder in (message, mapping(message.get("provider_specific_fields"))):
        for name in _THOUGHT_FIELDS:
            value = holder.get(name)
            if isinstance(value, str) and value:
                made.append(value)
            elif parts := sequence(value):
                again: Counter[str] = Counter()
                # One thought in pieces; the pieces of a list are joined as the APIs do.
                made.append("".join(text for part in parts for text in _reasoning(mapping(part), again)))
                kinds |= again
    return made


def _reasoning(part: Mapping[str, Any], kinds: Counter[str]) -> list[str]:
    """Texts of a thinking part or a reasoning item."""
    made = [part[key] for key in ("thinking", "text", "reasoning") if isinstance(part.get(key), str) and part[key]]
    for key in ("content", "summary"):
        inner = part.get(key)
        texts = [inner] if isinstance(inner, str) else [text_of(mapping(one).get("text")) for one in sequence(inner)]
        made += [text for text in texts if text]
    if not made and any(part.get(key) for key in ("encrypted_content", "data")):
        kinds["encrypted thought"] += 1
    return made


def _once(thoughts: Sequence[str]) -> str:
    """Thoughts of several fields as one text, without what another one holds already (fields repeat each other)."""
    made: list[str] = []
    for text in thoughts:
        if text.strip() and not any(text.strip() in other for other in made):
            made = [*(other for other in made if other.strip() not in text), text]
    return "\n\n".join(made)
