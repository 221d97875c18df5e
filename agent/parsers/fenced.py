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
from agent.parsers.common import after_thought, missing, unclosed
from envs.environment import ToolCall

SHAPE = "```bash\n<command>\n```"
SUBMIT = "submit"
_OPEN = re.compile(r"^```(?:bash|sh|shell)[ \t]*\r?$", re.M)
_FENCE = re.compile(r"^```[ \t]*\r?$")
_ANY_FENCE = re.compile(r"^```", re.M)
_HERE = re.compile(
    r"""(?P<skip>'[^']*'|"(?:\\.|[^"\\])*"|\\.|<<<|\(\([^)]*\)\)|(?:^|(?<=\s))\#.*)"""
    r"""|<<(?P<dash>-?)[ \t]*(?P<word>'[^']+'|"[^"]+"|\\?[A-Za-z_][\w.-]*)""",
    re.M,
)


def parse(text: str, *, cut: bool = False, in_thought: bool = False, tools: Tools = ()) -> Parsed:
    """The turn's command as a call of `bash` (or `submit`), or one error."""
    body = after_thought(text, in_thought)
    opened = _OPEN.search(body)
    if opened is None:
        return (missing(cut, SHAPE),)
    lines = body[opened.end() + 1 :].split("\n")
    waiting: list[tuple[str, bool]] = []  # ends of here-documents that are open, and whether tabs may stand before
    for number, line in enumerate(lines):
        if waiting:
            word, tabs = waiting[0]
            if (line.lstrip("\t") if tabs else line).removesuffix("\r") == word:
                waiting.pop(0)
        elif _FENCE.match(line) and not cut:  # a block that was cut off can look whole, as in `tagged`
            return (_whole("\n".join(lines[:number]), "\n".join(lines[number + 1 :])),)
        else:
            waiting += _here_documents(line)
    if waiting and not cut:
        return (
            CallError(
                CallErrorKind.UNCLOSED_TAG,
                f"The command was not run: the here-document {waiting[0][0]} has no end line. It needs a line that "
                "holds only that word, and the block a line that holds only ``` after it.",
            ),
        )
    return (unclosed(cut, "```bash", "End the block with a line that holds only ```", SHAPE),)


def spell(calls: Iterable[ToolCall]) -> str:
    """Raises Unspeakable for anything but one command that is read back the same."""
    calls = tuple(calls)
    command = calls[0].arguments.get("command") if calls and calls[0].name == "bash" else SUBMIT
    text = f"```bash\n{command}\n```"
    if parse(text) != calls:
        raise Unspeakable("a fenced block carries one shell command whose fences stand in here-documents")
    return text


def _whole(command: str, rest: str) -> ToolCall | CallError:
    if _ANY_FENCE.search(rest):
        return CallError(
            CallErrorKind.SEVERAL_CALLS,
            "No command was run: the turn holds more than one fenced block. Write one block and nothing fenced after "
            "it; several commands may stand in it, joined by && or on lines of their own.",
        )
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
