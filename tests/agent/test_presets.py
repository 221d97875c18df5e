"""Presets: the shipped ones load, mistakes are named, and scripted turns obey limits."""

from __future__ import annotations

import pytest

from agent.engines.scripted import played
from agent.policy import StopReason
from agent.presets import PresetError, load_preset, preset_names
from agent.seeds import derive_seed
from envs.tools.schema import SCHEMAS


def test_shipped_presets() -> None:
    assert preset_names() == [
        "default",
        "demo",
        "editor",
        "matharena",
        "maths",
        "maths-python",
        "micro",
        "mini",
        "paper",
        "sums",
    ]
    demo = load_preset("demo")
    assert (demo.name, demo.system, demo.user) == ("demo", "You fix bugs.", "{problem}")
    assert demo.tools == ("view", "str_replace", "submit")
    default = load_preset("default")
    assert default.tools == ("bash", "view", "str_replace", "create", "submit")
    paper = load_preset("paper")
    assert paper.tools == tuple(SCHEMAS)
    assert (paper.limits.max_turns, paper.limits.max_context) == (300, 131072)
    mini = load_preset("mini")
    assert (mini.tools, mini.calls, mini.max_calls) == (("bash", "submit"), "fenced", 1)
    assert "bash" not in load_preset("editor").tools
    for name in preset_names():
        preset = load_preset(name)
        assert preset.name == name
        assert set(preset.tools) <= {*SCHEMAS, "python"}
        assert "{problem}" not in preset.messages("p {x} {0}")[-1]["content"]
        assert "p {x} {0}" in preset.messages("p {x} {0}")[-1]["content"]


GOOD = """
name = "mine"
system = ""
tools = ["view"]
[limits]
max_turns = 3
max_tokens = 10
max_context = 1000
command_timeout_s = 1
episode_timeout_s = 1
observation_chars = 500
"""


def test_a_preset_from_a_path(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_preset(path).messages("p") == [{"role": "user", "content": "p"}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_turns = 3", "max_turns = 0", "limits.max_turns"),
        ("max_turns = 3", "max_turn = 3", "limits.max_turn: Extra inputs"),
        ('tools = ["view"]', 'tools = ["view", "view"]', "named twice"),
        ('system = ""', 'system = ""\nuser = "no place"', "must hold {problem}"),
        ("max_context = 1000", "max_context = 100", "must be below max_context"),
        ('name = "mine"', "name = ", "not valid TOML"),
        ('system = ""', 'system = ""\ncalls = "fenced"', "they are"),
        ('system = ""', 'system = ""\ncalls = "xml"', "calls: Input should be"),
        ('system = ""', 'system = ""\nmax_calls = 0', "max_calls"),
    ],
)
def test_mistakes_are_named_with_file_and_key(tmp_path, old, new, words) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(PresetError, match=r"mine\.toml") as caught:
        load_preset(path)
    assert words in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PresetError, match=f"Known: {', '.join(preset_names())};"):
        load_preset("nope")


def test_the_label_names_what_the_preset_says(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    mine = load_preset(path)
    assert mine.label.startswith("mine@")
    assert len(mine.label) == len("mine@") + 8
    path.write_text(GOOD + "\n# a remark\n")
    assert load_preset(path).label == mine.label
    path.write_text(GOOD + "max_turn_tokens = 5\n")
    assert load_preset(path).label != mine.label


def test_played_turns_obey_stop_and_limit() -> None:
    def play(tokens: list[int], limit: int) -> tuple[list[int], StopReason]:
        made = played(tokens, [0.0] * len(tokens), [0] * len(tokens), limit, [9])
        return list(made.tokens), made.stop_reason

    assert play([1, 2, 9], 5) == ([1, 2, 9], StopReason.STOP)
    assert play([1, 9, 2], 5) == ([1, 9], StopReason.STOP)
    assert play([1, 2, 9], 2) == ([1, 2], StopReason.LENGTH)
    assert play([1, 2], 5) == ([1, 2], StopReason.LENGTH)


def test_seeds_depend_on_every_part_and_stay_the_same() -> None:
    assert derive_seed(7, "draw", 0) == 8574609448201269315  # logs of old runs depend on it
    seen = {derive_seed(seed, name, n) for seed in (0, 1) for name in ("draw", "turn") for n in range(50)}
    assert len(seen) == 200
    assert all(0 <= seed < 1 << 63 for seed in seen)
    assert derive_seed("1", 2) != derive_seed(1, "2")


def test_a_command_may_take_longer_than_usual_within_the_episode() -> None:
    assert load_preset("default").limits.longest_command_s == 600.0
    assert load_preset("demo").limits.longest_command_s == 60.0
    limits = load_preset("default").limits.model_copy(update={"command_timeout_s": 900.0})
    assert limits.longest_command_s == 900.0
