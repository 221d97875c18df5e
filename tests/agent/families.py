"""One renderer of every family, on its official tokenizer where a registry has that, else on a stand-in vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from agent.renderers.choose import renderer_for
from agent.renderers.template import TemplateRenderer
from agent.tokenizer import Tokenizer
from tests.agent.official import templates, tokenizer
from tests.agent.stand_in import stand_in

GLM = ("<|endoftext|>", "<|observation|>", "<|user|>", "<|assistant|>", "<|system|>")
FAMILIES = {
    "qwen3": "qwen",
    "qwen3-thinking": "qwen",
    "qwen3-coder": "qwen_coder",
    "qwen3.5": "generic",
    "llama3.1": "llama3",
    "gpt-oss": "gpt_oss",
}
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def glm(name: str) -> Tokenizer:
    return stand_in(templates()[name], "<|endoftext|>", GLM)


def every() -> list[Any]:
    names = [*FAMILIES, "llama3", "deepseek-v3", "deepseek-v3-0324", "deepseek-v3.1", "GLM-4.6", "glm-5", "smollm2"]
    return [pytest.param(name, id=name) for name in names]


def any_renderer(name: str) -> TemplateRenderer:
    if name == "smollm2":
        return renderer_for(stand_in(SMOLLM2, "<|im_end|>"))
    return renderer_for(glm(name) if name.lower().startswith("glm") else tokenizer(name))
