"""Tasks whose first prompt leaves no room for an answer: named before anything starts, refused where none fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.presets import PresetError, load_preset
from agent.renderers.choose import renderer_for
from agent.tokenizer import load_tokenizer
from data.task import Task
from sao.config import load_config
from sao.environments import tools_of
from sao.first_prompts import check_prompts, context_of, too_long
from sao.paths import DEMO_POLICY
from tests.sao.command import runs, tried  # noqa: F401 - a fixture

PRESET = load_preset("demo")
RENDERER = renderer_for(load_tokenizer(DEMO_POLICY))


def task(name: str, words: int) -> Task:
    return Task(name, "swe", "test", {"problem_statement": "word " * words})


def tokens(words: int) -> int:
    messages = PRESET.messages("word " * words)
    return len(RENDERER.prompt_ids(messages, tools_of(PRESET, "swe")))


def test_the_edge_is_exact() -> None:
    context = tokens(100) + PRESET.limits.answer_reserve
    assert too_long([task("fits", 100)], PRESET, RENDERER, context) == []
    assert too_long([task("fits", 100), task("over", 101)], PRESET, RENDERER, context) == [("over", tokens(101))]


def test_the_least_limit_holds(tmp_path: Path) -> None:
    config = load_config("demo")

    def context(values: dict, engine: int = 0) -> int:
        (tmp_path / "config.json").write_text(json.dumps(values))
        section = config.engine.model_copy(update={"max_context": engine})
        return context_of(config.model_copy(update={"engine": section}), PRESET, tmp_path)

    assert context({}) == PRESET.limits.max_context
    assert context({"max_position_embeddings": 900}) == 900
    assert context({"text_config": {"max_position_embeddings": 800}}) == 800
    assert context({"max_position_embeddings": 900}, engine=700) == 700


def test_some_are_named_and_none_is_refused() -> None:
    config = load_config("demo")
    short, long = task("short", 1), task("long", 5000)
    said = check_prompts(config, PRESET, DEMO_POLICY, RENDERER, [short, long])
    assert "1 of 2 tasks" in said
    assert f"long ({tokens(5000):,} tokens)" in said
    assert "short (" not in said
    assert check_prompts(config, PRESET, DEMO_POLICY, RENDERER, [short]) == ""
    with pytest.raises(PresetError, match="longer context"):
        check_prompts(config, PRESET, DEMO_POLICY, RENDERER, [long])


@pytest.mark.parametrize("command", ["rollout", "rollout --dry-run", "train", "train --dry-run"])
def test_commands_refuse_before_there_is_a_folder(runs: Path, tmp_path: Path, command: str) -> None:  # noqa: F811
    preset = (Path(__file__).parents[2] / "agent/presets/demo.toml").read_text()
    small = tmp_path / "small.toml"
    lines = ["max_context = 120" if line.startswith("max_context") else line for line in preset.splitlines()]
    small.write_text("\n".join(lines) + "\n")
    code, said = tried(*command.split(), "--set", f"agent.preset={small}", "--set", "tasks.limit=4", "--plain")
    assert code == 2
    assert "4 of 4 tasks" in said
    assert not runs.exists()
