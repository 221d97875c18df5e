"""Schemas, argument checks and observation texts: no sandbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.environment import ToolCall
from envs.tools import ALL_TOOLS, DEMO_TOOLS, SCHEMAS, CallError, ToolSet, check_call, signature, text


def test_schemas_are_openai_functions() -> None:
    assert ALL_TOOLS == ("bash", "view", "str_replace", "create", "think", "submit")
    for name, schema in SCHEMAS.items():
        assert schema["type"] == "function"
        function = schema["function"]
        assert function["name"] == name
        assert function["parameters"]["additionalProperties"] is False
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])
    assert [schema["function"]["name"] for schema in ToolSet(DEMO_TOOLS).schemas] == ["view", "str_replace", "submit"]
    assert signature("view") == "view(path, start?, end?)"


@pytest.mark.parametrize("names", [["view", "view"], ["rm"], []])
def test_toolset_refuses_bad_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="each must be one of"):
        ToolSet(names)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("veiw", {}, "unknown_tool", "bash(command, timeout?)"),
        ("view", {}, "missing_argument", "Use view(path, start?, end?)"),
        ("view", {"path": "a", "line": 3}, "extra_argument", "does not take line"),
        ("view", {"path": 7}, "wrong_type", "path must be a string, not int"),
        ("view", {"path": None}, "wrong_type", "not null"),
        ("view", {"path": "a", "start": "3"}, "wrong_type", "start must be an integer, not str"),
        ("view", {"path": "a", "start": True}, "wrong_type", "not bool"),
        ("view", {"path": "a", "start": 2.5}, "wrong_type", "not float"),
        ("view", {"path": "a", "start": 0}, "bad_value", "at least 1"),
        ("view", {"path": ""}, "bad_value", "empty"),
        ("view", {"path": "a\nb"}, "bad_value", "do not print"),
        ("bash", {"command": "a\0b"}, "bad_value", "NUL"),
        ("bash", {"command": "ls", "timeout": 0}, "bad_value", "above 0"),
        ("bash", {"command": "ls", "timeout": float("nan")}, "bad_value", "above 0"),
        ("str_replace", {"path": "a", "old_str": "x"}, "missing_argument", "needs new_str"),
        ("submit", {"answer": "x"}, "extra_argument", "does not take answer"),
    ],
)
def test_bad_calls_are_named(name: str, arguments: dict, error: str, says: str) -> None:
    with pytest.raises(CallError, match=name) as caught:
        check_call(ToolCall(name, arguments), ALL_TOOLS)
    assert caught.value.name == error
    assert says in str(caught.value)


def test_good_calls() -> None:
    assert check_call(ToolCall("view", {"path": "a", "start": 3.0, "end": None}), ALL_TOOLS) == {
        "path": "a",
        "start": 3,
    }
    assert check_call(ToolCall("bash", {"command": "ls", "timeout": 0.5}), ALL_TOOLS)["timeout"] == 0.5
    with pytest.raises(CallError, match="no tool 'bash'"):
        check_call(ToolCall("bash", {"command": "ls"}), DEMO_TOOLS)


def test_view_text() -> None:
    assert text.view_text(b"a\nb\n") == "a\nb"
    assert text.view_text(b"a\nb") == "a\nb"
    assert text.view_text(b"a\n\n") == "a\n"
    assert text.view_text(b"") == "(empty file)"
    assert text.view_text(b"a\r\nb\r\n") == "a\r\nb\r"
    assert text.view_text(b"caf\xe9\n") == "caf\\xe9"
    assert text.view_text(b"\x7fELF\0\0") == "(binary file, 6 bytes)"
    assert text.view_text(b"1\n2\n3\n4\n", 2, 3) == "2\n3"
    assert text.view_text(b"1\n2\n3\n4\n", 3, None) == "3\n4"
    assert text.view_text(b"1\n2\n3\n4\n", None, 99) == "1\n2\n3\n4"


def test_fixed_strings() -> None:
    assert text.edited_text("shop/cart.py") == "Edited shop/cart.py."
    assert text.created_text("x.py") == "Created x.py."
    assert text.SUBMITTED == "Submitted."
    assert text.listing_text(["b.py", "a/"]) == "a/\nb.py"
    assert text.listing_text([]) == "(empty directory)"


def test_bash_text() -> None:
    assert text.bash_text(b"hi\n", 0) == "hi"
    assert text.bash_text(b"", 0) == "(no output)"
    assert text.bash_text(b"boo\n", 2) == "boo\n[exit code 2]"
    assert text.bash_text(b"", 1) == "[exit code 1]"
    timed = text.bash_text(b"part\n", 137, timed_out_after_s=1.5)
    assert timed.startswith("part\n[timed out after 1.5 s: all processes were ended")
    assert "exit code" not in timed
    assert "[70 bytes of output were left out" in text.bash_text(b"x", 0, truncated=70)


def test_replace_keeps_every_other_byte() -> None:
    assert text.replace_once("f", b"a\r\nb\r\n\xff no newline", "b", "c") == b"a\r\nc\r\n\xff no newline"
    # bare newlines in a CRLF file
    assert text.replace_once("f", b"x\r\ny\r\nz\r\n", "x\ny", "1\n2") == b"1\r\n2\r\nz\r\n"
    assert text.replace_once("f", b"abc", "b", "") == b"ac"


@pytest.mark.parametrize(
    ("old", "new", "name", "says"),
    [
        ("", "x", "empty_old_str", "use create"),
        ("a", "a", "no_change", "same"),
        ("retrun x", "y", "old_str_not_found", "Nearest, line 2:\n    return x"),
        ("zzzzqqqq", "y", "old_str_not_found", "Copy it exactly"),
        ("pass", "y", "old_str_not_unique", "2 times in f (lines 4, 5). Add lines"),
        ("a\ud800", "y", "bad_text", "lone surrogate"),
    ],
)
def test_replace_refusals_say_what_to_do(old: str, new: str, name: str, says: str) -> None:
    data = b"def f(x):\n    return x\n\npass\npass\n"
    with pytest.raises(text.EditRefused) as caught:
        text.replace_once("f", data, old, new)
    assert caught.value.name == name
    assert says in str(caught.value)


def test_similar_names() -> None:
    known = ["shop/cart.py", "shop/price.py", "tests/test_cart.py"]
    assert "Similar: shop/cart.py" in text.not_found_text("cart.py", known)
    assert "shop/cart.py" in text.not_found_text("shop/cat.py", known)
    assert "3 files" in text.not_found_text("zzzzzzz.rs", known)
    assert "no files" in text.not_found_text("a", [])


@given(st.text(max_size=3000), st.integers(64, 400))
def test_cap_never_exceeds_and_keeps_both_ends(value: str, limit: int) -> None:
    shown = text.cap(value, limit)
    assert len(shown) <= limit
    if len(value) <= limit:
        assert shown == value
    else:
        head, _, rest = shown.partition("\n[... ")
        note, _, tail = rest.partition(" left out ...]\n")
        assert value.startswith(head) or "\n[... " in value
        assert value.endswith(tail)
        left, total = note.removesuffix(" characters").split(" of ")
        if "[... " not in value:
            assert int(total) == len(value)
            assert int(left) == len(value) - len(head) - len(tail)


@given(st.binary(max_size=300))
def test_view_text_is_always_encodable(data: bytes) -> None:
    text.view_text(data).encode()


@given(st.binary(max_size=200), st.text(min_size=1, max_size=5), st.text(max_size=5))
def test_replace_is_the_inverse_of_itself_or_refuses(data: bytes, old: str, new: str) -> None:
    try:
        edited = text.replace_once("f", data, old, new)
    except text.EditRefused:
        return
    assert len(edited) - len(data) in (
        len(new.encode("utf-8", "surrogateescape")) - len(old.encode("utf-8", "surrogateescape")),
        # with CRLF translation
        *range(-10, 11),
    )


def test_a_time_out_says_what_there_is() -> None:
    """The model may only be told to ask for what it can get."""

    def said(seconds: float, most: float) -> str:
        return text.bash_text(b"", 124, timed_out_after_s=seconds, most_s=most)

    assert "or ask for a larger timeout, of at most 600 s]" in said(120, 600)
    assert "That is the most there is" in said(600, 600)
    assert "larger" not in said(600, 600)


def test_the_schema_names_the_real_maximum() -> None:
    from envs.tools import ToolLimits

    bash, view = ToolSet(("bash", "view"), ToolLimits(command_timeout_s=120, max_command_timeout_s=900)).schemas
    timeout = bash["function"]["parameters"]["properties"]["timeout"]
    assert timeout["maximum"] == 900
    assert timeout["description"] == "Seconds before it is ended: 120 unless given, at most 900."
    assert view == SCHEMAS["view"]
    assert "maximum" not in SCHEMAS["bash"]["function"]["parameters"]["properties"]["timeout"]
