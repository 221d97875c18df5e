"""Which renderer speaks for a tokenizer: the family that its special tokens and template name, else the generic one.

Before a family's renderer is handed out it proves itself on the tokenizer's own template: two rounds of calls and
results, built by appending, must have the ids that the template gives the whole conversation. A fine-tune that changed
the template is so either served by the generic renderer or refused with the reason, never misread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.renderers import deepseek, gpt_oss, llama, qwen
from agent.renderers.deepseek import DeepSeekRenderer
from agent.renderers.frames import PATHS, SAY, TOOL, NotAppendOnly, result, turn
from agent.renderers.generic import GenericRenderer
from agent.renderers.glm import OBSERVATION, GlmRenderer
from agent.renderers.gpt_oss import GptOssRenderer
from agent.renderers.llama import LlamaRenderer
from agent.renderers.qwen import QwenRenderer
from agent.renderers.qwen_coder import QwenCoderRenderer
from agent.renderers.smollm2 import SmolLM2Renderer
from agent.renderers.template import PROBE_TOOL, RendererRefused, TemplateRenderer
from agent.tokenizer import Tokenizer


@dataclass(frozen=True)
class Family:
    kind: type[TemplateRenderer]
    tokens: tuple[str, ...]
    """Added tokens that its tokenizers have."""
    speaks: Callable[[str], bool]
    """Whether a chat template is this family's."""


FAMILIES: tuple[Family, ...] = (
    Family(GptOssRenderer, (gpt_oss.START, gpt_oss.CHANNEL, gpt_oss.CALL), lambda text: True),
    Family(GlmRenderer, (OBSERVATION, "<|user|>", "[gMASK]"), lambda text: "<arg_key>" in text),
    Family(DeepSeekRenderer, (deepseek.USER, deepseek.OUTPUT_BEGIN, deepseek.END), lambda text: "DSML" not in text),
    Family(LlamaRenderer, (llama.HEADER, llama.END), lambda text: True),
    Family(QwenCoderRenderer, (qwen.START, qwen.END), lambda text: "<function=" in text),
    Family(QwenRenderer, (qwen.START, qwen.END), lambda text: "<tool_call>" in text),
    Family(SmolLM2Renderer, (qwen.START, qwen.END), lambda text: "tool" not in text),
)
"""The first that fits is taken."""


def renderer_for(tokenizer: Tokenizer, *, thinking: bool | None = None) -> TemplateRenderer:
    """Raises RendererRefused, whose text says what in the chat template stands in the way."""
    tried = ""
    for family in FAMILIES:
        if all(name in tokenizer.added for name in family.tokens) and family.speaks(tokenizer.chat_template):
            try:
                why = disagreement(family.kind(tokenizer))
            except RendererRefused as error:
                why = str(error)
            if not why:
                return family.kind(tokenizer, thinking=thinking)
            tried = f" (tried as {family.kind.family}: {why})"
            break
    try:
        why = disagreement(GenericRenderer(tokenizer))
        if why:
            raise NotAppendOnly(f"{tokenizer.folder}: no renderer for this model: {why}")
        return GenericRenderer(tokenizer, thinking=thinking)
    except RendererRefused as error:
        raise type(error)(f"{error}{tried}") from error


def disagreement(renderer: TemplateRenderer, rounds: int = 2) -> str:
    """What the template does otherwise than the renderer, for a plain conversation; empty when nothing. Compared are
    rounds of calls and results, or of user messages where the template knows no tools."""
    if isinstance(renderer, DeepSeekRenderer):
        return _compare_results(renderer)
    shapes = [turn(1), turn(1, thought="Hm."), turn(1, as_text=True), turn(1, thought="Hm.", as_text=True)]
    if not renderer.template_shows_tools:
        shapes = [turn(0, SAY)]
    refusal: RendererRefused | None = None
    for said in shapes:
        try:
            return _compare(renderer, said, rounds)
        except RendererRefused as error:
            refusal = refusal or error
    return str(refusal)


def _compare(renderer: TemplateRenderer, said: dict[str, Any], rounds: int) -> str:
    tokenizer, calls = renderer.tokenizer, "tool_calls" in said
    tools = [PROBE_TOOL] if calls else []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Ask."}]
    ours = renderer.prompt_ids(messages, tools)
    for number in range(rounds):
        before, text = len(ours), f"found {number}"
        messages += [said, result(text) if calls else {"role": "user", "content": text}]
        whole = tokenizer.encode_marked(renderer.template_text(messages, tools))
        end = next((at for at in range(before, len(whole)) if whole[at] in renderer.stop_ids), None)
        if whole[:before] != ours or end is None:
            raise RendererRefused(_first(tokenizer, ours, whole))
        ours += whole[before : end + 1]
        ours += (
            renderer.observation_ids([text], whole[end], [TOOL]) if calls else renderer.message_ids(text, whole[end])
        )
        if whole != ours:
            return _first(tokenizer, ours, whole)
        if (PATHS[0] if calls else SAY) not in tokenizer.decode(whole[before:end]):
            return "its template leaves out what the model said"
    return ""


def _compare_results(renderer: DeepSeekRenderer) -> str:
    """The results of one round: more its templates do not lay out the same way twice (see `deepseek`)."""
    whole, refusal = "", ""
    for content in (None, ""):  # V3 takes a call only without text, later ones only with
        call = {**turn(1, as_text=True), "content": content}
        try:
            whole = whole or renderer.template_text([{"role": "user", "content": "Ask."}, call, result("found")])
        except RendererRefused as error:
            refusal = str(error)
    if not whole:
        return refusal
    ours = renderer.tokenizer.decode(renderer.observation_ids(["found"], renderer.stop_ids[0], [TOOL]))
    if not whole.endswith(ours):
        return f"its template ends results with {whole[-len(ours) :]!r}, the family with {ours!r}"
    return ""


def _first(tokenizer: Tokenizer, ours: list[int], whole: list[int]) -> str:
    at = next((i for i, (one, other) in enumerate(zip(ours, whole, strict=False)) if one != other), None)
    at = min(len(ours), len(whole)) if at is None else at
    return (
        f"behind {tokenizer.decode(ours[max(0, at - 8) : at])!r} its template prints "
        f"{tokenizer.decode(whole[at : at + 12])!r}, the family {tokenizer.decode(ours[at : at + 12])!r}"
    )
