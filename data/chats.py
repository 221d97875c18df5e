"""Conversations for supervised fine-tuning, by name, from files or from the hub: lists of {"role", "content"}.

An assistant's message may hold `calls` (data/chat_calls.py); one message of the role tool then answers each, in order,
with the tool's `name`. The column `tools` has the tools' definitions.

`messages` may be JSON text, a content a list of text parts, and `developer` is `system`. An assistant's message that
its file switches off (`weight`: 0 as OpenAI has it, `train`: false as Axolotl, `loss`: false as ms-swift) carries
`"learned": False`; switches of other messages say nothing, as these are never learned.

Promises: after an optional system message roles alternate user and assistant, results standing behind their calls, and
end with the assistant (results behind its last calls are left out: nothing is learned from them); what is not so is an
error naming the row; a conversation that holds a problem of an evaluation set is refused.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.chat_calls import RESULTS, calls_of, in_call_order, tools_of_row
from data.contamination import EvaluationTask, evaluation_set
from data.task import TaskError

Message = Mapping[str, Any]
_SWITCHES = ("weight", "train", "loss")


class Chat(list[Message]):
    """The messages of a conversation, with the definitions of its tools."""

    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class ChatSet:
    name: str
    hub: str
    subset: str | None
    splits: tuple[str, ...]
    column: str
    licence: str
    rows: str


SETS = {
    "smoltalk": ChatSet(
        "smoltalk", "HuggingFaceTB/smoltalk", "all", ("train", "test"), "messages", "Apache-2.0", "about 1.1 million"
    ),
}


def load_chats(
    name: str, split: str, path: str | os.PathLike[str] | None = None, limit: int | None = None
) -> list[list[Message]]:
    """At most `limit` conversations, in the set's order. Raises TaskError, EvaluationTask among them."""
    from data.loaders import read_rows

    known = SETS.get(name)
    if known is None and path is None:
        raise TaskError(f"no chat set {name!r}: choose {', '.join(SETS)}, or give a file with a column messages")
    if known is not None and path is None and split not in known.splits:
        raise TaskError(f"{name} ({known.hub}) has no split {split!r}; it has {', '.join(known.splits)}")
    source = f"{name} ({Path(path).name})" if path else name
    rows = read_rows(known.hub if known else name, split, path, subset=known.subset if known else None)
    return _chats(itertools.islice(rows, limit), known.column if known else "messages", source)


def check_chat(messages: Any, where: str) -> None:
    """Raises TaskError, EvaluationTask among it, for what no conversation to learn from is."""
    _chat(messages, where)


def _chats(rows: Iterable[Mapping[str, Any]], column: str, source: str) -> list[list[Message]]:
    made: list[list[Message]] = []
    for number, row in enumerate(rows):
        where = f"{source}, row {number + 1}"
        chat = Chat(_chat(row.get(column), where))
        chat.tools = tools_of_row(row.get("tools"), where)
        made.append(chat)
    if not made:
        raise TaskError(f"{source} has no rows")
    return made


def _chat(value: Any, where: str) -> list[Message]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}: messages is text, and no JSON: {error}") from error
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise TaskError(f"{where}: no list of messages")
    messages: list[Message] = []
    for message in value:
        at = f"{where}: message {len(messages)}"
        if not isinstance(message, Mapping):
            raise TaskError(f"{at} is no object with role and content")
        role = "system" if message.get("role") == "developer" else str(message.get("role"))
        calls = calls_of(message, at) if role == "assistant" else []
        content = _content(message, at, empty=bool(calls))
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"{where}: message {len(messages)} holds half of a surrogate pair at character {error.start}, which is "
                "no text; take the row out"
            ) from error
        off = role == "assistant" and not _learned(message, at)
        more: dict[str, Any] = {"learned": False} if off else {}
        if calls:
            more["calls"] = calls
        if role in RESULTS:
            role, more = "tool", {"answers": str(message.get("tool_call_id") or "")}
        messages.append({"role": role, "content": content, **more})
    messages = _answered(messages, where)
    roles = [message["role"] for message in messages]
    # A turn with calls and its results is one with the turn that follows.
    spoken = [
        role
        for number, role in enumerate(roles)
        if role != "tool" and not (role == "assistant" and "tool" in roles[number + 1 : number + 2])
    ]
    turns = spoken[1:] if spoken[0] == "system" else spoken
    wanted = ["user", "assistant"] * (len(turns) // 2)
    if not turns or turns != wanted:
        raise TaskError(f"{where}: roles are {', '.join(roles[:8])}; expected user and assistant in turn, to the end")
    for message in messages:
        if message["role"] == "user" and (found := evaluation_set("", "maths", {"problem": message["content"]})):
            raise EvaluationTask(f"{where}: it holds a problem of the evaluation set {found[0]}; take it out")
    return messages


def _answered(messages: list[Message], where: str) -> list[Message]:
    """Results in the order of their calls, each with the name of its tool; without those behind the last turn."""
    made: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        end = at + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, calls = messages[at + 1 : end], message.get("calls", [])
        if message["role"] == "tool" or (results and not calls):
            raise TaskError(f"{where}: message {at} is followed by a tool's result, or is one, without a call")
        made.append(message)
        if end < len(messages) and calls:
            ordered = in_call_order(calls, results, f"{where}: message {at}")
            made += [{**one, "name": call["name"]} for one, call in zip(ordered, calls, strict=True)]
        at = end
    return made


def _content(message: Mapping[str, Any], at: str, *, empty: bool = False) -> str:
    """The text of a message, with what was thought before it. What is none is refused by its kind, never left out.
    `empty`: it need not have any."""
    content = message.get("content")
    if thought := message.get("reasoning_content"):
        if not isinstance(thought, str) or not isinstance(content or "", str):
            raise TaskError(f"{at} has a reasoning_content that is no text, or a content that is none")
        return f"<think>\n{thought.strip()}\n</think>\n\n{content or ''}"
    if isinstance(content, str):
        return content
    if empty and not content:
        return ""
    if not isinstance(content, Sequence) or not content:
        raise TaskError(f"{at} is no object with role and content")
    texts = []
    for part in content:
        # Tables give every part the fields of all kinds, as null.
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or (isinstance(part, Mapping) and part.get("type", "text") != "text"):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise TaskError(f"{at} has a part of the kind {kind!r}; only text parts can be learned from")
        texts.append(text)
    return "".join(texts)


def _learned(message: Mapping[str, Any], at: str) -> bool:
    given = {name: message[name] for name in _SWITCHES if message.get(name) is not None}
    for name, value in given.items():
        if value not in (0, 1):
            raise TaskError(f"{at} has {name} {value!r}: a message is learned (1, true) or not (0, false)")
    if len({bool(value) for value in given.values()}) > 1:
        raise TaskError(f"{at} is switched on and off at once: {given}; keep one of them")
    return all(given.values())
