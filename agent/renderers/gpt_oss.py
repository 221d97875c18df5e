"""gpt-oss (harmony): <|start|>role<|message|> … <|end|>, channels inside the model's turn, calls as messages.

A tool's result is a message from functions.NAME to the assistant, its text a JSON string: so prints the official
template. The model's turn may hold several messages and ends with <|call|> or <|return|>. Where the template would
rewrite history:
* it drops the analysis of earlier turns: here it stays;
* <|return|> becomes <|end|> in history: here it stays as sampled;
* it prints a call's recipient before the channel, whichever way the model wrote it: here it stays as sampled.
A text that answers no call is a user message; a turn that was cut is closed with <|end|>.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.parsers import Parsed, Tools, harmony
from agent.parsers.common import to_json
from agent.parsers.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START
from agent.renderers.template import TemplateRenderer
from agent.tokenizer import Tokenizer
from envs.environment import ToolCall

LAST = "<|endoftext|>"


class GptOssRenderer(TemplateRenderer):
    family = "gpt_oss"
    shape = harmony.SHAPE
    calls_a_turn = 1

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        names = (START, MESSAGE, CHANNEL, END, CALL, RETURN)
        self._ids = {name: tokenizer.added_id(name) for name in names}
        self._ends = (self._ids[CALL], self._ids[RETURN])
        self._stops = (*self._ends, *(tokenizer.added[one] for one in (LAST,) if one in tokenizer.added))

    def _close(self, ended_by: int | None) -> list[int | str]:
        return [] if ended_by in self._ends else [self._ids[END]]

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        pieces: list[int | str] = []
        for text, name in zip(texts, names, strict=True):
            if name is None:
                pieces += self._message("user", text)
            else:
                header: list[int | str] = [f"functions.{name} to=assistant", self._ids[CHANNEL], "commentary"]
                pieces += [self._ids[START], *header, self._ids[MESSAGE], to_json(text), self._ids[END]]
        return [*pieces, self._ids[START], "assistant"]

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        return [*self._message("user", text), self._ids[START], "assistant"]

    def _message(self, role: str, text: str) -> list[int | str]:
        return [self._ids[START], role, self._ids[MESSAGE], text, self._ids[END]]

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return harmony.parse(self._pieces(tokens), cut=cut, tools=tools)

    def heard(self, tokens: Sequence[int], *, before: Sequence[int]) -> tuple[str, bool]:
        return self.said(tokens, before=before), False

    def said(self, tokens: Sequence[int], *, before: Sequence[int]) -> str:
        return harmony.final_text(self._pieces(tokens))

    def action_ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode_marked(text)
        return ids if ids and ids[-1] in self._ends else [*ids, self._ids[RETURN]]

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return "".join(harmony.spell(calls))

    def _around_words(self, before: Sequence[int]) -> tuple[list[int | str], list[int | str]]:
        head: list[int | str] = [self._ids[CHANNEL], "analysis", self._ids[MESSAGE]]
        return head, [self._ids[END], self._ids[START], "assistant"]

    def _said(self, thought: str | None, answer: str, open_: bool) -> list[int | str]:
        """A thought is a message on the analysis channel, an answer one on the final channel."""
        channel, message = self._ids[CHANNEL], self._ids[MESSAGE]
        pieces: list[int | str] = []
        if thought is not None:
            head, tail = self._around_words([])
            pieces = [*head, thought, *tail]
        return [*pieces, channel, "final", message, answer] if answer or thought is None else pieces

    def _before_calls(self, thought: str | None, said: str, before: Sequence[int]) -> list[int | str]:
        """What is said before a call stands on the analysis channel, as what is thought does."""
        return super()._before_calls(None, "\n\n".join(one for one in (thought, said) if one), before)

    def _call_end(self) -> list[int | str]:
        return []  # spelled with the call

    def _answer_end(self) -> int:
        return self._ids[RETURN]

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(tokens, harmony.MARKS)
