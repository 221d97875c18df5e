"""Chat renderers: the only way from messages to token ids, and only ever for *new* messages.

A renderer gives the ids of the first prompt once; after that the ids of each observation alone. What the model
sampled is never rendered again, so the ids of turn n+1 begin with all ids of turn n, thinking text included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]


class Renderer(Protocol):
    """What the episode loop needs from a chat format."""

    @property
    def tokenizer_fingerprint(self) -> str: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation. The first is the end of a turn; another one leaves the turn open."""
        ...

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the first prompt, up to where the model's turn begins."""
        ...

    def observation_ids(self, texts: Sequence[str], ended_by_stop: bool) -> list[int]:
        """Ids between a model turn and the next: one text per tool call, in order, up to where the model goes on.

        `ended_by_stop` says whether the model itself sampled the end of its turn (`stop_ids[0]`); if not, the end is
        put first. Text never becomes special tokens."""
        ...

    def action_text(self, tokens: Sequence[int]) -> str:
        """Text of a sampled turn, without the stop token."""
        ...
