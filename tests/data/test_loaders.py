from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.loaders import load_tasks
from data.task import TaskError
from tests.shared_data import need_shared

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def row(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "instance_id": f"shop__cart-{number}",
        "repo": "shop/cart",
        "base_commit": f"{number:040x}",
        "problem_statement": "total() subtracts\n",
        "hints_text": "",
        "created_at": "2025-01-01T00:00:00Z",
        "version": "3.10",
        "patch": "diff --git a/cart.py b/cart.py\n",
        "test_patch": "",
        "FAIL_TO_PASS": [f"tests.test_cart.TestCart.test_{number}"],
        "PASS_TO_PASS": [],
        "environment_setup_commit": f"{number:040x}",
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not ...}


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def as_text(one: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in one.items()}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(as_text(one) for one in rows)


def write_dataset(kind: str) -> Callable[[Path, list[dict[str, Any]]], None]:
    def write(path: Path, rows: list[dict[str, Any]]) -> None:
        import datasets

        made = datasets.Dataset.from_list(rows)
        if kind == "parquet":
            made.to_parquet(path)
        elif kind == "dict":
            datasets.DatasetDict({"test": made, "dev": made.select([1])}).save_to_disk(path)
        else:
            made.save_to_disk(path)

    return write


def write_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    write_dataset("folder")(path.parent / "saved", rows)
    next((path.parent / "saved").glob("data-*.arrow")).rename(path)


FORMATS: dict[str, Callable[[Path, list[dict[str, Any]]], object]] = {
    "rows.jsonl": lambda path, rows: jsonl(path, *rows),
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "rows.csv": write_csv,
    "rows.parquet": write_dataset("parquet"),
    "rows.arrow": write_arrow,
    "folder": write_dataset("folder"),
    "splits": write_dataset("dict"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_local_format_gives_the_same_tasks(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name](path, [row(1), row(2, PASS_TO_PASS=["a b", "c"]), row(3)])
    tasks = load_tasks("mine", "test", path)
    assert [task.task_id for task in tasks] == ["shop__cart-1", "shop__cart-2", "shop__cart-3"]
    assert [task.row["PASS_TO_PASS"] for task in tasks] == [[], ["a b", "c"], []]
    first = tasks[0]
    assert (first.kind, first.split, first.source) == ("swe", "test", f"mine ({name})")
    assert first.base_dir == str(path if path.is_dir() else tmp_path)
    assert first.row["FAIL_TO_PASS"] == ["tests.test_cart.TestCart.test_1"]
    assert first.row["version"] == "3.10"
    assert first.row["problem_statement"] == "total() subtracts\n"
    assert isinstance(first.row["created_at"], str)
    assert [task.task_id for task in load_tasks("mine", "test", path, limit=2)] == ["shop__cart-1", "shop__cart-2"]


def test_lists_may_be_text_or_lists_even_row_by_row(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "r.jsonl", row(1), as_text(row(2)), row(3, PASS_TO_PASS=["x"]))
    assert [task.row["FAIL_TO_PASS"] for task in load_tasks("mine", "test", path)] == [
        [f"tests.test_cart.TestCart.test_{number}"] for number in (1, 2, 3)
    ]


def test_extra_columns_are_kept(tmp_path: Path) -> None:
    files = {"a.py": "x = 1\n"}
    rows = [
        row(1, files=json.dumps(files), repo_dir="/testbed", eval_timeout_s=5),
        row(2, files=json.dumps({"b.py": ""})),
    ]
    one, two = load_tasks("mine", "test", jsonl(tmp_path / "r.jsonl", *rows))
    assert json.loads(one.row["files"]) == files
    assert (one.row["repo_dir"], one.row["eval_timeout_s"]) == ("/testbed", 5)
    assert json.loads(two.row["files"]) == {"b.py": ""}


def test_files_as_an_object_do_not_leak_between_rows(tmp_path: Path) -> None:
    """A columnar reader gives every row the union of all rows' files, with nulls."""
    path = tmp_path / "r.parquet"
    write_dataset("parquet")(path, [row(1, files={"a.py": "1"}), row(2, files={"b.py": "2"})])
    assert [task.row["files"] for task in load_tasks("mine", "test", path)] == [{"a.py": "1"}, {"b.py": "2"}]


def test_a_bundle_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "r.jsonl", row(1, bundle="repo.bundle"))
    with pytest.raises(TaskError, match=r"row 1 \(shop__cart-1\): column bundle names 'repo.bundle', but there is no"):
        load_tasks("mine", "test", path)
    (tmp_path / "repo.bundle").touch()
    (task,) = load_tasks("mine", "test", path)
    assert (Path(task.base_dir) / task.row["bundle"]).is_file()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"base_commit": ...}, r"row 2 \(shop__cart-2\): column base_commit is missing; a SWE row needs instance_id"),
        ({"instance_id": ..., "patch": None}, r"row 2: column instance_id, patch is missing"),
        ({"problem_statement": "  "}, r"row 2 \(shop__cart-2\): column problem_statement is empty"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty, so any patch would pass"),
        ({"FAIL_TO_PASS": "test_a, test_b"}, r"row 2 \(shop__cart-2\): column FAIL_TO_PASS is text but no JSON list"),
        ({"PASS_TO_PASS": '{"a": 1}'}, "column PASS_TO_PASS is no list of test ids"),
        ({"PASS_TO_PASS": "[1]"}, "column PASS_TO_PASS is no list of test ids"),
        ({"files": "["}, "column files is text but no JSON object"),
        ({"files": "[]"}, "column files is no JSON object from path to text"),
        ({"instance_id": "shop__cart-1"}, "row 2: instance_id shop__cart-1 comes twice"),
    ],
)
def test_a_bad_row_is_named_with_its_column(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", row(1), row(2, **changes))
    with pytest.raises(TaskError, match=text) as caught:
        load_tasks("mine", "test", path)
    assert "mine (rows.jsonl), row 2" in str(caught.value)
    assert len(load_tasks("mine", "test", path, limit=1)) == 1


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("rows.jsonl", "", "rows.jsonl is empty"),
        ("rows.json", "[]", "no rows in split test"),
        ("rows.jsonl", '\n{"a":\n{"a": 1}', "rows.jsonl, line 2, column 6: no valid JSON: Expecting value"),
        ("rows.jsonl", "[1]\n", "row 1: is a JSON list, expected an object"),
        ("rows.json", '{"a": 1}', "holds a JSON dict, expected a list of rows"),
        ("rows.parquet", "no parquet", "cannot be read: "),
        ("rows.csv", "a,b\n1,2,3,4\n", "column instance_id|cannot be read"),
        ("rows.txt", "x", "type .txt are not read; use .jsonl, .json"),
    ],
)
def test_files_that_are_no_task_set(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskError, match=text):
        load_tasks("mine", "test", tmp_path / name)


