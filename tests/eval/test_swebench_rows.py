"""Rows in both formats and predictions in each form."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data.loaders import load_tasks
from data.task import TaskError
from envs.swe.row import published_image
from eval.errors import EvalError
from eval.swebench.predictions import Prediction, read_predictions, write_predictions
from eval.swebench.rows import choose, harness_row, harness_rows, stored_rows
from eval.swebench.store import resume_key
from tests.eval.small import small_row, small_task
from tests.shared_data import need_shared


def test_legacy_rows_become_current_ones() -> None:
    """All 50 real rows: the image by the naming rule, the rest from the stored rows."""
    old = load_tasks("old", "test", need_shared("swe", "verified_mini50.jsonl"))
    new = need_shared("swe", "verified_mini50_v5.jsonl")
    stored = stored_rows(new)
    made = harness_rows(old, stored)
    wanted = harness_rows(load_tasks("new", "test", new))
    assert len(made) == 50
    for one, other in zip(made, wanted, strict=True):
        assert one.row["image"] == published_image(one.instance_id) == other.row["image"]
        assert {**one.row, "created_at": ""} == {**other.row, "created_at": ""}
        assert one.digest() == other.digest()
        assert isinstance(one.row["FAIL_TO_PASS"], list)
    with pytest.raises(TaskError, match=r"in the old format: no eval_script, log_parser, eval_type. Give a\s+file"):
        harness_row(old[0])
    with pytest.raises(TaskError, match="is for base_commit 0"):
        harness_row(old[0], {old[0].task_id: {**stored[old[0].task_id], "base_commit": "0" * 40}})


def test_image_names() -> None:
    assert published_image("django__django-11790") == "swebench/sweb.eval.x86_64.django_1776_django-11790:latest"
    assert published_image("Owner__Repo_x-1") == "swebench/sweb.eval.x86_64.owner_1776_repo_x-1:latest"


def test_lists_as_text_or_lists_and_odd_ids() -> None:
    odd = ["test a b (x)", "t.py::test[a - b]", "t.py::test[truncated (", "t.py::tést[\u2028]", "t.py::test[\\udce9]"]
    one = harness_row(small_task(FAIL_TO_PASS=odd, PASS_TO_PASS=[]))
    two = harness_row(small_task(FAIL_TO_PASS=json.dumps(odd), PASS_TO_PASS="[]"))
    assert one.swe.fail_to_pass == two.swe.fail_to_pass == tuple(odd)


def test_only_what_decides_the_verdict_is_in_the_key() -> None:
    prediction = Prediction("small__one-1", "m", "patch")

    def key(row: Any = None, prediction: Prediction = prediction, image: str = "i", harness: str = "5.0.2") -> str:
        return resume_key(row or small_row(), prediction, image, harness)

    base = key()
    assert key(small_row(problem_statement="other words", patch="other gold")) == base
    assert key(prediction=dataclasses.replace(prediction, model="another name")) == base
    others = [
        key(small_row(FAIL_TO_PASS=["x"])),
        key(small_row(eval_script="true")),
        key(prediction=dataclasses.replace(prediction, patch="patch ")),
        key(image="j"),
        key(harness="5.0.3"),
    ]
    assert len({base, *others}) == 6


def test_choosing_instances() -> None:
    rows = [small_row(f"small__r-{number}") for number in range(3)]
    assert choose(rows, []) == rows
    assert [row.instance_id for row in choose(rows, ["small__r-2", "small__r-0"])] == ["small__r-0", "small__r-2"]
    with pytest.raises(EvalError, match="no instance small__r-9"):
        choose(rows, ["small__r-9"])


# -- predictions ------------------------------------------------------------------------------------------------------

ENTRIES: list[dict[str, Any]] = [
    {"instance_id": "a__a-1", "model_name_or_path": "org/model", "model_patch": "x\r\ny"},
    {"instance_id": "a__a-2", "model_name_or_path": "org/model", "model_patch": None},
]


def test_each_form_is_read(tmp_path: Path) -> None:
    lines = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
    by_key = {entry["instance_id"]: {k: v for k, v in entry.items() if k != "instance_id"} for entry in ENTRIES}
    files = {
        "a.jsonl": lines.encode(),
        "b.json": json.dumps(ENTRIES).encode(),
        "preds.json": json.dumps(by_key).encode(),
        "d.jsonl.gz": gzip.compress(lines.encode()),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        found = read_predictions(tmp_path / name)
        assert [each.official() for each in found.values()] == ENTRIES, name
        assert found["a__a-2"].empty
        assert found["a__a-1"].patch_bytes() == b"x\r\ny"


def test_bytes_survive_a_file(tmp_path: Path) -> None:
    patch = b"caf\xe9 \xff\r\n\x00end"
    wanted = Prediction("a__a-1", "m", patch.decode("utf-8", "surrogateescape"))
    write_predictions(tmp_path / "p.jsonl", [wanted])
    found = read_predictions(tmp_path / "p.jsonl")["a__a-1"]
    assert found == wanted
    assert found.patch_bytes() == patch


def test_real_predictions_are_read() -> None:
    found = read_predictions(need_shared("swe", "verified500_preds_gemini3pro.jsonl.gz"))
    assert len(found) == 500
    assert sum(each.empty for each in found.values()) == 1


def line(instance_id: str = "a__a-1", **more: Any) -> str:
    return json.dumps({"instance_id": instance_id, "model_name_or_path": "m", "model_patch": "p", **more}) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.jsonl", line() + line(model_patch="q"), r"two different predictions for a__a-1 \(line 1 and line 2\)"),
        ("p.json", '{"a__a-1": {"model_patch": "p"}, "a__a-1": {"model_patch": "q"}}', "comes twice"),
        ("p.json", '{"a__a-1": {"instance_id": "b", "model_patch": "p"}}', "key and the id must agree"),
        ("p.jsonl", '{"model_patch": "p"}', "instance_id is missing"),
        ("p.jsonl", '{"instance_id": "a"}', "model_patch is missing"),
        ("p.jsonl", line(model_patch=3), "model_patch is int"),
        ("p.jsonl", "[]\n", "is a JSON list"),
        ("p.jsonl", "{\n", "line 1, column 2: no valid JSON"),
        ("p.json", "3", "predictions are a list or a map"),
        ("p.jsonl", "", "holds no predictions"),
        ("p.jsonl.gz", "no gzip", "no valid JSON"),
    ],
)
def test_what_cannot_be_graded_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvalError, match=said):
        read_predictions(tmp_path / name)


def test_equal_ones_count_once(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line() + line() + line("a__a-2"))
    assert len(read_predictions(tmp_path / "p.jsonl")) == 2
    with pytest.raises(EvalError, match="no predictions file"):
        read_predictions(tmp_path / "none.jsonl")
