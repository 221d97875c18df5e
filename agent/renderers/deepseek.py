"""DeepSeek-V3, V3-0324, V3.1, R1: <｜User｜> … <｜Assistant｜> … <｜end▁of▁sentence｜>, calls between special tokens.

Tool results stand between <｜tool▁output▁begin｜> and <｜tool▁output▁end｜> (V3 puts <｜tool▁outputs▁begin｜> around
them) and the model goes on right behind them. Where the official templates would rewrite history or are at odds with
themselves:
* V3's opens the results of the first round only, and closes the calls of a turn only when there are two or more: here
  every round is laid out like the first one, and a turn ends as the model ended it;
* V3.1 drops thoughts of earlier turns: here they stay;
* no template of V3's age prints tools: they are listed in the system message.
A text that answers no call (a turn without one) comes as a user message: results stand only behind calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from agent.parsers import Parsed, Tools, deepseek
from agent.renderers.template import TemplateRenderer
from agent.tokenizer import Tokenizer
from envs.environment import ToolCall

USER, ASSISTANT, END = "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
OUTPUTS_BEGIN, OUTPUTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
OUTPUT_BEGIN, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"


class DeepSeekRenderer(TemplateRenderer):
    family = "deepseek"
    _joint = ""

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        self._end = tokenizer.added_id(END)
        self._stops = (self._end,)
        self._ids = {name: tokenizer.added_id(name) for name in (USER, OUTPUT_BEGIN, OUTPUT_END)}
        self._grouped = OUTPUTS_BEGIN in tokenizer.chat_template
        self._fenced = "```json" in tokenizer.chat_template or not tokenizer.chat_template.count("sep｜>")
        self.shape = "".join(deepseek.spell([ToolCall("<tool>", {})], self._fenced)).replace("{}", "{...}")  # type: ignore[misc]

    def _close(self, ended_by: int | None) -> list[int | str]:
        return [] if ended_by == self._end else [self._end]

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        if not any(names):
            return self._user("\n\n".join(texts), ended_by)
        begin, end = self._ids[OUTPUT_BEGIN], self._ids[OUTPUT_END]
        pieces: list[int | str] = [self.tokenizer.added_id(OUTPUTS_BEGIN)] if self._grouped else []
        for number, text in enumerate(texts):
            pieces += [*(["\n"] if number and self._grouped else []), begin, text, end]
        return [*pieces, self.tokenizer.added_id(OUTPUTS_END)] if self._grouped else pieces

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        return [self._ids[USER], text, *self._turn]

    @cached_property
    def _turn(self) -> list[int | str]:
        """From <｜Assistant｜> on; newer templates open or close a thought here."""
        text = self.template_text([{"role": "user", "content": "Q"}])
        return self._marked(text[text.rindex(ASSISTANT) :])

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        pieces = self.tokenizer.pieces(self._unstopped(tokens), deepseek.MARKS)
        return deepseek.parse(pieces, cut=cut, in_thought=self.in_thought(before))

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return "".join(deepseek.spell(calls, self._fenced))
