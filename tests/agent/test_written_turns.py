"""Turns written for training, in every family: the parser reads them back, and an episode has the same ids."""

from __future__ import annotations

import asyncio
import functools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.engines.scripted import ScriptedPolicy
from agent.episode import run_episode
from agent.parsers import CallError, CallErrorKind, Unspeakable
from agent.presets import Preset, PresetError, load_preset
from agent.renderers.choose import renderer_for
from agent.renderers.template import PROBE_TOOL, TemplateRenderer, split_thought
from data.micro_swe import task
from data.trajectory import ExitReason, Identity, Status, Trajectory
from envs.environment import ToolCall
from tests.agent.families import any_renderer as made
from tests.agent.families import every
from tests.agent.official import tokenizer
from trainer.demonstrations import Demonstration, Demonstrator, Turn, micro_swe_demonstrations, turns_of
from trainer.drills import draw_drill
from trainer.edits import Edit, edit_of

QUIET = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
ASK = [{"role": "user", "content": "total() is wrong."}]
PIECES = [
    "</tool_call>",
    "<tool_call>",
    "{",
    '"',
    "\\",
    "\n",
    "é",
    "\u2028",
    "</arg_value>",
    "</parameter>",
    "</think>",
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=6).map("".join)
any_renderer = functools.cache(made)


def roomy(name: str = "demo") -> Preset:
    """The preset with room for any family's own list of tools."""
    chosen = load_preset(name)
    return chosen.model_copy(
        update={
            "limits": chosen.limits.model_copy(
                update={"max_context": 9000, "max_tokens": 3000, "max_turn_tokens": None}
            )
        }
    )


def edits() -> list[Edit]:
    rng = random.Random(7)
    return [*(edit_of(task(split, 11)) for split in ("train", "unseen")), draw_drill(rng)]


def play(renderer: TemplateRenderer, preset: Preset, env, turns: list[list[int]]) -> Trajectory:
    who = Identity("run-000000-0", "task", 0, 42, renderer.tokenizer_fingerprint)
    return asyncio.run(run_episode(ScriptedPolicy(turns), renderer, env, preset, who))


