"""Any renderer, with actions as fenced shell (`parsers.fenced`) instead of tool calls: presets with calls = "fenced".

The prompt lists no tools (the preset's own text says how to act), and results come as plain messages of the user.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.parsers import Parsed, Tools, fenced
from agent.renderers import Message, Renderer


class FencedRenderer:
    def __init__(self, inner: Renderer) -> None:
        self.inner = inner
        inner.message_ids("", None)  # a template that cannot be followed with plain messages is refused here

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.inner.tokenizer_fingerprint

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.inner.stop_ids

    def prompt_ids(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return self.inner.prompt_ids(messages, ())

    def observation_ids(
        self, texts: Sequence[str], ended_by: int | None, names: Sequence[str | None] = ()
    ) -> list[int]:
        if not texts:
            raise ValueError("an observation needs at least one text")
        return self.inner.message_ids("\n\n".join(texts), ended_by)

    def message_ids(self, text: str, ended_by: int | None) -> list[int]:
        return self.inner.message_ids(text, ended_by)

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        text, in_thought = self.heard(tokens, before=before)
        return fenced.parse(text, cut=cut, in_thought=in_thought)

    def action_text(self, tokens: Sequence[int]) -> str:
        return self.inner.action_text(tokens)

    def heard(self, tokens: Sequence[int], *, before: Sequence[int]) -> tuple[str, bool]:
        return self.inner.heard(tokens, before=before)

    def said(self, tokens: Sequence[int], *, before: Sequence[int]) -> str:
        return self.inner.said(tokens, before=before)
