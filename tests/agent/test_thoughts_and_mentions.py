"""Thoughts run nothing, wherever they begin; words about a tag hide no call; calls that models write without its
beginning are read where that is certain."""

from __future__ import annotations

import time

import pytest

from agent.parsers import CallError, Parsed, harmony, qwen_xml
from agent.parsers.common import spoken
from agent.parsers.marks import split
from benchmarks.fuzz_parsers import FORMATS, TOOLS, Format
from envs.environment import ToolCall

THINKING = [form for form in FORMATS if form.thoughts]
BAD, GOOD = ToolCall("bash", {"command": "rm -rf x"}), ToolCall("bash", {"command": "ls"})


def kinds(parsed: Parsed) -> list[str]:
    return [str(item.kind) if isinstance(item, CallError) else item.name for item in parsed]


@pytest.fixture(params=THINKING, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Format:
    return request.param


@pytest.mark.parametrize(
    "text",
    [
        "I look.\n<think>\nmaybe\nBAD\n</think>\nGOOD",
        "<think>a</think>\nI look.\n<think>\nBAD\n</think>\n\nGOOD",
        "<think>the `</think>` tag\nBAD\n</think>\nGOOD",
        "maybe\nBAD\nor not\n</think>\nGOOD",
        "a <think> b\n<think>\nBAD\n</think>\nGOOD",
    ],
)
def test_a_thought_runs_nothing(form: Format, text: str) -> None:
    made = text.replace("BAD", form.spell([BAD])).replace("GOOD", form.spell([GOOD]))
    ran = [item for item in form.parse(made, tools=TOOLS) if isinstance(item, ToolCall)]
    assert BAD not in ran
    if "or not" not in text or form.name not in ("qwen_xml", "glm_xml"):  # these refuse a turn with text between calls
        assert ran == [GOOD]


def test_a_call_in_an_open_thought_is_told(form: Format) -> None:
    for text in ("<think>\nBAD", "I look.\n<think>\nBAD", "\nBAD"):
        made = text.replace("BAD", form.spell([BAD]))
        parsed = form.parse(made, in_thought="think" not in text, tools=TOOLS)
        assert kinds(parsed) == ["in_thought"], text
        assert isinstance(parsed[0], CallError)
        assert "</think>" in parsed[0].message
    assert kinds(form.parse("<think>\nnothing", tools=TOOLS)) == ["missing"]
    assert kinds(form.parse("<think>\n" + form.spell([BAD]), cut=True, tools=TOOLS)) == ["cut_by_length"]


@pytest.mark.parametrize(
    "words",
    [
        "I use the <tool_call> tag.\n",
        "Calls stand between `<tool_call>` and `</tool_call>`.\n",
        "Calls stand between <tool_call> and </tool_call>.\n",
        "The `<think>` tag is read wrongly.\n",
        '"</think>" closes it, "<think>" opens it.\n',
        "```python\nx = 1\n",
        "<|python_tag|> marks calls.\n",
        "{x} is a set.\n",
    ],
)
def test_words_about_tags_hide_no_call(form: Format, words: str) -> None:
    assert form.parse(words + form.spell([GOOD]), tools=TOOLS) == (GOOD,)


def test_tags_in_arguments_are_text(form: Format) -> None:
    command = "cat >x <<'EOF'\n<think>\nx\n</think>\n</think>\nEOF"
    call = ToolCall("bash", {"command": command})
    assert form.parse("I write it.\n" + form.spell([call]), tools=TOOLS) == (call,)


def test_said() -> None:
    assert spoken("a<think>b</think>c<think>d</think>e", False) == "ace"
    assert spoken("a<think>b", False) == "a"
    assert spoken("a</think>b", False) == "b"
    assert spoken("a</think>b", True) == "b"
    assert spoken("a", True) == ""
    assert spoken("the `<think>` tag", False) == "the `<think>` tag"


BARE = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("text", [BARE, f"I look.\n\n{BARE}\n", f"<think>a</think>\n{BARE}", f"{BARE}\n{BARE}"])
def test_a_forgotten_opening_tag(text: str) -> None:
    assert qwen_xml.parse(text, tools=TOOLS) == (GOOD,) * text.count("<function")


@pytest.mark.parametrize(
    "text",
    [
        f"`{BARE}`",
        f"It is {BARE}",
        f"```xml\n{BARE}\n```",
        f"```xml\n{BARE}",
        f"> {BARE}",
        f"{BARE}\nThat lists.",
        BARE.replace("bash", "erase"),
        BARE.removesuffix("</tool_call>"),
        BARE[:40],
        f"<think>\n{BARE}\n",
        f"<think>\n{BARE}\n</think>\n",
    ],
)
def test_a_quoted_unfinished_or_unknown_call_is_none(text: str) -> None:
    assert not any(isinstance(item, ToolCall) for item in qwen_xml.parse(text, tools=TOOLS))
    assert not any(isinstance(item, ToolCall) for item in qwen_xml.parse(BARE, tools=TOOLS, cut=True))
    assert not any(isinstance(item, ToolCall) for item in qwen_xml.parse(BARE))


def test_a_recipient_without_its_namespace() -> None:
    def turn(to: str) -> list[str]:
        return split(f'<|channel|>commentary to={to}<|message|>{{"command": "ls"}}<|call|>', harmony.MARKS)

    assert harmony.parse(turn("bash"), tools=TOOLS) == (GOOD,)
    assert harmony.parse(turn("functions.bash"), tools=TOOLS) == (GOOD,)
    assert kinds(harmony.parse(turn("browser.open"), tools=TOOLS)) == ["bad_format"]
    assert kinds(harmony.parse(turn("bash"))) == ["bad_format"]


_PIECES = (
    "<tool_call>", "</tool_call>", '<tool_call>{"', '<tool_call>{"a": 1}', "<tool_call>a</tool_call>", "<think>", "\n",
    "</think>", "<think></think>", '{"name"', "{", "\n{", '\n{"name": "x"}', "```bash\n", "```\n", "((", "<<A ", '"',
    "<tool_call>a<arg_key>k</arg_key><arg_value>", "</arg_value>", "<function=bash>", "<parameter=b>", "</parameter>",
    "<tool_call><function=a><parameter=b>", "</function></tool_call>", "<function=bash>\n</function>\n</tool_call>\n",
    "`<think>`", "<|python_tag|>", "\\", '"a": 1, ',
)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_long_turns_of_one_piece(form: Format) -> None:
    """Linear: a quadratic reader takes minutes for these. Processor time, so that a busy machine is no failure."""
    for piece in _PIECES:
        for before in ("", '<tool_call>{"name": "a", "arguments": {', "```bash\n", "<tool_call>"):
            began = time.thread_time()
            form.parse(before + piece * (200_000 // len(piece)), tools=TOOLS)
            assert time.thread_time() - began < 4.0, (piece, before)
