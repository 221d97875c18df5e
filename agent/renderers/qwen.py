"""Qwen2.5, Qwen3, Qwen3-MoE: <|im_start|>role … <|im_end|>, tool results as <tool_response> in a user message.

For a conversation without thinking text the ids equal those of the tokenizer's own apply_chat_template over the whole
conversation (tested on the official Qwen3 tokenizer). Where Qwen3's template would rewrite history:
* it drops the thoughts of turns before the last user message: here every sampled thought stays;
* with thinking off it puts an empty thought before the turn and drops it afterwards: here it stays;
* its Thinking models' prompt opens <think>: every observation opens it again, as the template does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from agent.renderers.template import TemplateRenderer
from agent.tokenizer import Tokenizer

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
OPEN, CLOSE = "<tool_response>", "</tool_response>"
_ASSISTANT = "assistant\n"


class QwenRenderer(TemplateRenderer):
    """See the module. Raises TokenizerError when the tokenizer lacks <|im_start|> or <|im_end|>."""

    family = "qwen"

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        self._end = tokenizer.added_id(END)
        self._start = tokenizer.added_id(START)
        others = [tokenizer.added[PAD]] if PAD in tokenizer.added else []
        self._stops = (self._end, *others)

    def _close(self, ended_by: int | None) -> list[int | str]:
        return [] if ended_by == self._end else [self._end]

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        pieces: list[int | str] = ["\n", self._start, "user"]
        for text in texts:
            pieces += ["\n", self._tag(OPEN), f"\n{text}\n", self._tag(CLOSE)]
        return [*pieces, self._end, "\n", *self._turn]

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        return ["\n", self._start, f"user\n{text}", self._end, "\n", *self._turn]

    @cached_property
    def _turn(self) -> list[int | str]:
        """Up to where the model goes on; a thinking model's template opens the thought here."""
        _, _, opened = self.generation_text.partition(START + _ASSISTANT)
        return [self._start, _ASSISTANT, *self._marked(opened)]

    def _tag(self, tag: str) -> int | str:
        """<tool_response> is one token in Qwen3's vocabulary and plain text in older ones'."""
        return self.tokenizer.added.get(tag, tag)
