"""What `sao images plan` names and shows; no engine is asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from data.loaders import load_tasks
from envs.images.plan import ImagePlan, Need
from envs.swe.row import read_row
from sao.images import images_of, show_plan
from tests.envs.swe_support import tiny_task

NAMES = [f"swebench/sweb.eval.x86_64.scikit-learn_1776_scikit-learn-{number}:latest" for number in (10297, 10298)]


def test_rows_without_an_image_get_the_name_that_grading_uses(tmp_path: Path) -> None:
    """Rows of the old format have no script either, others lack the image alone."""
    row = {
        "base_commit": "0" * 40,
        "repo": "scikit-learn/scikit-learn",
        "problem_statement": "p",
        "FAIL_TO_PASS": ["a"],
    }
    row |= {"patch": "", "test_patch": "", "PASS_TO_PASS": []}
    old = [row | {"instance_id": f"scikit-learn__scikit-learn-{number}"} for number in (10297, 10298)]
    without = [one | {"eval_script": "true", "log_parser": "parse_log_pytest"} for one in old]
    for number, made in enumerate((old, without)):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in made))
        assert sorted(images_of(load_tasks("own", "test", str(file)))) == NAMES
    assert [read_row(task).image for task in load_tasks("own", "test", str(tmp_path / "1.jsonl"))] == NAMES
    assert images_of([tiny_task()]) == {"sao-base:latest": 1}


def test_long_names_are_never_cut() -> None:
    needs = tuple(Need(name, 1, "missing", None, "no registry has it " + 60 * "x", hopeless=True) for name in NAMES)
    plan = ImagePlan(needs, 0, 0, 0, 1, 0, None, 0, None, None)
    console = Console(file=io.StringIO(), width=80)
    show_plan(plan, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    width = lines[0].index("tasks")
    shown = "".join(line[:width].strip() for line in lines)
    assert all(name in shown for name in NAMES)
    assert "…" not in shown
