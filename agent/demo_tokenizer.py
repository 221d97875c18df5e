"""Builds the demo policy's tokenizer: a real Hugging Face fast tokenizer with a tool-calling chat template.

Promises:
* byte-level BPE: every text round-trips byte for byte, whatever it was trained on;
* deterministic: the same texts in any order give the same `tokenizer.json`;
* a word of the training texts is one token with and without a leading space, line breaks keep their indentation in
  one token, and the fixed frames of the tool protocol are one token each, so that an episode stays short;
* the chat template is Qwen-style (`<|im_start|>role\\n...<|im_end|>\\n`); its tool list comes from the JSON schemas.

`python -m agent.demo_model` uses it.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (PAD, "<|im_start|>", END_OF_TURN)
"""Never part of decoded text with `skip_special_tokens`."""

TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""One id each, but ordinary text when decoded: the parser reads them."""

FRAME_TOKENS = (
    '{"name": "view", "arguments": {"path": "',
    '{"name": "str_replace", "arguments": {"path": "',
    '", "old_str": "',
    '", "new_str": "',
    '{"name": "submit", "arguments": {}}',
    '"}}',
)
"""What every call repeats. Each is one id, so an episode has some 40 action tokens instead of 150."""

SPLIT = r"""[\r\n]+ *| {2,}|\.py(?!\p{L})| ?\p{L}+|\p{N}| ?(?:"{3}|//|[<>=!]=|[^\s\p{L}\p{N}])|\s"""
"""Pre-tokens: a line break with the next line's indentation, a suffix .py, a word with at most one space, one digit,
one sign (or Python's signs of two and three). Not runs of signs: a bracket closes the same way after `))` as after `)`,
and a run that no training text shows, such as `)])`, would be bytes that the policy has never met."""

CHAT_TEMPLATE = r"""
{%- set ns = namespace(system='') -%}
{%- if messages and messages[0].role == 'system' -%}
    {%- set ns.system = messages[0].content -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- if ns.system -%}{%- set ns.system = ns.system + '\n' -%}{%- endif -%}
    {%- for tool in tools -%}
        {%- set function = tool.function if tool.function is defined else tool -%}
        {%- set ns.system = ns.system + ('' if loop.first else ' ') + function.name
            + '(' + (function.parameters.required | default([]) | join(', ')) + ')' -%}
    {%- endfor -%}
{%- endif -%}
{%- if ns.system -%}{{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n' -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function if call.function is defined else call -%}
            {{- '' if loop.first and not message.content else '\n' -}}
            {{- '<tool_call>\n{"name": ' + (function.name | tojson) + ', "arguments": ' -}}
            {{- function.arguments if function.arguments is string else function.arguments | tojson -}}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

_WORD = re.compile(r"[^\W\d_]+")
_PROMPT_WORDS = "system user assistant tool You fix bugs. view(path) str_replace(path, old_str, new_str) submit()"
_BUILTINS = (
    "self bool int str float list dict set tuple len max min sum abs round sorted range any all __init__ unittest"
)
_PYTHON_WORDS = " ".join((*keyword.kwlist, _BUILTINS))
_LINE_BREAKS = tuple("\n" * breaks + " " * indent + "x" for breaks in (1, 2, 3) for indent in (0, 4, 8))
_FIXED_TEXTS = (_PROMPT_WORDS, _PYTHON_WORDS, *_LINE_BREAKS)
"""What every demo prompt and every Python file has, whatever the training texts are."""


class VocabularyError(ValueError):
    """The texts have more words than the vocabulary has room for."""


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train on `texts`: every word, sign run and line break that occurs becomes one token, rare or common.

    Raises VocabularyError when they do not fit into `vocab_size`. Fewer entries than `vocab_size` are fine.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    entries = sorted(pre_tokenizers.ByteLevel.alphabet())
    for unit in _units([*texts, *_FIXED_TEXTS]):
        [(entry, _)] = to_bytes.pre_tokenize_str(unit)
        entries.append(entry)
    room = vocab_size - len(SPECIAL_TOKENS) - len(TAG_TOKENS) - len(FRAME_TOKENS)
    if len(entries) > room:
        raise VocabularyError(
            f"{len(entries)} bytes, words and signs do not fit into a vocabulary of {vocab_size} with room for {room}: "
            "raise vocab_size or use fewer names."
        )
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    # Whole pre-tokens are looked up first; anything else falls back to bytes. Frequency-driven merges would spend
    # half of so small a vocabulary on inner pieces that no text ever shows.
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False), to_bytes]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*TAG_TOKENS, *FRAME_TOKENS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="right",
    )
    tokenizer.chat_template = CHAT_TEMPLATE.strip()
    return tokenizer


def _units(texts: Iterable[str]) -> list[str]:
    """Sorted: every pre-token that is to be one token. Words come with and without the space before."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False)
    units: set[str] = set()
    for text in texts:
        for unit, _ in split.pre_tokenize_str(text):
            word = unit.removeprefix(" ")
            if _WORD.fullmatch(word):
                units.update((word, " " + word))
            elif unit.isascii():
                units.add(unit)
    return sorted(unit for unit in units if len(unit.encode()) > 1)