def test_places_that_are_no_task_set(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no task set at .*absent.jsonl: give a .jsonl"):
        load_tasks("mine", "test", tmp_path / "absent.jsonl")
    with pytest.raises(TaskError, match="cannot be read"):
        load_tasks("mine", "test", tmp_path)
    write_dataset("dict")(tmp_path / "d", [row(1), row(2)])
    with pytest.raises(TaskError, match="no split train; it has test, dev"):
        load_tasks("mine", "train", tmp_path / "d")
    assert [task.task_id for task in load_tasks("mine", "dev", tmp_path / "d")] == ["shop__cart-2"]
    with pytest.raises(TaskError, match="limit is 0"):
        load_tasks("mine", "test", tmp_path / "d", limit=0)


def test_a_hub_set_that_cannot_be_reached_is_named() -> None:
    code = (
        "from data.loaders import load_tasks; from data.task import TaskError\n"
        "try: load_tasks('somebody/something', 'test')\n"
        "except TaskError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.stdout.startswith("somebody/something (a hub dataset; give a path for local files) cannot be read")


def test_micro_swe_is_dispatched() -> None:
    tasks = load_tasks("micro-swe", "train", limit=3)
    assert [task.kind for task in tasks] == ["swe"] * 3
    assert {task.source for task in tasks} == {"micro-swe"}


def test_generated_rows_survive_a_file(tmp_path: Path) -> None:
    made = load_tasks("micro-swe", "train", limit=3)
    path = jsonl(tmp_path / "micro.jsonl", *(dict(task.row) for task in made))
    back = load_tasks("micro-swe", "train", path)
    for one, other in zip(back, made, strict=True):
        assert {**one.row, "created_at": ""} == {**other.row, "created_at": ""}


# -- real rows --------------------------------------------------------------------------------------------------------


def test_real_legacy_and_current_rows_agree() -> None:
    legacy = load_tasks("verified", "test", need_shared("swe", "verified_mini50.jsonl"))
    current = load_tasks("verified", "test", need_shared("swe", "verified_mini50_v5.jsonl"))
    assert len(legacy) == len(current) == 50
    for one, other in zip(legacy, current, strict=True):
        assert one.row.items() <= other.row.items()
        assert {"image", "eval_script", "log_parser", "eval_type"} <= set(other.row) - set(one.row)
    with open(need_shared("swe", "verified_mini50_v5.jsonl")) as file:
        raw = [json.loads(line) for line in file]
    for task, source in zip(current, raw, strict=True):
        assert {**task.row, "created_at": ""} == {**source, "created_at": ""}  # to the byte, patches too


def test_a_real_set_with_a_row_that_comes_twice() -> None:
    path = need_shared("swe", "sweagent_swe-bench-dev-easy.json")
    assert len(load_tasks("dev", "dev", path, limit=3)) == 3
    with pytest.raises(TaskError, match="row 4: instance_id pylint-dev__astroid-1268 comes twice"):
        load_tasks("dev", "dev", path)


def test_the_real_toy_row() -> None:
    (task,) = load_tasks("toy", "test", need_shared("swe", "toy", "toy_calc_v5.jsonl"))
    assert task.row["FAIL_TO_PASS"] == ["test_calc.py::test_add"]
    assert (Path(task.base_dir) / "testbed.bundle").is_file()


def test_patches_may_hold_bytes_that_are_no_text_and_other_columns_may_not(tmp_path: Path) -> None:
    one = row(0, patch="a\udcff")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(one) + "\n")
    assert load_tasks("mine", "train", path)[0].row["patch"] == "a\udcff"
    for column, value in (("patch", "a\ud800"), ("problem_statement", "a\udcff")):
        path.write_text(json.dumps({**row(0), column: value}) + "\n")
        with pytest.raises(TaskError, match=r"row 1.*half of a surrogate pair"):
            load_tasks("mine", "train", path)
