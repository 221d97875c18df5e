"""A Hugging Face tokenizer read from a folder, offline, with a fingerprint that says which ids a trajectory holds.

Promises: the ids are those of tokenizer.json as it stands (no class from a model family rebuilds it); `encode_text`
never yields a special or added token, whatever the text says; equal fingerprints mean equal ids and equal templates.
transformers is imported on first use.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.parsers.marks import Mark
from data.reading import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizerError(ValueError):
    """The tokenizer folder cannot be used; the text says what is missing and how to mend it."""


class Tokenizer:
    """Made by `load_tokenizer`. `hf` is the transformers tokenizer, for what is not here."""

    def __init__(self, hf: PreTrainedTokenizerFast, description: Mapping[str, Any], folder: Path) -> None:
        import tokenizers

        self.hf = hf
        self.folder = folder
        self._description = description
        # Text is encoded by the same model without its added tokens, so no text can spell one. (transformers'
        # split_special_tokens spares only those marked special; <tool_call> and its kind are not.)
        bare = copy.copy(dict(description))
        bare.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self._text = tokenizers.Tokenizer.from_str(json.dumps(bare))
        self.added: dict[str, int] = {token["content"]: int(token["id"]) for token in description["added_tokens"]}
        """Special and other added tokens: content -> id."""
        ids = set(self.added.values())
        spelled = [content for content in self.added if ids & set(self._text.encode(content).ids)]
        if spelled:
            raise TokenizerError(
                f"{folder}: plain text can spell the added token {spelled[0]!r}, so an observation could forge turns. "
                "Only tokenizers that keep added tokens out of their model (byte-level BPE) are served."
            )

    @property
    def chat_template(self) -> str:
        return str(self.hf.chat_template)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the canonical tokenizer.json and the chat template, hexadecimal."""
        canonical = dict(self._description)
        canonical.update(truncation=None, padding=None)  # call-time settings that some writers leave in the file
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(f"{text}\n\0{self.chat_template}".encode()).hexdigest()

    def __len__(self) -> int:
        """One above the highest id: the least vocabulary size of a model that takes these ids."""
        return len(self.hf)

    def added_id(self, content: str) -> int:
        """Id of a special or added token. Raises TokenizerError when there is none."""
        if content not in self.added:
            raise TokenizerError(
                f"{self.folder}: no token {content!r} among the added tokens, which this chat format needs. "
                "Take the tokenizer that belongs to the model, or another renderer."
            )
        return self.added[content]

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; "<|im_end|>" in it comes out as the characters it is."""
        return list(self._text.encode(text, add_special_tokens=False).ids)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of text in which special and added tokens count as such: templates only, never tool output."""
        return list(self.hf.encode(text, add_special_tokens=False))

    def pieces(self, ids: Sequence[int], names: Collection[str]) -> list[str]:
        """Text of ids with the special tokens `names` apart, as marks: text that spells one is no mark."""
        marks = {self.added[name]: Mark(name) for name in names if name in self.added}
        found: list[str] = []
        for is_mark, group in itertools.groupby(ids, key=lambda one: one in marks):
            run = list(group)
            found += [marks[one] for one in run] if is_mark else [self.decode(run)]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out, nothing cleaned up."""
        return str(self.hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Read a tokenizer and its chat template from a folder. Raises TokenizerError."""
    folder = Path(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(
            f"{folder}: no tokenizer.json. Put the model's fast tokenizer there (save_pretrained writes it); "
            "slow tokenizers are not served."
        )
    try:
        description = read_object(file)
        # transformers first, so that its messages do not hide a file that simply is no JSON.
        from transformers import PreTrainedTokenizerFast

        hf = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # The Rust reader raises bare Exception; whatever it is, the file is not usable.
        raise TokenizerError(f"{file}: not a readable tokenizer ({type(error).__name__}: {error})") from error
    if not hf.chat_template:
        raise TokenizerError(
            f"{folder}: the tokenizer has no chat template. Add chat_template.jinja beside tokenizer.json, "
            "or take an instruct model's tokenizer."
        )
    return Tokenizer(hf, description, folder)
