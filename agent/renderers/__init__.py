"""Chat renderers: the only way from messages to token ids, and only ever for *new* messages.

A renderer gives the ids of the first prompt once; after that the ids of each observation alone. What the model
sampled is never rendered again, so the ids of turn n+1 begin with all ids of turn n, thinking text included. Where a
family's own template would rewrite earlier turns, its file says what is done instead. `choose.renderer_for` picks one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent.parsers import Parsed, Tools

Message = Mapping[str, Any]


class Renderer(Protocol):
    """What the episode loop needs from a chat format."""

    @property
    def tokenizer_fingerprint(self) -> str: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation. The first is how a turn with a tool call ends."""
        ...

    def prompt_ids(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Ids of the first prompt, up to where the model's turn begins."""
        ...

    def observation_ids(
        self, texts: Sequence[str], ended_by: int | None, names: Sequence[str | None] = ()
    ) -> list[int]:
        """Ids between a model turn and the next: one text per tool call, in order, up to where the model goes on.

        `ended_by`: the stop token that the model sampled last; none when it was cut, and the turn's end is put first.
        `names`: the tool that each text answers; None (or no entry) answers no call. Text never becomes special
        tokens."""
        ...

    def message_ids(self, text: str, ended_by: int | None) -> list[int]:
        """The same for a plain message of the user."""
        ...

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        """The tool calls of a sampled turn. `before`: the ids it continues (their end is enough), which say whether the
        model began inside a thought."""
        ...

    def action_text(self, tokens: Sequence[int]) -> str:
        """Text of a sampled turn, without the stop token."""
        ...

    def heard(self, tokens: Sequence[int], *, before: Sequence[int]) -> tuple[str, bool]:
        """The turn's text in which thoughts may still stand as tags, and whether it begins inside one."""
        ...

    def said(self, tokens: Sequence[int], *, before: Sequence[int]) -> str:
        """The turn's text outside its thoughts."""
        ...
