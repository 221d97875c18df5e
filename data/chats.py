"""Conversations for supervised fine-tuning, by name, from files or from the hub: lists of {"role", "content"}.

Promises: roles alternate user and assistant after an optional system message and end with the assistant; what is not so
is an error naming the row; a conversation that holds a problem of an evaluation set is refused.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.contamination import EvaluationTask, evaluation_set
from data.task import TaskError

Message = Mapping[str, str]


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
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise TaskError(f"{where}: no list of messages")
    messages: list[Message] = []
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise TaskError(f"{where}: message {len(messages)} is no object with role and content")
        try:
            message["content"].encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"{where}: message {len(messages)} holds half of a surrogate pair at character {error.start}, which is "
                "no text; take the row out"
            ) from error
        messages.append({"role": str(message.get("role")), "content": message["content"]})
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[0] == "system" else roles
    wanted = ["user", "assistant"] * (len(turns) // 2)
    if not turns or turns != wanted:
        raise TaskError(f"{where}: roles are {', '.join(roles[:8])}; expected user and assistant in turn, to the end")
    for message in messages:
        if message["role"] == "user" and (found := evaluation_set("", "maths", {"problem": message["content"]})):
            raise EvaluationTask(f"{where}: it holds a problem of the evaluation set {found[0]}; take it out")
    return messages
