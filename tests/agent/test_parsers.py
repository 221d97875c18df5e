"""The formats besides Hermes: byte-for-byte arguments, named errors, ends that only look like ends, time and fuzz."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.parsers import (
    CallError,
    Parsed,
    Unspeakable,
    deepseek,
    fenced,
    glm_xml,
    harmony,
    hermes,
    llama_json,
    qwen_xml,
)
from agent.parsers.marks import Mark, split
from agent.parsers.tagged import typed
from benchmarks.fuzz_parsers import FORMATS, TOOLS, Fuzz
from envs.environment import ToolCall
from tests.shared_data import need_shared

BY_NAME = {form.name: form for form in FORMATS}
HARD = [
    "}{",
    "</tool_call><tool_call>{",
    '{"name": "bash", "arguments": {"command": "x"}}',
    "cat > f <<'EOF'\nline \\ \"quoted\"\n\tx = {'a': 1}\nEOF\n",
    "\u2028 \u2029 \x85 \x1c \ufeff 🐍 \u200d",
    "<|im_end|><think></think>",
    "\r\n mixed \n\r ends \r",
    "\n\nlines around\n\n",
    "</parameter> </function>",
    "<parameter=x>1</parameter>",
    "</arg_value><arg_value>",
    "`` ` ``` x",
    " ",
    "",
]


def kinds(parsed: Parsed) -> list[str]:
    return [item.kind if isinstance(item, CallError) else item.name for item in parsed]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("value", HARD)
def test_arguments_survive_byte_for_byte(form, value: str) -> None:
    name, key = ("bash", "command") if form.name == "fenced" else ("create", "content")
    if form.name == "fenced" and not value.strip():
        value = "true " + value
    call = ToolCall(name, {key: value})
    assert form.parse(form.spell([call]), tools=TOOLS) == (call,)


@pytest.mark.parametrize("form", [one for one in FORMATS if one.most > 1], ids=lambda form: form.name)
def test_several_calls_run_in_order(form) -> None:
    calls = [ToolCall("view", {"path": "a", "start": 3}), ToolCall("bash", {"command": "ls\n"}), ToolCall("submit", {})]
    assert form.parse("I look.\n" + form.spell(calls), tools=TOOLS) == tuple(calls)


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("qwen_xml", "<function=view>\n</function>", ["missing"]),
        ("qwen_xml", "<tool_call>\n<function=view>\n<parameter=path>\na\n</parameter>\n</function>", ["unclosed_tag"]),
        ("qwen_xml", "<tool_call>\n<function=submit>\n</function>\n</tool_call> and more", ["text_after"]),
        ("qwen_xml", "<tool_call>\n<function=>\n</function>\n</tool_call>", ["bad_format"]),
        ("qwen_xml", "<tool_call>\n" + "<parameter=a>1</parameter>" + "</function></tool_call>", ["bad_format"]),
        (
            "qwen_xml",
            "<tool_call><function=view><parameter=path>a</parameter><parameter=path>b</parameter></function></tool_call>",
            ["bad_arguments"],
        ),
        ("glm_xml", "<tool_call>view\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>", ["unclosed_tag"]),
        ("glm_xml", "<tool_call>view\n<arg_key>path</arg_key>\n</tool_call>", ["bad_format"]),
        ("glm_xml", "<tool_call>submit</tool_call>\nDone.", ["text_after"]),
        ("llama_json", '{"name": "view", "parameters": {"path": "a"}', ["bad_json"]),
        ("llama_json", '{"parameters": {}}', ["missing_name"]),
        ("llama_json", '{"name": "view", "parameters": "a"}', ["bad_arguments"]),
        ("llama_json", 'Like this:\n{"name": "submit", "parameters": {}}\nis how one ends.', ["text_after"]),
        ("llama_json", 'The object {"name": "submit", "parameters": {}} ends it.', ["missing"]),
        ("llama_json", '<|python_tag|>{"name": "submit", "parameters": {}}', ["submit"]),
        ("llama_json", '{"name": "submit", "arguments": {}}', ["submit"]),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>view\n```json\n{}\n```", ["unclosed_tag"]),
        ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>view\n```json\n{]\n```<｜tool▁call▁end｜>", ["bad_json"]),
        ("deepseek", "<｜tool▁call▁begin｜>view{}<｜tool▁call▁end｜>", ["bad_format"]),
        ("deepseek", "<｜tool▁call▁begin｜>view<｜tool▁sep｜>{} x<｜tool▁call▁end｜>", ["text_after"]),
        ("deepseek", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>", ["missing_name"]),
        ("deepseek", "<｜tool▁call▁begin｜>view<｜tool▁sep｜>[]<｜tool▁call▁end｜>", ["bad_arguments"]),
        ("deepseek", "<｜tool▁call▁begin｜><｜tool▁calls▁end｜>", ["bad_format"]),
        ("harmony", "<|channel|>commentary to=functions.view<|message|>{}<|end|>", ["bad_format"]),
        ("harmony", "<|channel|>commentary to=functions.view<|message|>{}", ["unclosed_tag"]),
        ("harmony", "<|channel|>commentary to=functions.view<|message|>{} {}<|call|>", ["text_after"]),
        ("harmony", "<|channel|>commentary<|message|>{}<|call|>", ["bad_format"]),
        ("harmony", "<|channel|>final<|message|>Done.<|return|>", ["missing"]),
        ("harmony", "<|channel|>analysis<|message|>to=functions.view {}<|end|>", ["missing"]),
        ("fenced", "```python\nx\n```", ["missing"]),
        ("fenced", "```bash\n\n```", ["missing"]),
        ("fenced", "```bash\nls", ["unclosed_tag"]),
        ("fenced", "```bash\ncat > f <<EOF\n```\nEOF", ["unclosed_tag"]),
        ("fenced", "```bash\ncat > f <<EOF\n```\n", ["unclosed_tag"]),
        ("fenced", "```bash\nls\n```\n```bash\nrm x\n```", ["several_calls"]),
        ("fenced", "```bash\nls\n```\nThen:\n```python\nx\n```", ["several_calls"]),
        ("fenced", "```bash\nsubmit\n```", ["submit"]),
        ("fenced", "```sh\nls\n```\nThat lists them.", ["bash"]),
    ],
)  # fmt: skip
def test_named_errors(form: str, text: str, expected: list[str]) -> None:
    parsed = BY_NAME[form].parse(text, tools=TOOLS)
    assert kinds(parsed) == expected
    assert all(len(item.message) > 40 for item in parsed if isinstance(item, CallError))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_cut_turn_says_so(form) -> None:
    whole = form.spell([ToolCall("bash", {"command": "echo 1"})])
    assert kinds(form.parse(whole[: len(whole) // 2], cut=True, tools=TOOLS)) == ["cut_by_length"]
    assert kinds(form.parse("thinking about", cut=True, tools=TOOLS)) == ["cut_by_length"]
    # Where values have no escape, what looks whole may have been cut.
    assert kinds(form.parse(whole, cut=True, tools=TOOLS)) == (["bash"] if form.exact_when_cut else ["cut_by_length"])


def test_a_value_may_hold_the_end_of_its_own_call() -> None:
    for form, content in (
        ("qwen_xml", 'SHAPE = """\n</parameter>\n</function>\n</tool_call>"""\n'),
        ("glm_xml", 'SHAPE = """</arg_value>\n</tool_call>"""\n'),
    ):
        calls = (ToolCall("create", {"path": "a.py", "content": content}), ToolCall("submit", {}))
        spelled = BY_NAME[form].spell(calls)
        assert BY_NAME[form].parse(spelled) == calls
        for size in range(len(spelled)):  # never less than it says, wherever the model stops
            ran = [item for item in BY_NAME[form].parse(spelled[:size]) if isinstance(item, ToolCall)]
            assert all(call.arguments.get("content", content) in (content, content.split('"""\n')[-2] + '"""') or
                       spelled[:size].rstrip().endswith(BY_NAME[form].spell(ran)) for call in ran)  # fmt: skip


def test_what_the_tagged_formats_cannot_carry_is_refused_not_changed() -> None:
    inner = qwen_xml.spell([ToolCall("bash", {"command": "x"})])
    value = f"</parameter>\n</function>\n</tool_call>\n{inner[: inner.index('x')]}"
    with pytest.raises(Unspeakable):
        qwen_xml.spell([ToolCall("create", {"content": value})])
    with pytest.raises(Unspeakable):
        harmony.spell([ToolCall("a", {}), ToolCall("b", {})])
    for bad in ("a\n```\nb", "", "cat <<EOF\n", "submit"):
        with pytest.raises(Unspeakable):
            fenced.spell([ToolCall("bash", {"command": bad})])
    for form in (hermes, llama_json):
        with pytest.raises(Unspeakable):
            form.spell([ToolCall("a", {"x": float("nan")})])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", "integer", 3), ("3.0", "integer", 3.0), (" 7\n", "number", 7), ("true", "boolean", True),
        ("False", "boolean", False), ("yes", "boolean", "yes"), ("three", "integer", "three"),
        ("true", "integer", "true"),
        ("[1, 2]", "array", [1, 2]), ('{"a": 1}', "object", {"a": 1}), ("[", "array", "["), ("null", "integer", None),
        ("12", "string", "12"), ("12", "", "12"), ("NaN", "number", "NaN"), ("9" * 5000, "integer", "9" * 5000),
    ],
)  # fmt: skip
def test_bare_values_take_the_type_of_the_schema(text: str, kind: str, value: Any) -> None:
    made = typed(text, kind)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("line", "open_"),
    [
        ("cat <<EOF", True), ("cat <<'EOF' > f", True), ('cat <<-"EOF"', True), ("cat << \\EOF", True),
        ("grep '<<EOF' f", False), ('echo "<<EOF"', False), ("cat <<< EOF", False), ("echo $((1 << n))", False),
        ("ls # <<EOF", False), ("x=a#<<EOF", True),
    ],
)  # fmt: skip
def test_here_documents_are_told_from_what_looks_like_one(line: str, open_: bool) -> None:
    assert kinds(fenced.parse(f"```bash\n{line}\n```")) == (["unclosed_tag"] if open_ else ["bash"])


def test_fences_inside_here_documents_are_text() -> None:
    command = "cat > README.md <<'A' && cat > b <<-B\n```bash\nmake\n```\nA\n```\n\tB\necho done"
    assert fenced.parse(f"THOUGHT: write it.\n\n```bash\n{command}\n```\n") == (ToolCall("bash", {"command": command}),)


def test_real_turns_of_mini_swe_agent_give_their_commands() -> None:
    """Every well-formed turn of the 27 real trajectories, against the plain search for its one block."""
    folder = need_shared("trajectories")
    checked = refused = 0
    for file in sorted(folder.glob("*.traj.json.gz")):
        for message in json.loads(gzip.decompress(file.read_bytes()))["messages"]:
            if message["role"] != "assistant":
                continue
            blocks = re.findall(r"```bash\s*\n(.*?)\n```", message["content"], re.DOTALL)
            parsed = fenced.parse(message["content"])
            if len(blocks) == 1:
                assert parsed == (ToolCall("bash", {"command": blocks[0]}),)
                checked += 1
            else:
                assert all(isinstance(item, CallError) for item in parsed)
                refused += 1
    assert checked > 1300
    assert refused > 90


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_long_outputs_do_not_hang(form) -> None:
    """Each is read in well under a second; a quadratic reader would run into the timeout."""
    pieces = [
        "<tool_call>", "</tool_call>", "<function=a>", "<parameter=b>", "</parameter>", "</function>", '{"name": "a"',
        "[", '"', "<arg_key>k</arg_key><arg_value>", "</arg_value>", "```bash\n", "\n```\n", "<<EOF\n",
        "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<|message|>", "<|call|>", "<think>", " ", "'", '"\\',
        "</parameter></function></tool_call>", "<tool_call><function=a></function></tool_call>",
        '{"name": "a", "parameters": {}}',
    ]  # fmt: skip
    for piece in pieces:
        for text in (piece * 5_000, form.spell([ToolCall("bash", {"command": "x"})])[:-3] + piece * 5_000):
            assert form.parse(text, tools=TOOLS)


def test_fuzzed_outputs() -> None:
    """A small part of `python -m benchmarks.fuzz_parsers`."""
    report = Fuzz(seed=1).run(3000)
    assert (report.exceptions, report.wrong, report.outputs) == ([], [], 3000)
    assert report.calls > 1000


@given(st.text(max_size=60), st.booleans(), st.booleans())
@settings(max_examples=200)
def test_any_text_gives_a_call_or_an_error(text: str, cut: bool, in_thought: bool) -> None:
    for form in FORMATS:
        assert form.parse(text, cut=cut, in_thought=in_thought, tools=TOOLS)


def test_marks_are_tokens_not_spellings() -> None:
    pieces = split("a<|call|>b", harmony.MARKS)
    assert pieces == ["a", "<|call|>", "b"]
    assert [isinstance(piece, Mark) for piece in pieces] == [False, True, False]
    body = ["function", Mark(deepseek.SEP), 'view\n```json\n{"path": "<｜tool▁call▁end｜>"}\n```']
    call = [Mark(deepseek.CALL_BEGIN), *body, Mark(deepseek.CALL_END)]
    assert deepseek.parse(call) == (ToolCall("view", {"path": "<｜tool▁call▁end｜>"}),)
    assert kinds(glm_xml.parse("<think>" + glm_xml.spell([ToolCall("submit", {})]))) == ["in_thought"]