def actions(one: Demonstration) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], one.action.astype(int), [0]])))
    return [one.tokens[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize(
    ("name", "preset"), [*(pytest.param(*one.values, "demo", id=one.id) for one in every()), ("smollm2", "micro")]
)
def test_a_demonstration_has_the_ids_of_an_episode_with_its_turns(name: str, preset: str, World) -> None:
    renderer, chosen = any_renderer(name), roomy(preset)
    demonstrator = Demonstrator(renderer, chosen)
    for edit in edits():
        for line in edit.candidates[:1]:
            written = demonstrator.write(edit, line)
            env = World(files={edit.path: edit.text.encode()}, problem=edit.problem)
            played = play(renderer, chosen, env, actions(written))
            assert (played.outcome.status, played.outcome.exit_reason) == (Status.GRADED, ExitReason.SUBMITTED)
            size = len(written)
            assert played.tokens[:size].tolist() == written.tokens.tolist()
            assert played.action_mask[:size].tolist() == written.action.tolist()
            assert not played.action_mask[size:].any()
            planned = turns_of(edit, line, demonstrator.calls_a_turn)
            assert env.calls == [call for turn in planned for call in turn.calls]
            assert env.files[edit.path].decode() == edit.text.replace(edit.old_line, line)
            spoken = renderer.tokenizer.decode(written.tokens[written.action].tolist())
            assert all(turn.words in spoken for turn in planned)


@pytest.mark.parametrize("name", every())
def test_what_is_free_is_the_guess(name: str) -> None:
    """Candidates differ first where `free` begins; what it marks ends the words that they are guessed in."""
    renderer = any_renderer(name)
    demonstrator = Demonstrator(renderer, roomy())
    for edit in edits():
        written = [demonstrator.write(edit, line) for line in edit.candidates]
        if len(written) < 2:
            continue
        for one, part in zip(written, edit.fills, strict=True):
            assert not (one.free & ~one.action).any()
            guessed = renderer.tokenizer.decode(one.tokens[one.free].tolist())
            assert part.strip().endswith(guessed.strip()) or guessed.strip().startswith(part.strip()), (part, guessed)
        assert len({tuple(one.tokens[: np.flatnonzero(one.free)[0]].tolist()) for one in written}) == 1


@pytest.mark.parametrize("name", every())
def test_written_calls_are_read_back_whatever_their_arguments(name: str) -> None:
    """Or refused where the format cannot carry them, never written wrong. JSON formats carry everything."""
    renderer = any_renderer(name)
    prompt = renderer.prompt_ids(ASK, [PROBE_TOOL])
    json_formats = renderer.family in ("qwen", "llama3", "smollm2") or renderer.family == "gpt_oss"

    @given(st.lists(TEXT, min_size=1, max_size=renderer.calls_a_turn or 3), st.sampled_from(["", "I look.", "x\ny"]))
    @QUIET
    def check(paths: list[str], words: str) -> None:
        calls = [ToolCall("view", {"path": path}) for path in paths]
        try:
            ids = renderer.call_ids(calls, [PROBE_TOOL], before=prompt, words=words)
        except Unspeakable:
            assert not json_formats
            return
        assert renderer.parse(ids, before=prompt, cut=False, tools=[PROBE_TOOL]) == tuple(calls)
        assert ids[-1] in renderer.stop_ids
        assert not set(ids[:-1]) & set(renderer.stop_ids)
        begun = renderer.words_ids(words, before=prompt)
        assert words in renderer.tokenizer.decode(begun)

    check()


@pytest.mark.parametrize("name", every())
def test_a_special_token_in_an_argument_is_refused(name: str) -> None:
    renderer = any_renderer(name)
    for stop in renderer.stop_ids:
        path = "a" + renderer.tokenizer.decode([stop])
        with pytest.raises(Unspeakable, match="special token"):
            renderer.call_ids([ToolCall("view", {"path": path})], [PROBE_TOOL], before=renderer.prompt_ids(ASK, []))


@pytest.mark.parametrize("name", every())
def test_answers_end_once_and_spell_no_special_token(name: str) -> None:
    renderer = any_renderer(name)
    prompt = renderer.prompt_ids(ASK, [])
    added = set(renderer.tokenizer.added.values())
    frame = [one for one in renderer.answer_ids("x", before=prompt) if one in added]

    @given(st.lists(st.sampled_from(sorted(renderer.tokenizer.added)) | TEXT, min_size=1, max_size=4).map("".join))
    @QUIET
    def check(text: str) -> None:
        if split_thought(text)[0] is not None:
            return
        ids = renderer.answer_ids(text, before=prompt)
        assert [one for one in ids if one in added] == frame
        assert ids[-1] in renderer.stop_ids
        if "think>" not in text:  # a tag in the text makes what stands beside it a thought
            assert renderer.said(ids, before=prompt).strip() == text.strip()
        else:
            assert text.strip() in renderer.tokenizer.decode(ids)

    check()
    (missing,) = renderer.parse(renderer.answer_ids("Done.", before=prompt), before=prompt, cut=False, tools=[])
    assert isinstance(missing, CallError)
    assert missing.kind is CallErrorKind.MISSING


@pytest.mark.parametrize("name", every())
def test_a_leading_thought_of_an_answer_stays_a_thought(name: str) -> None:
    renderer = any_renderer(name)
    prompt = renderer.prompt_ids(ASK, [])
    ids = renderer.answer_ids("<think>\nHm, 2.\n</think>\n\nTwo.", before=prompt)
    assert renderer.said(ids, before=prompt).strip() == "Two."
    whole = renderer.tokenizer.decode([*prompt, *ids])
    assert whole.count("Hm, 2.") == 1
    if renderer.family != "gpt_oss":
        added = renderer.tokenizer.added
        assert whole[whole.rindex("Hm") :].split("Two.")[0] == "Hm, 2.\n</think>\n\n"
        assert "</think>" not in added or added["</think>"] in ids
        assert "<think>\n<think>" not in whole


def test_thoughts_are_split_off() -> None:
    assert split_thought("a <think>b</think> c") == (None, "a <think>b</think> c")
    assert split_thought("<think>\nb\n</think>\n\nc") == ("b", "c")
    assert split_thought("<think></think>c") == ("", "c")
    assert split_thought("<think>open") == (None, "<think>open")


def test_words_stand_inside_a_thought_that_the_prompt_opened() -> None:
    renderer = renderer_for(tokenizer("qwen3-thinking"))
    prompt = renderer.prompt_ids(ASK, [PROBE_TOOL])
    ids = renderer.call_ids([ToolCall("view", {"path": "a"})], before=prompt, words="I look.")
    assert renderer.action_text(ids).startswith("I look.\n</think>\n\n<tool_call>")


def test_presets_that_cannot_act_like_this_are_refused() -> None:
    renderer = any_renderer("smollm2")
    with pytest.raises(PresetError, match="lacks str_replace"):
        Demonstrator(renderer, load_preset("demo").model_copy(update={"tools": ("view", "submit")}))
    with pytest.raises(PresetError, match="mini: micro-SWE demonstrations call"):
        Demonstrator(renderer, load_preset("mini"))


def test_demonstrations_end_within_the_limits_or_the_preset_is_refused() -> None:
    renderer = any_renderer("smollm2")
    narrow = roomy("micro")
    sizes = [len(micro(renderer, narrow)(number)) for number in range(12)]
    limit = sorted(sizes)[4]
    cut = narrow.model_copy(update={"limits": narrow.limits.model_copy(update={"max_context": limit})})
    assert all(len(micro(renderer, cut)(number)) <= limit for number in range(12))
    short = narrow.model_copy(update={"limits": narrow.limits.model_copy(update={"max_turn_tokens": 20})})
    with pytest.raises(PresetError, match=r"micro: none of 200 .*max_turn_tokens is 20, and it takes"):
        micro(renderer, short)(0)


def micro(renderer: TemplateRenderer, preset: Preset):
    return micro_swe_demonstrations(Demonstrator(renderer, preset), split="train", tasks=50, seed=0)


def test_one_call_a_turn_submits_in_a_turn_of_its_own() -> None:
    edit = edits()[0]
    names = [[call.name for call in turn.calls] for turn in turns_of(edit, edit.candidates[0], 1)]
    assert names == [["view"], ["str_replace"], ["submit"]]
    assert Turn("", (ToolCall("view", {"path": edit.path}),)) == turns_of(edit, edit.candidates[0])[0]
    demo = load_preset("demo")
    assert Demonstrator(any_renderer("smollm2"), demo.model_copy(update={"max_calls": 1})).calls_a_turn == 1
