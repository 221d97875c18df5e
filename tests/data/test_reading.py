"""What users write, broken in every way that was seen: an `InputError` or one of its kinds, never anything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.foreign import read_foreign
from data.loaders import load_tasks
from data.pack import append_row
from data.reading import InputError, check_value, json_lines, parse_json, parse_toml, read_bytes, read_json
from data.task import TaskError
from tests.data.test_loaders import row

BROKEN_TEXTS = {
    "cut": '{"a": ',
    "deep": "[" * 100_000 + "]" * 100_000,
    "nested": "[" * 300 + "]" * 300,
    "twice": '{"a": 1, "a": 1}',
    "surrogate": '{"a": "\\ud800"}',
    "surrogate key": '{"\\udfff": 1}',
    "digits": "1" * 5000,
    "two values": "{} {}",
    "nothing": "",
    "word": "nope",
}


@pytest.mark.parametrize("kind", BROKEN_TEXTS)
def test_broken_json_is_an_input_error_that_names_the_place(kind: str) -> None:
    with pytest.raises(InputError, match=r"rows\.json"):
        parse_json(BROKEN_TEXTS[kind], "rows.json")


def test_what_is_well_formed_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('\ufeff{"a": "x\\u2028y"}\n\n{"a": "é\u2028"}', encoding="utf-8")
    assert list(json_lines(file)) == [(1, {"a": "x\u2028y"}), (3, {"a": "é\u2028"})]
    assert parse_json('"\\ud800"', "x", surrogates=True) == "\ud800"
    assert parse_toml("a = 1", "x") == {"a": 1}


@pytest.mark.parametrize("text", ["a = ", "a = " + "[" * 5000 + "]" * 5000, "a = 1\na = 2", "a" + ".a" * 5000 + " = 1"])
def test_broken_toml_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"my\.toml"):
        parse_toml(text, "my.toml")


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_value_that_json_can_write_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value), "x") == value
    check_value(value, "x")


def bad_places(folder: Path) -> list[str]:
    loop = folder / "loop"
    if not loop.is_symlink():
        loop.symlink_to(loop)
    return [str(loop), str(folder), f"{folder}/{'n' * 300}", f"{folder}/a\0b", f"{folder}/nothing"]


def test_a_place_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    for place in bad_places(tmp_path):
        with pytest.raises(InputError):
            read_bytes(place)
        if place != str(tmp_path):
            with pytest.raises(TaskError):
                load_tasks("mine", "test", place)
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(b"\x1f\x8b\x08cut")
    with pytest.raises(InputError, match=r"cut\.json\.gz"):
        read_json(packed)


ROWS: dict[str, dict[str, Any]] = {
    "surrogate in the problem": {"problem_statement": "a \ud800"},
    "surrogate in a test id": {"FAIL_TO_PASS": ["\udfff"]},
    "NUL in a script": {"eval_script": "true\0"},
    "NUL in an id": {"instance_id": "a\0b"},
    "NUL in a test id": {"PASS_TO_PASS": ["a\0"]},
    "long id": {"instance_id": "x" * 200_000},
    "id that leads away": {"instance_id": "../../etc"},
    "id with a line break": {"instance_id": "a\nb"},
    "path that leads away": {"files": {"../a": ""}},
    "path that leads away, in text": {"files": json.dumps({"a/../../b": ""})},
    "absolute path": {"files": {"/etc/passwd": ""}},
    "path in git's folder": {"files": {".GIT/hooks/x": ""}},
    "long path": {"files": {"a" * 256: ""}},
    "file and folder": {"files": {"a": "", "a/b": ""}},
    "NUL in a path": {"files": {"a\0": ""}},
    "deep files": {"files": BROKEN_TEXTS["deep"]},
    "deep lists": {"FAIL_TO_PASS": BROKEN_TEXTS["deep"]},
    "twice in files": {"files": '{"a": "1", "a": "2"}'},
    "long bundle": {"bundle": "b" * 5000},
    "NUL in a bundle": {"bundle": "b\0"},
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_that_cannot_be_used_is_named_before_anything_starts(tmp_path: Path, kind: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(one) + "\n" for one in (row(1), row(2, **ROWS[kind]))))
    with pytest.raises(TaskError, match=r"(row|line) 2") as caught:
        load_tasks("mine", "test", rows)
    assert len(str(caught.value)) < 2000
    str(caught.value).encode()


@pytest.mark.parametrize("kind", BROKEN_TEXTS)
def test_every_reader_of_foreign_files_refuses_broken_text(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text(BROKEN_TEXTS[kind])
    with pytest.raises(TaskError):
        load_tasks("mine", "test", file)
    with pytest.raises(InputError):
        read_foreign(file)
    if kind not in ("nothing", "surrogate", "surrogate key", "digits"):  # kept as they are, escaped
        before = file.read_bytes()
        with pytest.raises(TaskError):
            append_row(file, {"instance_id": "new"})
        assert file.read_bytes() == before
    assert os.path.exists(file)
