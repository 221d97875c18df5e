"""`sao eval micro-swe` with the shipped policy: its run folder is one that the other commands take."""

from __future__ import annotations

import json
from pathlib import Path

from tests.sao.command import sao


def test_an_evaluation_leaves_a_run_folder_that_replay_and_compare_take(runs: Path) -> None:
    words = ("--tasks", 2, "--sandbox", "embedded", "--temperature", 0, "--plain", "--json", "scores.json")
    said = sao("eval", "micro-swe", *words)
    made = runs / "eval-micro-swe-001"
    assert "report.json" in said
    assert "sao replay eval-micro-swe-001" in said
    report = json.loads((made / "report.json").read_text())
    assert report["splits"] == json.loads(Path("scores.json").read_text())
    assert {name: one["tasks"] for name, one in report["splits"].items()} == {"heldout": 2, "unseen": 2}
    assert len(json.loads((made / "scores.json").read_text())["scores"]) == 4
    listed = sao("replay", "eval-micro-swe-001", "--list", "--plain")
    assert listed.count("eval-micro-swe-001-heldout") == listed.count("eval-micro-swe-001-unseen") == 2
    assert "no instance flipped" in sao("eval", "compare", made, made, "--plain")
