"""Findings of the guard on real patches, by what stands in the patch alone: 500 of one model on SWE-bench Verified."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from data.loaders import load_tasks
from envs.swe.guard import Judged, patch_findings
from eval.swebench.predictions import read_predictions
from eval.swebench.rows import HarnessRow, harness_row, harness_rows

DATA = Path(os.environ.get("SAO_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def false_alarms() -> int | None:
    """How many of them raise one; None, loudly, where the data is absent."""
    given = DATA / "swe" / "verified500_preds_gemini3pro.jsonl.gz"
    rows_file = DATA / "swe" / "verified_mini50_v5.jsonl"
    if not given.is_file() or not rows_file.is_file():
        print(f"REAL PATCHES NOT CHECKED: no {given} (set SAO_SHARED_DATA)", file=sys.stderr)
        return None
    rows = {row.instance_id: row for row in harness_rows(load_tasks("v", "test", rows_file))}
    blank = next(iter(rows.values()))
    raised = 0
    for name, prediction in read_predictions(given).items():
        row = rows.get(name)
        raised += bool(patch_findings(Judged((row or _unlike(blank)).swe), prediction.patch_bytes()))
    return raised


def _unlike(row: HarnessRow) -> HarnessRow:
    """A row whose tests no patch touches: most rows of the 500 are not at hand."""
    columns = {"test_patch": "", "FAIL_TO_PASS": ["none (x.Y)"], "PASS_TO_PASS": []}
    return harness_row(type(row.task)(row.task.task_id, "swe", "test", {**row.row, **columns}, row.task.source))
