"""Another model under the demo's configuration is told which values it takes; the demo's own kind is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agent.presets import load_preset
from sao.config import load_config
from sao.inherited import inherited, unreadable
from sao.paths import CONFIGS, DEMO_POLICY
from tests.sao.command import runs, sao  # noqa: F401 - a fixture


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    shutil.copytree(DEMO_POLICY, folder)
    config = json.loads((folder / "config.json").read_text())
    larger = {**config, "hidden_size": 2 * config["hidden_size"]}
    (folder / "config.json").write_text(json.dumps(larger))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_the_values_are_named(runs: Path, other: Path) -> None:  # noqa: F811
    said = sao("train", "--model", other, "--dry-run", "--plain")
    for part in ("not the demo policy", "6 turns", "256 MiB", "30 s for tests", "0.0003", "qwen3-4b"):
        assert part in said
    assert "not the demo policy" in sao("rollout", "--model", other, "--dry-run", "--plain")
    assert not runs.exists()


def test_the_demos_own_kind_and_other_configurations_are_not_warned(other: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(DEMO_POLICY, copy)
    for config, model in (("demo", "demo"), ("demo", str(copy)), ("qwen3-4b", str(other))):
        resolved = load_config(config, [f"model.path={model}"])
        assert inherited(resolved, load_preset(resolved.agent.preset), training=True) == ""


def test_the_demo_policy_says_which_tasks_it_cannot_read_and_what_can(
    runs: Path,  # noqa: F811
    other: Path,
    tmp_path: Path,
) -> None:
    row = {"instance_id": "a", "repo": "a", "base_commit": "a" * 40, "problem_statement": "x", "files": '{"a.py": ""}'}
    graded = {"eval_script": "python3 -m unittest -v t", "log_parser": "unittest"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({**row, "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [], "test_patch": "", "patch": "", **graded})
    )
    said = " ".join(sao("rollout", "--tasks", rows, "--dry-run", "--plain").split())
    for part in ("cannot read the tasks", "rows.jsonl", "MODEL=", "agent.preset=default", "engine.kind=endpoint"):
        assert part in said
    assert unreadable(load_config("demo")) == ""
    mine = [f"tasks.path={rows}", "tasks.name=swe"]
    assert unreadable(load_config("demo", [*mine, f"model.path={other}"])) == ""
    assert unreadable(load_config("demo", [*mine, "engine.kind=endpoint"])) == ""


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.toml")))
def test_every_recipe_resolves_and_names_itself(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    load_preset(config.agent.preset)
    config.train.resolved_step()
