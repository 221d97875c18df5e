"""Configuration: every fault is one UserError that names file and key; nothing unknown passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sao.cli import app
from sao.config import Config, describe, load_config
from sao.paths import CONFIGS, UserError


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("name = x", [], ["not valid TOML", "line 1"]),
        ("[rollout]\nepisdes = 3", [], ["unknown key 'rollout.episdes'", "did you mean 'episodes'"]),
        ("[rollot]\nepisodes = 3", [], ["unknown key 'rollot'", "did you mean 'rollout'"]),
        ("[rollout]\nepisodes = 0", [], ["rollout.episodes", "greater than or equal to 1"]),
        ("", ["rollout.episodes"], ["section.key=value"]),
        ("", ["rollout.concurrency=many"], ["rollout.concurrency", "valid integer"]),
        ("name = 'x'", ["name.x=1"], ["name is a value, not a section"]),
        ("", ["sandbox.backend=podman"], ["'auto', 'docker', 'embedded' or 'none'"]),
    ],
)
def test_a_fault_is_one_paragraph_that_names_the_key(
    tmp_path: Path, text: str, overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        load_config(write(tmp_path, text), overrides)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_lists_the_known_names() -> None:
    with pytest.raises(UserError, match="demo"):
        load_config("no-such-configuration")


def test_overrides_are_toml_values_and_bare_words_are_text(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, "[rollout]\nepisodes = 3"),
        ["rollout.episodes=7", "model.path=some/folder", "agent.temperature=0.5", "tasks.split='heldout'"],
    )
    assert (config.rollout.episodes, config.model.path) == (7, "some/folder")
    assert (config.agent.temperature, config.tasks.split) == (0.5, "heldout")


def test_the_resolved_configuration_reads_back(tmp_path: Path) -> None:
    config = load_config("demo", ["rollout.seed=5"])
    assert load_config(write(tmp_path, config.to_toml())) == config


def test_the_plan_may_grow_but_not_change() -> None:
    plan = Config().plan_hash()
    assert load_config("demo", ["rollout.episodes=500", "rollout.concurrency=2", "name=x"]).plan_hash() == plan
    for change in ("rollout.seed=1", "tasks.split=heldout", "model.path=other", "agent.temperature=0.0"):
        assert load_config("demo", [change]).plan_hash() != plan


def test_every_shipped_configuration_is_valid_and_every_key_is_documented() -> None:
    for path in CONFIGS.glob("*.toml"):
        load_config(str(path))
    undocumented = [key for key, _, meaning in describe(Config) if not meaning]
    assert undocumented == [], undocumented


def test_the_description_shows_every_key_and_text_as_it_is_written() -> None:
    """Square brackets in a field's text are no markup of the terminal's."""
    result = CliRunner().invoke(app, ["config", "--describe"])
    assert result.exit_code == 0, result.output
    shown = "".join(result.output.split())
    assert all(key in shown for key, _, _ in describe(Config))
    bracketed = re.findall(r"\[[^\s\]]*\]", " ".join(meaning for _, _, meaning in describe(Config)))
    assert all(text in shown for text in bracketed)
