"""A byte-level tokenizer with any special tokens and chat template: layouts without the family's own vocabulary."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable

from agent.tokenizer import Tokenizer, load_tokenizer

_SPELLED = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[gMASK\]|<sop>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value)>"
)


def stand_in(template: str, stop: str, more: Iterable[str] = ()) -> Tokenizer:
    """`stop` is the end token; the special tokens are those that the template spells, and `more`."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Core
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Core(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    names = sorted({*_SPELLED.findall(template), stop, *more})
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=stop, bos_token=names[0], chat_template=template)
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return load_tokenizer(folder)
