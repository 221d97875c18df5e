"""Text as ids, for looking only: how an endpoint's conversation, or an imported file, is laid out in a trajectory.

Nobody sampled these ids and no model saw them: the endpoint got messages. `tokenizer.decode` gives the text back, byte
for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.parsers import Parsed, Tools, hermes
from agent.parsers.common import THINK, THOUGHT, spoken
from agent.renderers import Message
from agent.tokenizer import Tokenizer

EMPTY = "(empty)"


class PlainRenderer:
    """A Renderer without a chat format. Its parts are joined by empty lines."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    def prompt_ids(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        parts = [f"[{message.get('role')}]\n{shown(str(message.get('content') or ''))}" for message in messages]
        if tools:
            listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
            parts.insert(0, f"[tools]\n{listed}")
        return self.text_ids("\n\n".join(parts))

    def observation_ids(
        self, texts: Sequence[str], ended_by: int | None = None, names: Sequence[str | None] = ()
    ) -> list[int]:
        return self.text_ids("\n\n".join(map(shown, texts)))

    def message_ids(self, text: str, ended_by: int | None = None) -> list[int]:
        return self.text_ids(text)

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return hermes.parse(self.action_text(tokens), cut=cut)

    def action_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def said(self, tokens: Sequence[int], *, before: Sequence[int]) -> str:
        return spoken(*self.heard(tokens, before=before))

    def heard(self, tokens: Sequence[int], *, before: Sequence[int]) -> tuple[str, bool]:
        return self.action_text(tokens), False

    def text_ids(self, text: str) -> list[int]:
        """At least one."""
        return self.tokenizer.encode_text(shown(text))


def turn_text(content: str, calls: Sequence[tuple[str, str]] = (), thought: str = "") -> str:
    """A turn as one text: its thought, its words, its calls as `name arguments`."""
    parts = [f"{THINK}\n{thought}\n{THOUGHT}"] if thought else []
    parts += [content] if content else []
    return "\n\n".join([*parts, *(f"{name} {arguments}" for name, arguments in calls)])


def shown(text: str) -> str:
    """An empty text has no ids, and half a surrogate pair is no text: both are shown as what they are."""
    return text.encode("utf-8", "backslashreplace").decode() or EMPTY
