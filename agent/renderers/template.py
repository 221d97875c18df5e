"""What every renderer shares: the first prompt by the model's own chat template, text that cannot forge tokens.

Promises:
* the first prompt is the template's own text, with its tool list; a special token spelled in a user or tool message
  stays the characters it is;
* a template that ignores tools gets them as a part of the system message (`tool_list`), in this project's words;
* the same messages give the same ids on every day: a template that prints the date gets a fixed one.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from agent.parsers import Parsed, Tools, Unspeakable, hermes
from agent.parsers.common import THINK, THOUGHT, after_thought, spoken, to_json
from agent.renderers import Message
from agent.tokenizer import Tokenizer, TokenizerError
from envs.environment import ToolCall

DAY = datetime.datetime(2024, 7, 26)
"""What templates that ask for the date are told (Llama 3.1's own default): a prompt must not change at midnight."""
_THOUGHT_TAIL = 16
"""Ids that are looked at to see whether a thought is open."""

# Six digits between two fences, all from plane 15's private use: not in any real text.
_MARK = re.compile("(\U000f0000[\U000f1000-\U000f1009]{6}\U000f0001)")
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "view",
        "description": "Show a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class RendererRefused(TokenizerError):
    """A tokenizer's chat template cannot be used for episodes; the text says why."""


class TemplateRenderer:
    """Base of the families. A subclass sets `_stops` and `_end` in its `__init__` and says how messages are framed.

    `thinking` is handed to templates that take it; None leaves the template's own way."""

    family: ClassVar[str] = ""
    shape: ClassVar[str] = hermes.SHAPE
    """How a call looks, for the tool list of templates without tools."""
    calls_a_turn: ClassVar[int | None] = None
    """Calls that the format can write in one turn; None: any number."""
    _joint: ClassVar[str] = "\n"
    """Between the words of a written turn and its calls."""
    _stops: tuple[int, ...]

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        self.tokenizer = tokenizer
        self.thinking = thinking
        self._options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    # --- prompt -------------------------------------------------------------------------------------------------------

    def prompt_ids(
        self, messages: Sequence[Message], tools: Tools, *, foreign: Collection[str] = ("user", "tool")
    ) -> list[int]:
        """The template's own text; special tokens spelled inside a message's content stay the characters they are.

        `foreign`: roles whose messages are not ours."""
        safe, held = self._hold_specials(messages, foreign)
        if tools and not self.template_shows_tools:  # our own text: its special tokens are meant
            safe, tools = with_tool_list(safe, tools, self.shape), ()
        ids: list[int] = []
        for piece in _MARK.split(self.template_text(safe, tools)):
            ids += self.tokenizer.encode_text(held[piece]) if piece in held else self.tokenizer.encode_marked(piece)
        return ids

    def template_text(self, messages: Sequence[Message], tools: Tools = (), generation: bool = True) -> str:
        """What the tokenizer's own template makes of a conversation. Raises RendererRefused."""
        try:
            text = self.tokenizer.hf.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=generation,
                tokenize=False,
                date_string=DAY.strftime("%d %b %Y"),
                strftime_now=DAY.strftime,
                **self._options,
            )
        except Exception as error:  # jinja raises anything: TemplateError, TypeError of a filter, …
            raise RendererRefused(
                f"{self.tokenizer.folder}: its chat template fails on {_roles(messages)} ({error}). Such a "
                "conversation cannot be rendered for this model."
            ) from error
        return str(text)

    @cached_property
    def template_shows_tools(self) -> bool:
        messages = [{"role": "user", "content": "Q"}]
        return "view" in self.template_text(messages, [PROBE_TOOL])

    @cached_property
    def generation_text(self) -> str:
        """What the template puts between a user message and the model's turn."""
        messages = [{"role": "user", "content": "Q"}]
        with_, without = (self.template_text(messages, generation=on) for on in (True, False))
        if not with_.startswith(without):
            raise RendererRefused(
                f"{self.tokenizer.folder}: the template's generation prompt changes what is before it"
            )
        return with_[len(without) :]

    # --- observations -------------------------------------------------------------------------------------------------

    def observation_ids(
        self, texts: Sequence[str], ended_by: int | None, names: Sequence[str | None] = ()
    ) -> list[int]:
        if not texts:
            raise ValueError("an observation needs at least one text")
        named = [*names, *[None] * (len(texts) - len(names))]
        return self._encode([*self._close(ended_by), *self._replies(texts, named, ended_by)])

    def message_ids(self, text: str, ended_by: int | None) -> list[int]:
        return self._encode([*self._close(ended_by), *self._user(text, ended_by)])

    def _close(self, ended_by: int | None) -> list[int | str]:
        """What ends a turn that the model did not end."""
        raise NotImplementedError

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        raise NotImplementedError

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        raise NotImplementedError

    # --- turns --------------------------------------------------------------------------------------------------------

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return hermes.parse(self.action_text(tokens), cut=cut, in_thought=self.in_thought(before))

    def in_thought(self, before: Sequence[int]) -> bool:
        """Whether ids end inside a thought that the prompt opened."""
        return self.tokenizer.decode(before[-_THOUGHT_TAIL:]).rstrip().endswith(THINK)

    def said(self, tokens: Sequence[int], *, before: Sequence[int]) -> str:
        return spoken(*self.heard(tokens, before=before))

    def heard(self, tokens: Sequence[int], *, before: Sequence[int]) -> tuple[str, bool]:
        return self.action_text(tokens), self.in_thought(before)

    def action_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(self._unstopped(tokens))

    def action_ids(self, text: str) -> list[int]:
        """Ids of a turn written out as text, with its end: for scripted play, never for what was sampled."""
        return [*self.tokenizer.encode_marked(text), self._stops[0]]

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        """How these calls are written in a turn. Raises Unspeakable."""
        return hermes.spell(calls)

    # --- turns written for training -----------------------------------------------------------------------------------

    def call_ids(
        self, calls: Sequence[ToolCall], tools: Tools = (), *, before: Sequence[int], words: str = ""
    ) -> list[int]:
        """Ids of a turn that says `words` and makes these calls, with its end, as the family writes it behind the ids
        `before`. A leading <think>…</think> of the words is the turn's thought; without one the words stand in a
        thought that the prompt opened. The family's parser reads the same calls back, or Unspeakable is raised; so it
        is where an argument spells a special token."""
        spelled = self.spell(calls, tools)
        thought, said = split_thought(words)
        given = (thought or "") + said + to_json([dict(call.arguments) for call in calls])
        if forged := next((name for name in self._frame_tokens if name in given), None):
            raise Unspeakable(f"{forged!r} in a written call would become the special token")
        ids = self._encode([*self._before_calls(thought, said, before), *self._marked(spelled), *self._call_end()])
        if self.parse(ids, before=before, cut=False, tools=tools) != tuple(calls):
            raise Unspeakable(f"{self.family} does not read back what it writes: {self.action_text(ids)[:200]!r}")
        return ids

    def _before_calls(self, thought: str | None, said: str, before: Sequence[int]) -> list[int | str]:
        if thought is not None:
            return [*self._said(thought, said, self.in_thought(before)), *([self._joint] if said else [])]
        head, tail = self._around_words(before) if said or self.in_thought(before) else ([], [])
        return [*head, said, *tail]

    def words_ids(self, words: str, *, before: Sequence[int]) -> list[int]:
        """The beginning of such a turn, up to its words' end."""
        return self._encode([*self._around_words(before)[0], words])

    def answer_ids(self, text: str, *, before: Sequence[int]) -> list[int]:
        """Ids of a turn that only says `text`, with its end. Of what the text spells only the tags of a leading thought
        become tokens. A thought that the prompt opened is closed where the text has none."""
        thought, answer = split_thought(text)
        return self._encode([*self._said(thought, answer, self.in_thought(before)), self._answer_end()])

    def _around_words(self, before: Sequence[int]) -> tuple[list[int | str], list[int | str]]:
        """What stands before the words of a turn with calls, and between them and the calls."""
        return [], self._said("", "", True)[1:] if self.in_thought(before) else [self._joint]

    def _said(self, thought: str | None, answer: str, open_: bool) -> list[int | str]:
        """`thought`: None where the turn has none. `open_`: the prompt opened one already."""
        if thought is None and not open_:
            return [answer]
        tags = [self.tokenizer.added.get(tag, tag) for tag in (THINK, THOUGHT)]
        opened: list[int | str] = [] if open_ else [tags[0], "\n"]
        return [*opened, thought or "", "\n", tags[1], f"\n\n{answer}"]

    def _call_end(self) -> list[int | str]:
        """What ends a turn behind its calls."""
        return [self._stops[0]]

    def _answer_end(self) -> int:
        return self._stops[0]

    def _unstopped(self, tokens: Sequence[int]) -> list[int]:
        kept = list(tokens)
        if kept and kept[-1] in self._stops:
            kept.pop()
        return kept

    # --- text and ids -------------------------------------------------------------------------------------------------

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

    def _marked(self, text: str) -> list[int | str]:
        """Pieces of template text: spelled added tokens as their ids."""
        added = self.tokenizer.added
        return [added[part] if index % 2 else part for index, part in enumerate(self._spelled.split(text)) if part]

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        longest_first = sorted(self.tokenizer.added, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @cached_property
    def _frame_tokens(self) -> list[str]:
        """Added tokens that frame messages. Others stand for text that a model may write, such as a call's tags."""
        kinds = self.tokenizer.hf.added_tokens_decoder
        return [name for name, one in self.tokenizer.added.items() if kinds[one].special or name[:2] in ("<|", "<｜")]

    def _hold_specials(
        self, messages: Sequence[Message], foreign: Collection[str]
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Replace added tokens spelled in messages that are not ours by private-use marks."""
        held: dict[str, str] = {}

        def hold(match: re.Match[str]) -> str:
            mark = "\U000f0000" + "".join(chr(0xF1000 + int(digit)) for digit in f"{len(held):06d}") + "\U000f0001"
            held[mark] = match.group()
            return mark

        safe = []
        for message in messages:
            content = message.get("content")
            if message.get("role") in foreign and isinstance(content, str):
                content = self._spelled.sub(hold, content)
            safe.append({**message, "content": content})
        return safe, held


def split_thought(text: str) -> tuple[str | None, str]:
    """(a leading <think>…</think>'s inside without the blank around it, the rest); (None, text) without one."""
    answer = after_thought(text, False)
    if answer == text or THOUGHT not in text:
        return None, text
    thought = text[: len(text) - len(answer)].strip().removeprefix(THINK).removesuffix(THOUGHT)
    return thought.strip("\n"), answer.lstrip("\n")


def with_tool_list(messages: Sequence[Message], tools: Tools, shape: str) -> list[dict[str, Any]]:
    """The messages with the tools and the shape of a call at the end of the system message."""
    listed = "\n".join(to_json(tool["function"]) for tool in tools)
    text = (
        "# Tools\n\nTo use a tool, write a call of this shape. Several calls in one turn run in order; their results "
        f"come back in the next message.\n\n{shape}\n\nThe tools, as JSON schemas:\n{listed}"
    )
    made = [dict(message) for message in messages]
    if made and made[0].get("role") == "system":
        made[0]["content"] = f"{made[0]['content']}\n\n{text}"
        return made
    return [{"role": "system", "content": text}, *made]


def _roles(messages: Sequence[Mapping[str, Any]]) -> str:
    return "the roles " + ", ".join(str(message.get("role")) for message in messages)
