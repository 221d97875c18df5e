"""DeepSeek's calls, between special tokens. V3, V3-0324, R1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME⏎```json⏎{…}⏎```<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>

V3.1 leaves the type and the fence out: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>. Both are read.
A call needs its end token; the token behind the last call may be missing. Text may stand before the calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agent.parsers import CallError, CallErrorKind, Parsed, Tools, Unspeakable
from agent.parsers.common import (
    BAD_JSON,
    THINK,
    THOUGHT,
    bad_json,
    decode,
    in_thought_error,
    is_quoted,
    missing,
    skip_space,
    to_json,
    unclosed,
    with_arguments,
)
from agent.parsers.marks import Mark, is_mark
from envs.environment import ToolCall

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
MARKS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEP)
SHAPE = f"{CALLS_BEGIN}{CALL_BEGIN}function{SEP}<tool>\n```json\n{{...}}\n```{CALL_END}{CALLS_END}"
_FENCED = re.compile(r"[ \t\r\n]*([^\s`]+)[ \t]*\r?\n```json[ \t]*\r?\n")
_FENCE_END = re.compile(r"[ \t\r\n]*```[ \t\r\n]*")
_THINK_TAG = re.compile("</?think>")
_BLANK = re.compile(r"[ \t\r\n]*")


def parse(pieces: Sequence[str], *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """All calls of one model turn, in order. `pieces` as `marks.split` or the tokenizer gives them."""
    found: list[ToolCall | CallError] = []
    thinking, hidden, at = in_thought, False, 0
    while at < len(pieces):
        piece = pieces[at]
        if not isinstance(piece, Mark):
            for tag in _THINK_TAG.finditer(piece):
                if is_quoted(piece, tag.start(), tag.end()):
                    continue
                if tag[0] == THOUGHT and not thinking:  # all before it was thought
                    hidden, found = hidden or bool(found), []
                thinking = tag[0] == THINK or (thinking and tag[0] != THOUGHT)
        if thinking or not is_mark(piece, CALL_BEGIN):
            hidden = hidden or is_mark(piece, CALL_BEGIN)
            at += 1
            continue
        end = next((i for i in range(at + 1, len(pieces)) if isinstance(pieces[i], Mark) and pieces[i] != SEP), None)
        if end is None:
            found.append(unclosed(cut, CALL_BEGIN, f"End every call with {CALL_END}", SHAPE))
            break
        if pieces[end] != CALL_END:
            found.append(_bad(f"{pieces[end]} stands inside a call"))
            at = end
            continue
        found.append(_one(pieces[at + 1 : end]))
        at = end + 1
    if found:
        return tuple(found)
    return (in_thought_error(cut, SHAPE) if hidden else missing(cut, SHAPE),)


def spell(calls: Iterable[ToolCall], fenced: bool = True) -> list[str]:
    """Pieces of a turn that only calls. `fenced`: as V3 writes them, else as V3.1."""
    pieces: list[str] = [Mark(CALLS_BEGIN)]
    for number, call in enumerate(calls):
        if not re.fullmatch(r"[^\s`{]+", call.name):
            raise Unspeakable(f"{call.name!r} cannot be a tool's name in this format")
        arguments = to_json(dict(call.arguments))
        if fenced:
            between = ["\n"] if number else []
            body = ["function", Mark(SEP), f"{call.name}\n```json\n{arguments}\n```"]
        else:
            between, body = [], [call.name, Mark(SEP), arguments]
        pieces += [*between, Mark(CALL_BEGIN), *body, Mark(CALL_END)]
    return [*pieces, Mark(CALLS_END)]


def _one(body: Sequence[str]) -> ToolCall | CallError:
    seps = [index for index, piece in enumerate(body) if is_mark(piece, SEP)]
    if len(seps) != 1:
        return _bad(f"a call has exactly one {SEP}")
    before, rest = "".join(body[: seps[0]]).strip(), "".join(body[seps[0] + 1 :])
    if fenced := _FENCED.match(rest):
        name, begin, tail = fenced[1], fenced.end(), _FENCE_END
    else:
        name, begin, tail = before, skip_space(rest, 0), _BLANK
    if not name:
        return CallError(
            CallErrorKind.MISSING_NAME, f"The tool call was not run: it names no tool. Like this:\n{SHAPE}"
        )
    try:
        value, end = decode(rest, begin)
    except BAD_JSON as error:
        return bad_json(error, begin, SHAPE)
    if not tail.fullmatch(rest, end):
        extra = rest[end:].strip()[:40]
        return CallError(
            CallErrorKind.TEXT_AFTER,
            f"The tool call was not run: text stands after its arguments: {extra!r}. The shape is:\n{SHAPE}",
        )
    return with_arguments(name, value, SHAPE)


def _bad(why: str) -> CallError:
    return CallError(CallErrorKind.BAD_FORMAT, f"The tool call was not run: {why}. The shape is:\n{SHAPE}")
