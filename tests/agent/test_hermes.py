"""Tool-call parsing: order, byte-for-byte arguments, named errors, and no text that makes it raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.parsers import CallError, CallErrorKind
from agent.parsers.hermes import parse
from envs.environment import ToolCall


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def kinds(text: str, **options: bool) -> list[str]:
    return [item.kind if isinstance(item, CallError) else item.name for item in parse(text, **options)]


def test_several_calls_keep_their_order_and_text_around_them_is_free() -> None:
    text = "I look.\n" + call("view", path="a.py") + "\nand\n" + call("submit") + "\ndone"
    assert parse(text) == (ToolCall("view", {"path": "a.py"}), ToolCall("submit", {}))


@pytest.mark.parametrize(
    "value",
    [
        "}{</tool_call><tool_call>{",
        "cat > f <<'EOF'\nline \\ \"quoted\"\n\tx = {'a': 1}\nEOF\n",
        "\u2028 \u2029 \x85 \x1c \ufeff 🐍 \u0000 \u200d",
        "<|im_end|><think></think>",
        "\r\n mixed \n\r ends \r",
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_arguments_survive_byte_for_byte(value: str, ascii_only: bool) -> None:
    text = json.dumps({"name": "bash", "arguments": {"command": value}}, ensure_ascii=ascii_only)
    assert parse(f"<tool_call>{text}</tool_call>") == (ToolCall("bash", {"command": value}),)


def test_raw_line_breaks_inside_strings_are_taken() -> None:
    text = '<tool_call>{"name": "create", "arguments": {"content": "a\n\tb\n"}}</tool_call>'
    assert parse(text) == (ToolCall("create", {"content": "a\n\tb\n"}),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing"),
        ("I am done.", "missing"),
        ("<tool_call>{not json}</tool_call>", "bad_json"),
        ('<tool_call>{"name": "view", "arguments": {"path": "a"}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "a", "name": "b"}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "a", "arguments": {"n": NaN}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "a", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", "bad_json"),
        ('<tool_call>{"name": "a", "arguments": {"t": "\\ud83d"}}</tool_call>', "bad_json"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "bad_json"),
        ("<tool_call></tool_call>", "bad_json"),
        ('<tool_call>["view"]</tool_call>', "not_an_object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "missing_name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "missing_name"),
        ('<tool_call>{"name": "view", "arguments": "a.py"}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "submit"} and more</tool_call>', "text_after"),
        ('<tool_call>{"name": "submit"}', "unclosed_tag"),
        ('<tool_call>{"name": "sub', "unclosed_tag"),
    ],
)
def test_named_errors(text: str, expected: str) -> None:
    assert kinds(text) == [expected]
    (error,) = parse(text)
    assert isinstance(error, CallError)
    assert len(error.message) > 40


def test_a_cut_turn_says_so_and_its_whole_calls_count() -> None:
    assert kinds("thinking about", cut=True) == ["cut_by_length"]
    assert kinds(call("view", path="a") + '<tool_call>{"name": "str_repl', cut=True) == ["view", "cut_by_length"]
    assert kinds(call("submit") + "\nand then", cut=True) == ["submit"]


def test_a_bad_call_does_not_hide_its_neighbours() -> None:
    text = call("view", path="a") + "<tool_call>{oops}</tool_call>" + call("submit")
    assert kinds(text) == ["view", CallErrorKind.BAD_JSON, "submit"]


def test_thinking_text_is_not_searched() -> None:
    thought = "<think>\nmaybe " + call("submit") + "\n</think>\n\n"
    assert kinds(thought + call("view", path="a")) == ["view"]
    assert kinds("\n" + thought) == ["missing"]
    assert kinds("<think>never closed " + call("submit")) == ["in_thought"]
    assert kinds("opened by the prompt " + call("submit") + "</think>" + call("view"), in_thought=True) == ["view"]
    # Outside a thought the tag is text like any other: a file that holds it can be written.
    assert parse(call("create", content="</think>")) == (ToolCall("create", {"content": "</think>"}),)


fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "a"',
        ', "arguments": {',
        "}",
        "}}",
        '"',
        "\\",
        "[",
        "<think>",
        "</think>",
    ]
)


@given(st.lists(st.one_of(fragments, st.text(max_size=8)), max_size=12).map("".join), st.booleans(), st.booleans())
def test_never_raises_and_never_empty(text: str, cut: bool, in_thought: bool) -> None:
    assert len(parse(text, cut=cut, in_thought=in_thought)) >= 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), values, max_size=4), min_size=1, max_size=3), st.booleans())
def test_round_trip(many: list[dict], ascii_only: bool) -> None:
    texts = [json.dumps({"name": "t", "arguments": one}, ensure_ascii=ascii_only) for one in many]
    assert parse("\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)) == tuple(
        ToolCall("t", one) for one in many
    )
