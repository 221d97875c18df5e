"""A tiny random Qwen3 model, a tiny BPE tokenizer with a Qwen-style chat template, and a world of a few files."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

TEMPLATE = r"""
{%- if messages[0].role == 'system' %}{% set first = messages[0].content %}{% endif %}
{%- if tools %}
{{- '<|im_start|>system\n' + (first + '\n\n' if first else '') + 'Tools:' }}
{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- elif first %}{{ '<|im_start|>system\n' + first + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '' if loop.previtem.role == 'tool' else '<|im_start|>user' }}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{{- '' if loop.nextitem and loop.nextitem.role == 'tool' else '<|im_end|>\n' }}
{%- elif message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '' if loop.first and not message.content else '\n' }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    corpus = ['{"name": "view", "arguments": {"path": "shop/cart.py"}}', "def total(items):\n    return sum(items)\n"]
    corpus += ["You fix bugs.", "system user assistant tool_call tool_response name arguments path old_str new_str"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(corpus * 20, trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_config():
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,  # far from uniform, so that a wrong context shows in the log-probabilities
    )


@pytest.fixture
def make_model(tiny_config):
    """make_model(seed) → a random model; equal seeds give equal weights."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)

    def make(seed: int = 0, **changes: object):
        torch.manual_seed(seed)
        config = type(tiny_config)(**{**tiny_config.to_dict(), **changes})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms start as ones: a mixed-up one would not show
                parameter.data.add_(torch.randn_like(parameter) * 0.3)
        return model

    return make


@pytest.fixture(scope="session")
def renderer(tokenizer_folder):
    from agent.renderers.qwen import QwenRenderer
    from agent.tokenizer import load_tokenizer

    return QwenRenderer(load_tokenizer(tokenizer_folder))


@pytest.fixture(scope="session")
def World():
    """An environment over a dict of files, with the envs package's own texts; faults and delays by phase."""
    import asyncio

    from envs.environment import Environment, Grade, Observation
    from envs.tools import text
    from envs.tools.schema import SCHEMAS

    class World(Environment):
        tools = tuple(SCHEMAS.values())

        def __init__(self, files=None, faults=None, delays=None, problem="total() is wrong.") -> None:
            self.files = dict(files or {"a.py": b"x = 1\n"})
            self.faults, self.delays, self.problem = faults or {}, delays or {}, problem
            self.calls, self.closed, self.graded = [], 0, 0
            self.when_busy = lambda: None

        async def _phase(self, phase: str) -> None:
            if phase in self.delays:
                self.when_busy()
                await asyncio.sleep(self.delays[phase])
            if phase in self.faults:
                raise self.faults[phase]

        async def reset(self) -> str:
            await self._phase("reset")
            return self.problem

        async def step(self, call) -> Observation:
            self.calls.append(call)
            await self._phase("step")
            if call.name == "submit":
                return Observation(text.SUBMITTED, done=True)
            data = self.files.get(call.arguments["path"])
            if data is None:
                return Observation(text.error_text("no_such_file", call.arguments["path"]), error="no_such_file")
            if call.name == "view":
                return Observation(text.view_text(data))
            edited = text.replace_once(
                call.arguments["path"], data, call.arguments["old_str"], call.arguments["new_str"]
            )
            self.files[call.arguments["path"]] = edited
            return Observation(text.edited_text(call.arguments["path"]))

        async def grade(self) -> Grade:
            self.graded += 1
            await self._phase("grade")
            return Grade(float(self.files.get("a.py") == b"x = 2\n"), {"files": len(self.files)}, b"diff")

        async def close(self) -> None:
            self.closed += 1

    return World
