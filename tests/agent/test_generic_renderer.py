"""The generic renderer and the choice of a renderer: frames off the template, and refusals that say what goes back."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from agent.renderers.choose import renderer_for
from agent.renderers.fenced import FencedRenderer
from agent.renderers.frames import NotAppendOnly
from agent.renderers.generic import GenericRenderer
from agent.renderers.qwen import QwenRenderer
from agent.renderers.template import PROBE_TOOL, RendererRefused
from agent.tokenizer import load_tokenizer
from envs.environment import ToolCall
from tests.agent.official import templates
from tests.agent.stand_in import stand_in

# A format that is nobody's: <|turn|>role:… <|over|>, results as <|turn|>result:…
OWN = r"""
{%- if tools %}{{ '<|turn|>tools:' + (tools | tojson) + '<|over|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<|turn|>result:' + message.content + '<|over|>' }}
{%- else %}{{ '<|turn|>' + message.role + ':' + (THOUGHT) + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}{{ '<|over|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant:' }}{% endif %}"""


def own(thought: str = "''", template: str = OWN):
    return stand_in(template.replace("THOUGHT", thought), "<|over|>")


def test_an_unknown_format_is_read_off_its_template() -> None:
    renderer = renderer_for(own())
    assert isinstance(renderer, GenericRenderer)
    assert renderer.format.name == "hermes"
    decode = renderer.tokenizer.decode
    over = renderer.tokenizer.added_id("<|over|>")
    two = renderer.observation_ids(["a", "<|over|>"], over, ["view", "view"])
    assert decode(two) == "<|turn|>result:a<|over|><|turn|>result:<|over|><|over|><|turn|>assistant:"
    assert two.count(over) == 2
    assert decode(renderer.observation_ids(["a"], None)) == "<|over|><|turn|>result:a<|over|><|turn|>assistant:"
    assert decode(renderer.message_ids("m", over)) == "<|turn|>user:m<|over|><|turn|>assistant:"
    call = ToolCall("view", {"path": "a"})
    ids = renderer.action_ids(renderer.spell([call]))
    assert renderer.parse(ids, before=[], cut=False, tools=[PROBE_TOOL]) == (call,)
    assert "view" in decode(renderer.prompt_ids([{"role": "user", "content": "Q"}], [PROBE_TOOL]))


def test_a_template_that_drops_thoughts_is_refused_with_the_reason() -> None:
    dropping = OWN.replace("(message.content or '')", "(message.content or '').split('</think>')[-1]")
    with pytest.raises(NotAppendOnly, match="drops the thoughts of earlier turns"):
        renderer_for(own(template=dropping))
    # One that keeps them, also as a field of their own, is served.
    assert renderer_for(
        own("('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')")
    )


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_difference() -> None:
    last_only = OWN.replace("'<|turn|>' + message.role", "('<|turn|>' if loop.last else '<|past|>') + message.role")
    with pytest.raises(NotAppendOnly, match=r"not append-only: at the first turn, behind .* it prints 'past\|>user"):
        renderer_for(own(template=last_only))
    counting = OWN.replace("<|turn|>result:'", "<|turn|>result ' + (messages | length | string) + ':'")
    with pytest.raises(NotAppendOnly, match="at turn 2"):
        renderer_for(own(template=counting))


def test_thoughts_dropped_only_behind_user_messages_leave_tool_calls_and_refuse_plain_messages() -> None:
    name = "qwen3.6"
    renderer = renderer_for(stand_in(templates()[name], "<|im_end|>"))
    assert isinstance(renderer, GenericRenderer)
    assert renderer.format.name == "qwen_xml"
    with pytest.raises(RendererRefused, match=r"without tool calls: .*not append-only"):
        FencedRenderer(renderer)


def test_other_refusals_say_what_is_missing() -> None:
    with pytest.raises(RendererRefused, match="no token that ends a generation"):
        renderer_for(own(template=OWN.replace("<|over|>", "\\n")))
    with pytest.raises(RendererRefused, match="a format that no parser reads: '<call>view"):
        renderer_for(
            own(
                template=OWN.replace(
                    '<tool_call>{"name": "\' + call.function.name + \'"', "<call>' + call.function.name + '{"
                )
            )
        )
    with pytest.raises(RendererRefused, match="fails on the roles user"):
        renderer_for(own(template="{{ raise_exception('no chat today') }}"))


def test_end_tokens_of_generation_config_count_too(tmp_path) -> None:
    tokenizer = own()
    tokenizer.hf.save_pretrained(tmp_path)
    turn = tokenizer.added_id("<|turn|>")
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.added_id("<|over|>"), turn]})
    )
    assert renderer_for(load_tokenizer(tmp_path)).stop_ids == (tokenizer.added_id("<|over|>"), turn)


def test_a_family_whose_template_was_changed_falls_back_to_the_generic_one(tokenizer_folder) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    assert type(renderer_for(tokenizer)) is QwenRenderer
    changed = tokenizer.chat_template.replace("'\\n<tool_response>\\n'", "'\\nRESULT '")
    assert changed != tokenizer.chat_template
    made = renderer_for(stand_in(changed, "<|im_end|>", tokenizer.added))
    assert isinstance(made, GenericRenderer)
    assert "RESULT r\n</tool_response>" in made.tokenizer.decode(made.observation_ids(["r"], None, ["view"]))


def test_templates_of_the_collection_are_served_or_refused_with_a_reason() -> None:
    expected = {
        "qwen3": "qwen", "Qwen3-Thinking": "qwen", "qwen2.5-instruct": "qwen", "QwQ-32B": "it prints",
        "Qwen3-Coder": "qwen_coder", "qwen3.5": "generic", "qwen3.8": "generic", "GLM-4.6": "glm", "glm-5.3": "glm",
        "llama-3.1-instruct": "llama3", "llama-3-instruct": "llama3", "deepseek-r1-0528": "deepseek",
        "DeepSeek-V3.2": "it prints", "Kimi-K2.5": "format that no parser reads", "gemma-3-it": "generic",
        "mistral-instruct-v0.2": "generic", "mistral-nemo-instruct": "format that no parser reads",
        "phi-3-mini-4k-instruct": "generic", "Yi-1.5-chat": "smollm2", "MiniMax-M2": "no token that ends",
    }  # fmt: skip
    ends = ("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "<end_of_turn>", "<|end|>", "<|endoftext|>")
    for name, wanted in expected.items():
        template = templates()[name]
        stop = next((end for end in ends if end in template), "</s>")
        more = ("<|endoftext|>", "<|observation|>", "<|user|>") if name.lower().startswith("glm") else ()
        got = served(template, stop, more)
        assert wanted == got or wanted in got.partition(":")[2], f"{name}: {got}"


def served(template: str, stop: str, more: Iterable[str]) -> str:
    """The family, or the refusal behind a colon."""
    try:
        return renderer_for(stand_in(template, stop, more)).family
    except RendererRefused as error:
        return f"refused: {error}"
