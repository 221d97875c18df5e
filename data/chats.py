"""Conversations for supervised fine-tuning, by name, from files or from the hub: lists of {"role", "content"}.

`messages` may be JSON text, a content a list of text parts, and `developer` is `system`. An assistant's message that
its file switches off (`weight`: 0 as OpenAI has it, `train`: false as Axolotl, `loss`: false as ms-swift) carries
`"learned": False`; switches of other messages say nothing, as these are never learned.

Promises: roles alternate user and assistant after an optional system message and end with the assistant; what is not so
is an error naming the row; a conversation that holds a problem of an evaluation set is refused.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.contamination import EvaluationTask, evaluation_set
from data.task import TaskError

Message = Mapping[str, Any]
_SWITCHES = ("weight", "train", "loss")


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


def _chats(rows: Iterable[Mapping[str, Any]], column: str, source: str) -> list[list[Message]]:
    made = [_chat(row.get(column), f"{source}, row {number + 1}") for number, row in enumerate(rows)]
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
        content = _content(message, at)
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"{where}: message {len(messages)} holds half of a surrogate pair at character {error.start}, which is "
                "no text; take the row out"
            ) from error
        role = "system" if message.get("role") == "developer" else str(message.get("role"))
        off = role == "assistant" and not _learned(message, at)
        messages.append({"role": role, "content": content, **({"learned": False} if off else {})})
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[0] == "system" else roles
    wanted = ["user", "assistant"] * (len(turns) // 2)
    if not turns or turns != wanted:
        raise TaskError(f"{where}: roles are {', '.join(roles[:8])}; expected user and assistant in turn, to the end")
    for message in messages:
        if message["role"] == "user" and (found := evaluation_set("", "maths", {"problem": message["content"]})):
            raise EvaluationTask(f"{where}: it holds a problem of the evaluation set {found[0]}; take it out")
    return messages


def _content(message: Mapping[str, Any], at: str) -> str:
    """The text of a message. What is none is refused by its kind, never left out."""
    if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise TaskError(
            f"{at} holds a tool's call or result, which conversations cannot hold yet: write calls and results as text "
            "of the assistant and the user, as the model is to see them"
        )
    content = message.get("content")
    if isinstance(content, str):
        return content
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
