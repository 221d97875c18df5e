"""Actions as one fenced block of shell, for models that know no tool calls (the preset `mini`):

    ```bash
    command
    ```

The block runs from its opening line to the first line that is only ```, where lines of a here-document do not count:
a here-document may hold fences of its own. A turn holds one block; its text is the command, byte for byte, without the
last line break. A block that only says `submit` ends the episode. A here-document without its end line is unterminated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.parsers import CallError, CallErrorKind, Parsed, Tools, Unspeakable
from agent.parsers.common import THINK, THOUGHT, in_thought_error, missing, next_tag, thought_end, unclosed
from envs.environment import ToolCall

SHAPE = "```bash\n<command>\n```"
SUBMIT = "submit"
_OPEN = re.compile(r"^```(?:bash|sh|shell)[ \t]*\r?$", re.M)
_FENCE = re.compile(r"^```[ \t]*\r?$")
_TAG = re.compile(r"</?think>|^```", re.M)
_HERE = re.compile(
    r"""(?P<skip>'[^']*'|"(?:\\.|[^"\\])*"|\\.|<<<|\(\([^)]{0,500}\)\)|(?:^|(?<=\s))\#.*)"""
    r"""|<<(?P<dash>-?)[ \t]*(?P<word>'[^']+'|"[^"]+"|\\?[A-Za-z_][\w.-]*)""",
    re.M,
)


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """The turn's command as a call of `bash` (or `submit`), or one error."""
    at: int | None = thought_end(text, 0) if in_thought else 0
    hidden = at is None and _OPEN.search(text) is not None
    found: ToolCall | CallError | None = None
    while at is not None and (tag := next_tag(_TAG, text, at)):
        at = tag.end()
        if tag[0] == THINK:
            at = thought_end(text, tag.end())
            hidden = found is None and at is None and _OPEN.search(text, tag.end()) is not None
        elif tag[0] == THOUGHT:  # all before it was thought
            hidden, found = hidden or found is not None, None
        elif found is not None:
            found = _SEVERAL
        elif opened := _OPEN.match(text, tag.start()):
            found, at = _block(text, opened.end() + 1, cut)
    if found is None:
        return (in_thought_error(cut, SHAPE) if hidden else missing(cut, SHAPE),)
    return (found,)


def _block(text: str, begin: int, cut: bool) -> tuple[ToolCall | CallError, int]:
    """The command that begins at `begin`, and where to go on."""
    waiting: list[tuple[str, bool]] = []  # ends of here-documents that are open, and whether tabs may stand before
    at = begin
    while at <= len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if waiting:
            word, tabs = waiting[0]
            if (line.lstrip("\t") if tabs else line).removesuffix("\r") == word:
                waiting.pop(0)
        elif _FENCE.match(line) and not cut:  # a block that was cut off can look whole, as in `tagged`
            return _whole(text[begin : max(begin, at - 1)]), end
        else:
            waiting += _here_documents(line)
        at = end + 1
    if waiting and not cut:
        return (
            CallError(
                CallErrorKind.UNCLOSED_TAG,
                f"The command was not run: the here-document {waiting[0][0]} has no end line. It needs a line that "
                "holds only that word, and the block a line that holds only ``` after it.",
            ),
            len(text),
        )
    return unclosed(cut, "```bash", "End the block with a line that holds only ```", SHAPE), len(text)


def spell(calls: Iterable[ToolCall]) -> str:
    """Raises Unspeakable for anything but one command that is read back the same."""
    calls = tuple(calls)
    command = calls[0].arguments.get("command") if calls and calls[0].name == "bash" else SUBMIT
    text = f"```bash\n{command}\n```"
    if parse(text) != calls:
        raise Unspeakable("a fenced block carries one shell command whose fences stand in here-documents")
    return text


_SEVERAL = CallError(
    CallErrorKind.SEVERAL_CALLS,
    "No command was run: the turn holds more than one fenced block. Write one block and nothing fenced after "
    "it; several commands may stand in it, joined by && or on lines of their own.",
)


def _whole(command: str) -> ToolCall | CallError:
    if not command.strip():
        return missing(False, SHAPE)
    if command.strip() == SUBMIT:
        return ToolCall(SUBMIT, {})
    return ToolCall("bash", {"command": command})


def _here_documents(line: str) -> list[tuple[str, bool]]:
    """(end word, whether leading tabs are dropped) of each here-document that the line opens. A `<<` in quotes, a
    comment, a here-string or arithmetic opens none."""
    return [
        (found["word"].strip("'\"").removeprefix("\\"), bool(found["dash"]))
        for found in _HERE.finditer(line)
        if found["word"]
    ]
