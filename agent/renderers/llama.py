"""Llama 3, 3.1, 3.2, 3.3: <|start_header_id|>role<|end_header_id|> … <|eot_id|>, calls as bare JSON.

From 3.1 on a tool result is a message of the role `ipython` whose content is a JSON string: so prints the official
template, so it is done here. Where the template would rewrite history:
* it trims the text of every turn: here it stays as sampled;
* it knows one call a turn and fails on more: here several run, and their results follow each other;
* a turn that ended with <|eom_id|> (the model expects a tool) is printed with <|eot_id|>: here it stays.
Llama 3's own template has no tools: they are listed in the system message, and results are user messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.parsers import Parsed, Tools, llama_json
from agent.parsers.common import to_json
from agent.renderers.template import TemplateRenderer
from agent.tokenizer import Tokenizer
from envs.environment import ToolCall

END, MORE, LAST = "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"
HEADER, CLOSE = "<|start_header_id|>", "<|end_header_id|>"


class LlamaRenderer(TemplateRenderer):
    family = "llama3"
    shape = llama_json.SHAPE

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        self._end = tokenizer.added_id(END)
        self._header, self._header_end = tokenizer.added_id(HEADER), tokenizer.added_id(CLOSE)
        self._ends = (self._end, *(tokenizer.added[one] for one in (MORE,) if one in tokenizer.added))
        self._stops = (*self._ends, *(tokenizer.added[one] for one in (LAST,) if one in tokenizer.added))

    def _close(self, ended_by: int | None) -> list[int | str]:
        return [] if ended_by in self._ends else [self._end]

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        if "ipython" not in self.tokenizer.chat_template:
            return self._user("\n\n".join(texts), ended_by)
        messages = [piece for text in texts for piece in self._message("ipython", to_json(text))]
        return [*messages, *self._turn]

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        return [*self._message("user", text.strip()), *self._turn]

    def _message(self, role: str, content: str) -> list[int | str]:
        return [self._header, role, self._header_end, f"\n\n{content}", self._end]

    @property
    def _turn(self) -> list[int | str]:
        return [self._header, "assistant", self._header_end, "\n\n"]

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return llama_json.parse(self.action_text(tokens), cut=cut, in_thought=self.in_thought(before))

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return llama_json.spell(calls)
