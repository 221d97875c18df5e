"""The Qwen-style chat format: <|im_start|>role … <|im_end|>, tool results as <tool_response> in a user message.

Promises beyond `Renderer`'s: for a conversation without thinking text the ids equal those of the tokenizer's own
apply_chat_template over the whole conversation (tested on the official Qwen3 tokenizer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent.renderers import Message
from agent.tokenizer import Tokenizer

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
OPEN, CLOSE = "<tool_response>", "</tool_response>"

# Six digits between two fences, all from plane 15's private use: not in any real text.
_MARK = re.compile("(\U000f0000[\U000f1000-\U000f1009]{6}\U000f0001)")


class QwenRenderer:
    """See the module. Raises TokenizerError when the tokenizer lacks <|im_start|> or <|im_end|>."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.added_id(END)
        self._start = tokenizer.added_id(START)
        others = [tokenizer.added[PAD]] if PAD in tokenizer.added else []
        self._stops = (self._end, *others)

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """The template's own text; special tokens spelled inside a message's content stay the characters they are."""
        safe, held = self._hold_specials(messages)
        text = self.tokenizer.hf.apply_chat_template(
            safe, tools=[dict(tool) for tool in tools] or None, add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = []
        for piece in _MARK.split(str(text)):
            ids += self.tokenizer.encode_text(held[piece]) if piece in held else self.tokenizer.encode_marked(piece)
        return ids

    def observation_ids(self, texts: Sequence[str], ended_by_stop: bool) -> list[int]:
        if not texts:
            raise ValueError("an observation needs at least one text")
        pieces: list[int | str] = [] if ended_by_stop else [self._end]
        pieces += ["\n", self._start, "user"]
        for text in texts:
            pieces += ["\n", self._tag(OPEN), f"\n{text}\n", self._tag(CLOSE)]
        pieces += [self._end, "\n", self._start, "assistant\n"]
        return self._encode(pieces)

    def action_text(self, tokens: Sequence[int]) -> str:
        kept = list(tokens)
        if kept and kept[-1] in self._stops:
            kept.pop()
        return self.tokenizer.decode(kept)

    def action_ids(self, text: str) -> list[int]:
        """Ids of a written turn with its end: for demonstrations and scripted play, never for what was sampled."""
        return [*self.tokenizer.encode_marked(text), self._end]

    def _tag(self, tag: str) -> int | str:
        """<tool_response> is one token in Qwen3's vocabulary and plain text in older ones'."""
        return self.tokenizer.added.get(tag, tag)

    def _encode(self, pieces: Sequence[int | str]) -> list[int]:
        """Ids stand for themselves; neighbouring texts are joined first, as they would be merged in one text."""
        ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                ids += [*self.tokenizer.encode_text(text), piece]
                text = ""
        return ids + self.tokenizer.encode_text(text)

    def _hold_specials(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Replace added tokens spelled in user and tool messages, which are not ours, by private-use marks."""
        held: dict[str, str] = {}

        def hold(match: re.Match[str]) -> str:
            mark = "\U000f0000" + "".join(chr(0xF1000 + int(digit)) for digit in f"{len(held):06d}") + "\U000f0001"
            held[mark] = match.group()
            return mark

        longest_first = sorted(self.tokenizer.added, key=len, reverse=True)
        spelled = re.compile("|".join(map(re.escape, longest_first)))
        safe = []
        for message in messages:
            content = message.get("content")
            if message.get("role") in ("user", "tool") and isinstance(content, str):
                content = spelled.sub(hold, content)
            safe.append({**message, "content": content})
        return safe, held
