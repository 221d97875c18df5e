"""gpt-oss's calls: a message to a function, on the commentary channel, ended by <|call|>.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    <|message|>{…}<|call|>

The recipient may stand before or behind the channel. <|call|> ends the turn, so a turn makes at most one call. Only a
message whose end was sampled is read; on the analysis channel all else is thought.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agent.parsers import CallError, CallErrorKind, Parsed, Tools, Unspeakable
from agent.parsers.common import BAD_JSON, bad_json, decode, missing, skip_space, to_json, unclosed, with_arguments
from agent.parsers.marks import Mark
from envs.environment import ToolCall

START, MESSAGE, CHANNEL, CONSTRAIN = "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, MESSAGE, CHANNEL, CONSTRAIN, END, CALL, RETURN)
SHAPE = f"{CHANNEL}commentary to=functions.<tool> {CONSTRAIN}json{MESSAGE}{{...}}{CALL}"
_TO = re.compile(r"(?:^|\s)to=(\S+)")
_NAMESPACE = "functions."


@dataclass(frozen=True)
class Said:
    """One message of a turn. `end` is the mark that ended it, empty when none did."""

    channel: str
    recipient: str
    content: str
    end: str


def messages(pieces: Sequence[str]) -> list[Said]:
    """The messages of one model turn. The prompt ended with <|start|>assistant, so the first header has no start."""
    found: list[Said] = []
    header: list[str] = []
    content: list[str] | None = None

    def close(end: str) -> None:
        nonlocal header, content
        if content is not None:
            found.append(_said(header, content, end))
        header, content = [], None

    for piece in pieces:
        if isinstance(piece, Mark) and piece in (END, CALL, RETURN, START):
            close("" if piece == START else piece)
        elif content is None:
            if isinstance(piece, Mark) and piece == MESSAGE:
                content = []
            else:
                header.append(piece)
        else:
            content.append(piece)
    close("")
    return found


def parse(pieces: Sequence[str], *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """The turn's call, or one error. `pieces` as `marks.split` or the tokenizer gives them."""
    found: list[ToolCall | CallError] = []
    known = {tool["function"]["name"] for tool in tools}
    for said in messages(pieces):
        if said.channel == "analysis" and said.end != CALL:
            continue
        if not said.recipient:
            if said.end == CALL:
                found.append(_bad("the message names no recipient"))
        elif said.end == CALL:
            found.append(_one(said, known))
        elif said.end:
            found.append(_bad(f"it ends with {said.end}"))
        else:
            found.append(unclosed(cut, "the message", f"End every call with {CALL}", SHAPE))
    return tuple(found) if found else (missing(cut, SHAPE),)


def spell(calls: Iterable[ToolCall]) -> list[str]:
    """Pieces of a turn with one call. Raises Unspeakable for more."""
    one, *more = calls
    if more:
        raise Unspeakable("a gpt-oss turn makes one call")
    if not re.fullmatch(r"\S+", one.name):
        raise Unspeakable(f"{one.name!r} cannot be a tool's name in this format")
    return [
        Mark(CHANNEL),
        f"commentary to={_NAMESPACE}{one.name} ",
        Mark(CONSTRAIN),
        "json",
        Mark(MESSAGE),
        to_json(dict(one.arguments)),
        Mark(CALL),
    ]


def final_text(pieces: Sequence[str]) -> str:
    """What the turn says to the user: its messages outside the analysis channel that call nothing."""
    return "\n".join(said.content for said in messages(pieces) if said.channel != "analysis" and not said.recipient)


def _said(header: Sequence[str], content: Sequence[str], end: str) -> Said:
    channel = ""
    for before, piece in itertools.pairwise(header):
        if isinstance(before, Mark) and before == CHANNEL and not isinstance(piece, Mark):
            channel = piece.split(" ")[0].strip()
    to = _TO.search(" ".join(piece for piece in header if not isinstance(piece, Mark)))
    # Marks inside a message stay spelled: what was sampled must not vanish.
    return Said(channel, to[1] if to else "", "".join(content), end)


def _one(said: Said, known: Collection[str]) -> ToolCall | CallError:
    if not said.recipient.startswith(_NAMESPACE) and said.recipient not in known:  # the models forget it now and then
        return _bad(f"{said.recipient!r} is no function; recipients are {_NAMESPACE}<tool>")
    begin = skip_space(said.content, 0)
    try:
        value, end = decode(said.content, begin)
    except BAD_JSON as error:
        return bad_json(error, begin, SHAPE)
    if extra := said.content[end:].strip():
        return CallError(
            CallErrorKind.TEXT_AFTER,
            f"The tool call was not run: text stands after its arguments: {extra[:40]!r}. The shape is:\n{SHAPE}",
        )
    return with_arguments(said.recipient.removeprefix(_NAMESPACE), value, SHAPE)


def _bad(why: str) -> CallError:
    return CallError(CallErrorKind.BAD_FORMAT, f"The tool call was not run: {why}. The shape is:\n{SHAPE}")
