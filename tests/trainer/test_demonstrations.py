"""Demonstrations are real episodes in exact ids, and their guess knows nothing."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.demo_tokenizer import build_tokenizer
from agent.engines.scripted import ScriptedPolicy
from agent.episode import run_episode
from agent.presets import load_preset
from agent.renderers.qwen import QwenRenderer
from agent.tokenizer import load_tokenizer
from data.micro_swe import bug_site, load, task
from data.micro_swe.templates import TEMPLATES, Template
from data.task import Task
from data.trajectory import Identity, Status, Trajectory
from envs.environment import ToolCall
from envs.sandbox import BackendUnavailable
from envs.swe import SWEEnvironment
from envs.tools import ToolSet
from trainer.demonstrations import Demonstrator, micro_swe_demonstrations, turns_of
from trainer.drills import draw_drill
from trainer.edits import edit_of


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> QwenRenderer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    texts = [text for one in load("train", limit=512) for text in json.loads(one.row["files"]).values()]
    build_tokenizer(texts).save_pretrained(folder)
    return QwenRenderer(load_tokenizer(folder))


@pytest.fixture(scope="module")
def demonstrator(renderer: QwenRenderer) -> Demonstrator:
    return Demonstrator(renderer, load_preset("demo"))


def play(one: Task, renderer: QwenRenderer, new_line: str) -> Trajectory:
    """The same turns, played by the scripted engine in the embedded sandbox."""
    from envs.sandbox.embedded import EmbeddedBackend

    preset = load_preset("demo")

    async def main() -> Trajectory:
        try:
            backend = EmbeddedBackend("demonstrations")
        except BackendUnavailable as error:
            pytest.skip(f"EMBEDDED TEST NOT RUN: {error}")
        try:
            # Written out here, not by `call_ids`: what the demo policy was taught, byte for byte.
            turns = [
                "\n".join([*([turn.words] if turn.words else []), *(call_text(call) for call in turn.calls)])
                for turn in turns_of(edit_of(one), new_line)
            ]
            policy = ScriptedPolicy(turns, encode=renderer.action_ids)
            env = SWEEnvironment(one, backend, ToolSet(preset.tools))
            identity = Identity("e0", one.task_id, 0, 0, renderer.tokenizer_fingerprint, lineage="scripted")
            return await run_episode(policy, renderer, env, preset, identity)
        finally:
            await backend.close()

    return asyncio.run(main())


def call_text(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize("split", ["train", "heldout", "unseen"])
def test_demonstration_has_the_ids_of_a_real_episode(
    split: str, renderer: QwenRenderer, demonstrator: Demonstrator
) -> None:
    one = task(split, 3)
    site = bug_site(one)
    wrong = next(line for line in site.candidates if line != site.fixed_line)
    for line, reward in ((site.fixed_line, 1.0), (wrong, 0.0)):
        played = play(one, renderer, line)
        assert played.outcome.status is Status.GRADED, played.outcome
        assert played.outcome.reward == reward
        written = demonstrator.write(edit_of(one), line)
        # The real episode goes on with the observation of the last turn, which nothing follows.
        assert played.tokens[: len(written)].tolist() == written.tokens.tolist()
        assert played.action_mask[: len(written)].tolist() == written.action.tolist()
        assert not played.action_mask[len(written) :].any()


def test_episodes_are_short(demonstrator: Demonstrator) -> None:
    sizes = []
    for split in ("train", "heldout", "unseen"):
        for one in load(split, limit=64, offset=100):
            for line in bug_site(one).candidates:
                written = demonstrator.write(edit_of(one), line)
                assert len(written) <= 400
                sizes.append(int(written.action.sum()))
    assert sum(sizes) / len(sizes) <= 60
    assert max(sizes) <= 90  # argument lists of methods: self.a, self.b, self.c three times over


def test_what_is_free_is_the_guess_in_the_thought(demonstrator: Demonstrator) -> None:
    decode = demonstrator.renderer.tokenizer.decode
    for one in load("train", limit=64, offset=200):
        edit = edit_of(one)
        before = set()
        for line, part in zip(edit.candidates, edit.fills, strict=True):
            written = demonstrator.write(edit, line)
            assert not (written.free & ~written.action).any()
            (places,) = written.free.nonzero()
            assert places.tolist() == list(range(places[0], places[-1] + 1))
            before.add(tuple(written.tokens[: places[0]].tolist()))
            guessed = decode(written.tokens[written.free].tolist())
            # Candidates may begin alike ("wage, rent" and "wage, size"): then only the rest is a guess.
            assert part.strip().endswith(guessed.strip())
            assert decode(written.tokens[places[-1] + 1 :].tolist()).lstrip("\n").startswith("<tool_call>")
        assert len(before) == 1
        thought = decode(before.pop()).rstrip(" ")
        assert thought.endswith(f"def {edit.function} {edit.hint}") or edit.fills[0].count(",") == 2


def test_hint_stands_in_the_function_that_is_named(demonstrator: Demonstrator) -> None:
    rng = random.Random(3)
    drills = [draw_drill(rng) for _ in range(100)]
    for edit in (*(edit_of(one) for split in ("train", "heldout", "unseen") for one in load(split, limit=50)), *drills):
        function = edit.text[edit.text.index(f"def {edit.function}(") :]
        assert edit.hint in function.split('"""')[1]
        assert len(edit.fills) == len(edit.candidates)
        assert all(part.strip() in line for part, line in zip(edit.fills, edit.candidates, strict=True))


