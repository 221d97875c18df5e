"""Qwen3-Coder: Qwen's messages, calls as XML (`parsers.qwen_xml`), tool results laid out with other line breaks.

Ids equal those of the official template over the whole conversation. It rewrites one thing: the text before a call is
trimmed. Here it stays as sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.parsers import Parsed, Tools, qwen_xml
from agent.renderers.qwen import CLOSE, OPEN, QwenRenderer
from envs.environment import ToolCall


class QwenCoderRenderer(QwenRenderer):
    family = "qwen_coder"
    shape = qwen_xml.SHAPE

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        pieces: list[int | str] = ["\n", self._start, "user\n"]
        for text in texts:
            pieces += [self._tag(OPEN), f"\n{text}\n", self._tag(CLOSE), "\n"]
        return [*pieces, self._end, "\n", *self._turn]

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return qwen_xml.parse(self.action_text(tokens), cut=cut, in_thought=self.in_thought(before), tools=tools)

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return qwen_xml.spell(calls, tools)
