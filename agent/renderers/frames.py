"""The frames of a chat template, read off its own output: what stands before, between and after tool results.

`read_frames` renders short conversations with marker texts and takes them apart. It raises `NotAppendOnly` with the
first difference when the template prints an earlier turn otherwise once more follows: appending cannot follow that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.renderers.template import RendererRefused, TemplateRenderer

Turn = Mapping[str, Any]
ASK, SAY, FIRST, SECOND, THIRD = "Question zqa", "Saying zqb", "Result zqc", "Result zqd", "Result zqe"
THOUGHT = "Thought zqh"
PATHS = ("zqf.py", "zqg.py")
TOOL = "view"


class NotAppendOnly(RendererRefused):
    """The chat template cannot be followed by appending; the text says where it goes back."""


@dataclass(frozen=True)
class Frame:
    """Template text around contents: `before` first `between` second … `after`, which ends where the model goes on."""

    before: str
    between: str
    after: str

    def around(self, texts: Sequence[str]) -> str:
        return self.before + self.between.join(texts) + self.after


@dataclass(frozen=True)
class Frames:
    stop: str
    """The special token that ends a turn with a call; it is not part of the frames."""
    tool: Frame | None
    """None: the template has no place for tool results."""
    user: Frame
    user_refusal: str
    """Why user messages cannot be followed by appending (a template may drop thoughts only then); empty: they can."""
    call: str
    """How the template writes a call of view(path="zqf.py"); empty where it does not."""


def turn(calls: int, text: str = "", thought: str = "", as_text: bool = False) -> dict[str, Any]:
    """An assistant message. `as_text`: arguments as a JSON string, as older templates want them."""
    made: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        made["reasoning_content"] = thought
    if calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "id": f"call{number:05d}",
                "function": {"name": TOOL, "arguments": f'{{"path": "{path}"}}' if as_text else {"path": path}},
            }
            for number, path in enumerate(PATHS[:calls])
        ]
    return made


def result(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "content": text, "name": TOOL, "tool_call_id": f"call{number:05d}"}


def read_frames(renderer: TemplateRenderer, tools: Sequence[Turn], stops: Sequence[str]) -> Frames:
    """`stops`: spellings of the tokens that may end a turn. Raises NotAppendOnly, RendererRefused."""
    ask = [{"role": "user", "content": ASK}]

    def render(after: Sequence[Turn], generation: bool, offered: Sequence[Turn] = ()) -> str:
        return renderer.template_text([*ask, *after], offered, generation)

    refusal = ""
    try:
        user_stop, user, _ = _frame(render, [turn(0, SAY), turn(0, SAY, "Hm.")], stops)
    except NotAppendOnly as error:
        if not renderer.template_shows_tools:
            raise
        refusal, user_stop, user = str(error), "", _last_frame(render, stops)
    if not renderer.template_shows_tools:
        return Frames(user_stop, None, user, refusal, "")
    shapes = [turn(1, as_text=text, thought=thought) for text in (False, True) for thought in ("", "Hm.")]
    stop, tool, call = _frame(lambda after, on: render(after, on, tools), shapes, stops, is_tool=True)
    return Frames(stop, tool, user, refusal, call)


def _last_frame(render: Callable[[Sequence[Turn], bool], str], stops: Sequence[str]) -> Frame:
    """The frame of a user message behind a turn that the template prints otherwise than the model wrote it."""
    whole = render([turn(0, SAY), {"role": "user", "content": FIRST}], True)
    _, _, rest = whole.rpartition(SAY)
    head, _, after = rest.partition(FIRST)
    found = [(head.find(stop), stop) for stop in stops if stop in head]
    if not found:
        raise RendererRefused("the template ends a turn with no token that ends a generation")
    at, stop = min(found)
    return Frame(head[at + len(stop) :], "", after)


def _frame(
    render: Callable[[Sequence[Turn], bool], str],
    shapes: Sequence[Turn],
    stops: Sequence[str],
    is_tool: bool = False,
) -> tuple[str, Frame, str]:
    """(the token that ends the turn, the frame of what follows, the turn's text). `shapes`: ways to give the message of
    the assistant; the first that the template takes and that goes on from its own prompt is used."""
    refusals: list[RendererRefused] = []
    for shape in shapes:
        try:
            return _frame_of(render, shape, stops, is_tool)
        except RendererRefused as error:
            refusals.append(error)
    raise next((error for error in refusals if isinstance(error, NotAppendOnly)), refusals[0])


def _frame_of(
    render: Callable[[Sequence[Turn], bool], str], said: Turn, stops: Sequence[str], is_tool: bool
) -> tuple[str, Frame, str]:
    def reply(text: str, number: int = 0) -> dict[str, Any]:
        return result(text, number) if is_tool else {"role": "user", "content": text}

    start = render([], True)
    whole, open_ = render([said, reply(FIRST)], True), render([said, reply(FIRST)], False)
    behind = continues(start, whole, "the first turn")
    if FIRST not in behind:
        raise RendererRefused("the template leaves out " + ("tool results" if is_tool else "user messages"))
    head, after = behind.split(FIRST, 1)
    found = [(head.find(stop), stop) for stop in stops if stop in head]
    if not found:
        raise RendererRefused("the template ends a turn with no token that ends a generation")
    at, stop = min(found)
    before = head[at + len(stop) :]
    between = _between(render, said, reply, before, is_tool) or open_[len(start) :].split(FIRST, 1)[1] + before
    frame = Frame(before, between, after)
    # Three rounds by appending must be what the template makes of the whole conversation.
    text, spoken = start, head[: at + len(stop)]
    history: list[Turn] = []
    for number, content in enumerate((FIRST, SECOND, THIRD)):
        text += spoken + frame.around([content])
        history += [said, reply(content)]
        continues(text, render(history, True) + "\0", f"turn {number + 1}")
        if render(history, True) != text:
            raise NotAppendOnly(difference(text, render(history, True), f"turn {number + 1}"))
    return stop, frame, head[:at]


def check_thoughts(renderer: TemplateRenderer, tools: Sequence[Turn], frames: Frames) -> None:
    """Raises NotAppendOnly when the template drops what an earlier turn thought."""
    if "think" not in renderer.tokenizer.chat_template:
        return
    calls, tools = (1, tools) if frames.tool else (0, ())
    reply = result(FIRST) if frames.tool else {"role": "user", "content": FIRST}
    ask = {"role": "user", "content": ASK}
    for said in (turn(calls, SAY, THOUGHT), turn(calls, f"<think>\n{THOUGHT}\n</think>\n\n{SAY}")):
        kept = renderer.template_text([ask, said, reply, said, reply], tools).count(THOUGHT)
        if kept == 2:
            return
    raise NotAppendOnly("the chat template is not append-only: it drops the thoughts of earlier turns")


def _between(
    render: Callable[[Sequence[Turn], bool], str],
    said: Turn,
    reply: Callable[[str, int], Turn],
    before: str,
    is_tool: bool,
) -> str:
    """What stands between two results of one turn; empty where the template takes one call a turn only."""
    if not is_tool:
        return ""
    calls = said["tool_calls"]
    second = {**calls[0], "id": "call00001"}
    try:
        both = render([{**said, "tool_calls": [calls[0], second]}, reply(FIRST, 0), reply(SECOND, 1)], True)
    except RendererRefused:
        return ""
    _, _, rest = both.partition(before + FIRST)
    return rest.split(SECOND, 1)[0] if SECOND in rest else ""


def continues(before: str, whole: str, where: str) -> str:
    """What `whole` adds to `before`. Raises NotAppendOnly when it does not begin with it."""
    if not whole.startswith(before):
        raise NotAppendOnly(difference(before, whole, where))
    return whole[len(before) :]


def difference(ours: str, whole: str, where: str) -> str:
    at = next((i for i, (one, other) in enumerate(zip(ours, whole, strict=False)) if one != other), None)
    at = min(len(ours), len(whole)) if at is None else at
    return (
        f"the chat template is not append-only: at {where}, behind {ours[max(0, at - 30) : at]!r}, it prints "
        f"{whole[at : at + 40]!r} where by appending stands {ours[at : at + 40]!r}"
    )
