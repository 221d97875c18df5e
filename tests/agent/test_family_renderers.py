"""Every family against its official template and, where a registry has it, its official tokenizer: golden ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.parsers import CallError, CallErrorKind, Parsed
from agent.renderers.choose import renderer_for
from agent.renderers.template import DAY, PROBE_TOOL, TemplateRenderer
from agent.tokenizer import Tokenizer
from envs.environment import ToolCall
from tests.agent.families import FAMILIES, SMOLLM2, any_renderer, every, glm
from tests.agent.official import tokenizer
from tests.agent.stand_in import stand_in

SYSTEM = {"role": "system", "content": "You fix bugs."}
ASK = {"role": "user", "content": "total() is wrong."}
RESULTS = ["def total():\n    return 1", "\n\n  indented\n\n", "é 🐍 \u2028 x", '{"a": "b\\n"}']
CALL = ToolCall("view", {"path": "shop/cart.py"})


def official(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: list[Any]) -> list[int]:
    """The whole conversation as transformers makes it, without anything of ours."""
    made = tokenizer.hf.apply_chat_template(
        messages,
        tools=tools or None,
        add_generation_prompt=True,
        return_dict=False,
        date_string=DAY.strftime("%d %b %Y"),
        strftime_now=DAY.strftime,
    )
    return list(made)


def said(text: str = "", thought: str = "", as_text: bool = False) -> dict[str, Any]:
    arguments: Any = dict(CALL.arguments)
    call = {
        "type": "function",
        "function": {"name": CALL.name, "arguments": json.dumps(arguments) if as_text else arguments},
    }
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [call],
        **({"reasoning_content": thought} if thought else {}),
    }


def golden(renderer: TemplateRenderer, rounds: list[tuple[dict[str, Any], str]]) -> list[int]:
    """Prompt, the template's own turns and our observations are the template's ids of the whole, after every round.
    Returns the ids of the last turn."""
    messages: list[dict[str, Any]] = [SYSTEM, ASK]
    ours = renderer.prompt_ids(messages, [PROBE_TOOL])
    assert ours == official(renderer.tokenizer, messages, [PROBE_TOOL])
    turn: list[int] = []
    for assistant, result in rounds:
        messages = [*messages, assistant, {"role": "tool", "content": result}]
        whole = official(renderer.tokenizer, messages, [PROBE_TOOL])
        end = next(at for at in range(len(ours), len(whole)) if whole[at] in renderer.stop_ids)
        turn = whole[len(ours) : end + 1]
        before = ours
        ours = [*ours, *turn, *renderer.observation_ids([result], turn[-1], ["view"])]
        decode = renderer.tokenizer.decode
        assert ours == whole, f"{decode(ours)}\n--- the template:\n{decode(whole)}"
        assert renderer.parse(turn, before=before, cut=False, tools=[PROBE_TOOL]) == (CALL,)
    return turn


@pytest.mark.parametrize("name", FAMILIES)
def test_golden_with_the_official_tokenizer(name: str) -> None:
    renderer = renderer_for(tokenizer(name))
    assert renderer.family == FAMILIES[name]
    thought = "Hm." if renderer.generation_text.rstrip().endswith("<think>") else ""
    # qwen3.5's template trims results; here they stay whole.
    results = [result for result in RESULTS if name != "qwen3.5" or result == result.strip()]
    golden(renderer, [(said(thought=thought), result) for result in results])


@pytest.mark.parametrize("name", ["GLM-4.6", "GLM-4.7", "glm-5"])
def test_golden_glm_on_a_stand_in_vocabulary(name: str) -> None:
    """No registry has GLM's tokenizer: the layout is the official one, the ids are a byte vocabulary's."""
    renderer = renderer_for(glm(name))
    assert renderer.family == "glm"
    thought = "Hm." if renderer.generation_text.endswith("<think>") else ""
    turn = golden(renderer, [(said(thought=thought), result) for result in RESULTS])
    assert renderer.tokenizer.decode([turn[-1]]) == "<|observation|>"


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3-0324", "deepseek-v3.1"])
@pytest.mark.parametrize("result", RESULTS)
def test_golden_deepseek_for_one_round(name: str, result: str) -> None:
    """Its templates print later rounds otherwise than the first (V3) and leave the end of one call out: see the
    renderer. What follows the calls is compared."""
    renderer = renderer_for(tokenizer(name))
    assert renderer.family == "deepseek"
    content = None if name == "deepseek-v3" else ""
    whole = official(
        renderer.tokenizer,
        [ASK, {**said(as_text=name != "deepseek-v3.1"), "content": content}, {"role": "tool", "content": result}],
        [],
    )
    end = renderer.stop_ids[0]
    observation = renderer.observation_ids([result], end, ["view"])
    assert whole[-len(observation) :] == observation
    prompt = renderer.prompt_ids([ASK], [])
    if name != "deepseek-v3.1":  # the collection's copy of that template prints stray white space here
        assert whole[: len(prompt)] == prompt
    begin = whole.index(renderer.tokenizer.added_id("<｜tool▁calls▁begin｜>"))
    turn = [*whole[begin : -len(observation)], end]
    assert renderer.parse(turn, before=[], cut=False, tools=[PROBE_TOOL]) == (CALL,)
    listed = renderer.tokenizer.decode(renderer.prompt_ids([SYSTEM, ASK], [PROBE_TOOL]))
    assert "view" in listed
    assert "<｜tool▁call▁begin｜>" in listed


def test_smollm2_has_tools_in_the_system_message_and_results_as_the_user() -> None:
    renderer = renderer_for(stand_in(SMOLLM2, "<|im_end|>", ["<|endoftext|>"]))
    assert renderer.family == "smollm2"
    prompt = renderer.tokenizer.decode(renderer.prompt_ids([ASK], [PROBE_TOOL]))
    assert prompt.startswith("<|im_start|>system\n# Tools")
    assert "SmolLM, trained" in renderer.tokenizer.decode(renderer.prompt_ids([ASK], []))
    assert renderer.prompt_ids([SYSTEM, ASK], []) == official(renderer.tokenizer, [SYSTEM, ASK], [])
    ids = renderer.observation_ids(["a", "b"], renderer.stop_ids[0], ["view", "view"])
    text = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    messages = [SYSTEM, ASK, {"role": "assistant", "content": "x"}, {"role": "user", "content": text}]
    whole = official(renderer.tokenizer, messages, [])
    assert whole[-len(ids) :] == ids


def read(renderer: TemplateRenderer, text: str, *, before: list[int] | None = None, cut: bool = False) -> Parsed:
    ids = renderer.action_ids(text)
    return renderer.parse(ids[:-1] if cut else ids, before=before or [], cut=cut, tools=[PROBE_TOOL])


@pytest.mark.parametrize("name", every())
def test_a_written_call_is_read_back_and_special_tokens_in_results_stay_text(name: str) -> None:
    renderer = any_renderer(name)
    forged = "".join(renderer.tokenizer.added)
    call = ToolCall("view", {"path": forged if renderer.family not in ("qwen_coder", "glm", "generic") else "a b\n{}"})
    spelled = renderer.spell([call], [PROBE_TOOL])
    if renderer.family in ("deepseek", "gpt_oss"):
        # Written out, the path's own spellings would become tokens: only the sampled ones count.
        spelled = renderer.spell([CALL], [PROBE_TOOL])
        call = CALL
    assert read(renderer, spelled) == (call,)
    added = set(renderer.tokenizer.added.values())
    for names in (["view"], [None]):
        plain = renderer.observation_ids(["x"], None, names)
        ids = renderer.observation_ids([forged], None, names)
        assert sum(one in added for one in ids) == sum(one in added for one in plain)
        decoded = renderer.tokenizer.decode(ids)
        assert forged in decoded or json.dumps(forged, ensure_ascii=False) in decoded
    message = renderer.message_ids(forged, renderer.stop_ids[0]) if name != "qwen3.5" else ids
    assert forged in renderer.tokenizer.decode(message)


@pytest.mark.parametrize("name", every())
def test_turns_without_a_call_and_cut_turns_are_named(name: str) -> None:
    renderer = any_renderer(name)
    (missing,) = read(renderer, "I am done.")
    assert isinstance(missing, CallError)
    assert missing.kind is CallErrorKind.MISSING
    spelled = renderer.action_ids(renderer.spell([CALL], [PROBE_TOOL]))[:-1]
    end = len(spelled) - (2 if renderer.family in ("deepseek", "glm") else 1)
    for size in range(1, end):
        for item in renderer.parse(spelled[:size], before=[], cut=True, tools=[PROBE_TOOL]):
            assert isinstance(item, CallError), f"{size} of {len(spelled)} tokens gave {item}"
            assert item.kind is CallErrorKind.CUT_BY_LENGTH
        for item in renderer.parse([*spelled[:size], renderer.stop_ids[-1]], before=[], cut=False, tools=[PROBE_TOOL]):
            assert isinstance(item, CallError), f"{size} of {len(spelled)} tokens gave {item}"


@pytest.mark.parametrize("name", every())
def test_every_ending_of_a_turn_is_closed_once(name: str) -> None:
    """Whatever ended the turn, the ids between it and the next one are the same but for the missing end."""
    renderer = any_renderer(name)
    ended = renderer.observation_ids(["r"], renderer.stop_ids[0], ["view"])
    cut = renderer.observation_ids(["r"], None, ["view"])
    closing = cut[: len(cut) - len(ended)]
    assert cut == [*closing, *ended]
    assert renderer.tokenizer.decode(closing) in ("<|end|>", renderer.tokenizer.decode([renderer.stop_ids[0]]))
    user = renderer.message_ids("m", renderer.stop_ids[0]) if name != "qwen3.5" else ended
    assert renderer.tokenizer.decode(user).count("m") >= 1
    with pytest.raises(ValueError, match="at least one"):
        renderer.observation_ids([], None)


def test_thinking_models_begin_inside_a_thought() -> None:
    renderer = renderer_for(tokenizer("qwen3-thinking"))
    prompt = renderer.prompt_ids([ASK], [PROBE_TOOL])
    assert renderer.in_thought(prompt)
    call = renderer.spell([CALL])
    assert read(renderer, f"maybe {call}\n</think>\n\n", before=prompt) == (
        CallError(CallErrorKind.MISSING, read(renderer, "")[0].message),
    )
    assert read(renderer, f"hm\n</think>\n\n{call}", before=prompt) == (CALL,)
    assert renderer.in_thought(renderer.observation_ids(["r"], renderer.stop_ids[0], ["view"]))
    plain = renderer_for(tokenizer("qwen3"))
    assert not plain.in_thought(plain.prompt_ids([ASK], [PROBE_TOOL]))
    off = renderer_for(tokenizer("qwen3"), thinking=False)
    ids = off.prompt_ids([ASK], [PROBE_TOOL])
    assert off.tokenizer.decode(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not off.in_thought(ids)
    assert off.tokenizer.decode(off.observation_ids(["r"], off.stop_ids[0])).endswith("<think>\n\n</think>\n\n")


def test_deepseek_results_open_no_thought_but_user_messages_do() -> None:
    renderer = renderer_for(tokenizer("deepseek-v3.1"), thinking=True)
    assert renderer.in_thought(renderer.prompt_ids([ASK], []))
    assert not renderer.in_thought(renderer.observation_ids(["r"], renderer.stop_ids[0], ["view"]))
    assert renderer.in_thought(renderer.observation_ids(["no call"], renderer.stop_ids[0], [None]))


def test_sampled_special_tokens_end_a_call_and_spelled_ones_do_not() -> None:
    for name, text in (("gpt-oss", "<|call|><|end|><|message|>"), ("deepseek-v3", "<｜tool▁call▁end｜><｜tool▁sep｜>")):
        renderer = renderer_for(tokenizer(name))
        spelled = renderer.spell([ToolCall("view", {"path": "HERE"})])
        before, after = spelled.split("HERE")
        marked = renderer.tokenizer.encode_marked
        ids = [*marked(before), *renderer.tokenizer.encode_text(text), *marked(after)]
        assert renderer.parse(ids, before=[], cut=False, tools=[]) == (ToolCall("view", {"path": text}),)
        items = read(renderer, f"{before}{text}{after}")
        assert all(isinstance(item, CallError) for item in items)


def test_gpt_oss_reads_only_messages_to_functions() -> None:
    renderer = renderer_for(tokenizer("gpt-oss"))
    call = renderer.spell([CALL])
    thought = "<|channel|>analysis<|message|>I could call view({}) now<|end|><|start|>assistant"
    assert read(renderer, thought + call) == (CALL,)
    official_way = ' to=functions.view<|channel|>commentary json<|message|>{"path": "shop/cart.py"}<|call|>'
    assert read(renderer, official_way) == (CALL,)
    final = "<|channel|>final<|message|>Done.<|return|>"
    (missing,) = read(renderer, thought + final)
    assert isinstance(missing, CallError)
    ids = renderer.action_ids(thought + final)
    assert renderer.said(ids, before=[]) == "Done."
    (wrong,) = read(renderer, '<|channel|>commentary to=browser.open<|message|>{"id": 1}<|call|>')
    assert isinstance(wrong, CallError)
    assert wrong.kind is CallErrorKind.BAD_FORMAT


def test_glm_answers_where_the_turn_ended() -> None:
    renderer = renderer_for(glm("GLM-4.6"))
    observation, user, last = renderer.stop_ids
    decode = renderer.tokenizer.decode
    reply = "\n<tool_response>\nr\n</tool_response><|assistant|>"
    assert decode(renderer.observation_ids(["r"], observation, ["view"])) == reply
    assert decode(renderer.observation_ids(["r"], last, ["view"])) == "<|observation|>" + reply
    assert decode(renderer.observation_ids(["r"], user, [None])) == "\nr<|assistant|>"
    assert decode(renderer.message_ids("m", observation)) == "<|user|>\nm<|assistant|>"


def test_prompts_do_not_depend_on_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpt-oss", "llama3.1"):
        text = renderer_for(tokenizer(name)).template_text([ASK])
        assert "2024-07-26" in text or "26 Jul 2024" in text
