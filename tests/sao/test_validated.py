"""A start says which rows nobody validated; `sao tasks validate` is what remembers."""

from __future__ import annotations

import json
from pathlib import Path

from data.loaders import load_tasks
from sao.config import load_config
from sao.validated import unvalidated
from tests.envs.swe_support import GOLD, tiny_task
from tests.sao.command import runs, sao  # noqa: F401 - the first is a fixture


def test_rows_that_nobody_validated_are_said_and_bad_ones_named(runs: Path, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "rows.jsonl"
    good, wrong = dict(tiny_task().row), dict(tiny_task(patch=GOLD.replace("a + b", "a * b")).row)
    path.write_text("".join(json.dumps({**row, "repo": "tiny/shop", "instance_id": name}) + "\n"
                            for row, name in ((good, "good"), (wrong, "wrong"))))  # fmt: skip
    config = load_config("demo", [f"tasks.path={path}"])
    tasks = load_tasks("rows", "train", path)
    said = unvalidated(config, tasks)
    assert said.startswith("2 of 2 rows were never checked on this machine")
    assert f"sao tasks validate --tasks {path} shows every such row" in said
    table = sao("tasks", "validate", "--tasks", path, "--sandbox", "embedded", "--plain", code=1)
    assert "1 of 2 usable" in table
    assert "the reference fix is not graded as solved: 1 of 1 tests still fail" in " ".join(table.split()), table
    said = unvalidated(config, tasks)
    assert "never checked" not in said
    assert said.startswith("sao tasks validate called unusable: wrong (the reference fix is not graded as solved")
    assert unvalidated(config, tasks[:1]) == ""
    path.write_text(
        json.dumps({**good, "repo": "tiny/shop", "instance_id": "good", "problem_statement": "other"}) + "\n"
    )
    assert unvalidated(config, load_tasks("rows", "train", path)).startswith("1 of 1 rows were never checked")


def test_generated_tasks_need_no_validation() -> None:
    assert unvalidated(load_config("demo", []), [tiny_task()]) == ""
