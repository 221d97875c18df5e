"""`sao import --chats`: trajectory files of other agents become rows for `sao sft --chats`.

Promises: texts, thoughts, calls and results are the file's; messages of one speaker in a row are joined by a blank
line, and what follows the last word of the assistant is left out, as nothing is learned from it; a task of a benchmark
never becomes a row; what no row can be made of is named with the reason; the file appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from data.atomic import write_atomically
from data.chats import check_chat
from data.foreign import ForeignError, ForeignMessage, ForeignRun
from data.reading import user_path
from data.task import TaskError
from sao.imports import found_files, runs_of
from sao.paths import UserError


def write_chats(paths: Sequence[Path], console: Console, out: Path) -> int:
    """Exit code 0; 1 when a run could not become a row (the others are written)."""
    out = Path(user_path(out))
    if out.suffix != ".jsonl":
        raise UserError(f"--chats {out}: rows are written as .jsonl; give a name that ends so.")
    if out.exists():
        raise UserError(
            f"--chats {out}: it is there already, and nothing is overwritten. Move it, or give another name."
        )
    rows, failed, benchmarks = [], [], []
    for path in found_files(paths):
        for foreign in runs_of(path):
            if isinstance(foreign, ForeignError):
                failed.append(str(foreign))
            elif foreign.is_benchmark:
                benchmarks.append(foreign.instance)
            else:
                try:
                    rows.append(chat_row(foreign, path.name))
                except TaskError as error:
                    failed.append(str(error))
    for text in failed:
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    if benchmarks:
        shown = ", ".join(benchmarks[:5]) + (" …" if len(benchmarks) > 5 else "")
        console.print(
            f"{len(benchmarks)} of a benchmark's tasks left out, nothing is trained on those: {shown}",
            style="yellow", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    if not rows:
        raise UserError("No run can be trained on, see above. Nothing was written.")
    write_atomically(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    turns = sum(message["role"] == "assistant" for row in rows for message in row["messages"])
    console.print(
        f"{out}: {len(rows)} conversations, {turns} turns to learn. Next: sao sft --chats {out} --model MODEL",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    return 1 if failed else 0


def chat_row(foreign: ForeignRun, name: str) -> dict[str, Any]:
    """The row of one run. Raises TaskError, EvaluationTask among it, where it is no conversation to learn from."""
    messages = list(_joined(foreign.messages))
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    check_chat(messages, f"{name} ({foreign.instance})")
    row = {"messages": messages, "instance": foreign.instance, "harness": foreign.harness}
    return row | ({"tools": list(foreign.tools)} if foreign.tools else {})


def _joined(messages: Iterable[ForeignMessage]) -> Iterable[dict[str, Any]]:
    last: dict[str, Any] | None = None
    for message in messages:
        made = _message(message)
        if last is not None and last.keys() == made.keys() == {"role", "content"} and last["role"] == made["role"]:
            last["content"] += "\n\n" + made["content"]
            continue
        if last is not None:
            yield last
        last = made
    if last is not None:
        yield last


def _message(message: ForeignMessage) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thought:
        made["reasoning_content"] = message.thought
    if message.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.answers:
        made["tool_call_id"] = message.answers
    return made