def test_guess_is_uniform_and_blind(demonstrator: Demonstrator) -> None:
    """An `Edit` does not know the answer; over 300 demonstrations of one task each of its three candidates comes up
    about 100 times (four standard deviations are 33)."""
    offset = next(number for number in range(50) if len(bug_site(task("train", number)).candidates) == 3)
    site = bug_site(task("train", offset))
    make = micro_swe_demonstrations(demonstrator, split="train", tasks=1, offset=offset, seed=5)
    chosen: Counter[str] = Counter()
    for number in range(300):
        text = demonstrator.renderer.tokenizer.decode(make(number).tokens.tolist())
        chosen[text.split('", "new_str": "')[1].split('"}}')[0]] += 1
    assert set(chosen) == set(site.candidates)
    assert max(abs(count - 100) for count in chosen.values()) < 33


def test_demonstration_n_depends_on_seed_and_n_alone(demonstrator: Demonstrator) -> None:
    one, again, other = (
        micro_swe_demonstrations(demonstrator, split="train", tasks=50, seed=seed, drill_share=0.5)
        for seed in (1, 1, 2)
    )
    ahead = [again(number) for number in (7, 3, 5)]
    assert [one(number).tokens.tolist() for number in (7, 3, 5)] == [made.tokens.tolist() for made in ahead]
    assert any(one(number).tokens.tolist() != other(number).tokens.tolist() for number in range(5))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_drills_have_one_place_to_change(seed: int) -> None:
    drill = draw_drill(random.Random(seed))
    assert drill.text.count(drill.old_line) == 1
    assert drill.old_line not in drill.candidates
    assert drill.candidates
    assert drill.old_line == drill.old_line.strip()
    assert not set('"\\\n') & set(drill.old_line + "".join(drill.candidates))
    assert drill == draw_drill(random.Random(seed))


def test_no_drill_is_a_program_of_any_split() -> None:
    """Neither docstring and body together nor the line to change with its hint: 500 drills against all templates."""

    def pattern(template: Template, text: str) -> re.Pattern[str]:
        options = template.kind.options
        groups = {
            "hint": "|".join(re.escape(option.hint) for option in options) or r"\w+(?:, \w+)*",
            "fill": "|".join(re.escape(option.fill) for option in options) or r"\w+(?:, \w+)*",
        }
        return re.compile(re.sub(r"\\{(\w+)\\}", lambda m: f"(?:{groups.get(m[1], chr(92) + 'w+')})", re.escape(text)))

    templates = [template for split in TEMPLATES.values() for template in split]
    wanted = [(pattern(one, one.doc), pattern(one, "\n".join(one.body))) for one in templates]
    task_text = json.loads(task("train", 0).row["files"])[bug_site(task("train", 0)).path]
    assert matches(task_text, wanted)
    for seed in range(500):
        text = draw_drill(random.Random(seed)).text
        assert not matches(text, wanted), text


def matches(text: str, wanted: list[tuple[re.Pattern[str], re.Pattern[str]]]) -> int:
    """Functions of the file that are some template's, docstring and body."""
    found = 0
    for function in re.split(r"^ *def ", text, flags=re.MULTILINE)[1:]:
        lines = [line.strip() for line in function.strip().split("\n\n")[0].split("\n")]
        said, done = "".join(lines[1:2]).strip('"'), "\n".join(lines[2:])
        found += any(one.fullmatch(said) and two.fullmatch(done) for one, two in wanted)
    return found
