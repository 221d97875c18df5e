"""Conversations as training examples, in the model's own chat format.

Promises:
* the ids are those that the episode loop would have, were the turns its own: first prompt, turns and messages come from
  the renderer, and every id is only appended (a test plays them);
* learned are the assistant's tokens and the token that ends each turn, unless its row switches that turn off;
  what special tokens a text spells stays text;
* too long conversations are cut at the end, never in the middle, and counted; one whose beginning holds no word of the
  assistant is left out, and counted; so is one that comes twice;
* held-out conversations share their first question with none that is trained on, whatever the order of the rows;
* conversation n is a pure function of (rows, seed, n): whole shuffles of the set one after the other.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent.parsers import Unspeakable
from agent.parsers.common import to_json
from agent.renderers.template import TemplateRenderer
from agent.seeds import derive_seed
from data.chats import SETS, Message, load_chats
from data.reading import user_path
from data.task import TaskError
from envs.environment import ToolCall
from trainer.demonstrations import Demonstration
from trainer.folders import content_hash

HELD_OUT = 0.05
"""Largest share of the conversations that is held out."""


def read_chats(names: Sequence[str], split: str, limit: int | None) -> list[list[Message]]:
    """Conversations of known sets and of files, at most `limit` of each. Raises TaskError, EvaluationTask among it."""
    made: list[list[Message]] = []
    for name in names:
        if name in SETS:
            made += load_chats(name, split, limit=limit)
        elif os.path.exists(user_path(name)):
            made += load_chats(Path(name).stem, split, user_path(name), limit=limit)
        else:
            raise TaskError(f"--chats {name}: neither a known set ({', '.join(SETS)}) nor a file or folder that exists")
    return made


def write_chat(renderer: TemplateRenderer, messages: Sequence[Message]) -> Demonstration:
    """The whole conversation: an optional system message, then user and assistant in turn, calls answered by results.
    Raises RendererRefused where the model's chat template cannot be followed, Unspeakable where its format cannot carry
    a call."""
    tools = getattr(messages, "tools", ())
    shown = to_json(list(tools))
    if forged := next((token for token in renderer.tokenizer.added if token in shown), None):
        raise Unspeakable(f"{forged!r} in the definition of a tool would become the special token")
    first = next(number for number, message in enumerate(messages) if message["role"] == "user") + 1
    ids = renderer.prompt_ids(messages[:first], tools, foreign=("system", "user"))
    learned = [False] * len(ids)
    for role, group in itertools.groupby(messages[first:], key=lambda message: message["role"]):
        several = list(group)
        if role == "tool":  # the results of one turn come in one piece, as an episode's do
            texts, names = [one["content"] for one in several], [one["name"] for one in several]
            made = renderer.observation_ids(texts, ids[-1], names)
        elif role == "user":
            made = renderer.message_ids(several[0]["content"], ids[-1])
        else:
            made = _turn(renderer, several[0], tools, ids)
        ids += made
        learned += [role == "assistant" and several[0].get("learned", True)] * len(made)
    return Demonstration(np.asarray(ids, np.int32), np.asarray(learned), np.zeros(len(ids), bool))


def _turn(
    renderer: TemplateRenderer, message: Message, tools: Sequence[Mapping[str, Any]], before: Sequence[int]
) -> list[int]:
    calls = [ToolCall(one["name"], one["arguments"]) for one in message.get("calls", ())]
    if not calls:
        return renderer.answer_ids(message["content"], before=before)
    return renderer.call_ids(calls, tools, before=before, words=message["content"])


@dataclass
class Counts:
    """What became of the rows. Tokens of conversations as they are trained on."""

    read: int = 0
    twice: int = 0
    cut: int = 0
    tokens_cut: int = 0
    answer_tokens_cut: int = 0
    left_out: int = 0
    trained: int = 0
    held_out: int = 0
    tokens: int = 0
    answer_tokens: int = 0

    def text(self, max_length: int) -> str:
        parts = [f"{self.read:,} conversations read"]
        if self.twice:
            parts.append(f"{self.twice:,} that came twice left out")
        if self.cut:
            parts.append(
                f"{self.cut:,} cut at {max_length:,} tokens ({self.tokens_cut:,} tokens lost, "
                f"{self.answer_tokens_cut:,} of them the assistant's)"
            )
        if self.left_out:
            parts.append(f"{self.left_out:,} left out that have no word of the assistant within them")
        parts.append(
            f"{self.trained:,} to train on ({self.tokens:,} tokens, {self.answer_tokens:,} of them learned), "
            f"{self.held_out:,} held out"
        )
        return "; ".join(parts)


@dataclass(frozen=True)
class ChatData:
    """`heldout` is never given by `make`."""

    train: Sequence[Demonstration]
    heldout: Sequence[Demonstration]
    counts: Counts
    seed: int
    fingerprint: str
    """Hash over the ids of all of them."""
    _order: dict[int, list[int]] = field(default_factory=dict)

    def make(self, number: int) -> Demonstration:
        epoch, place = divmod(number, len(self.train))
        if epoch not in self._order:
            order = list(range(len(self.train)))
            random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(order)
            self._order.clear()
            self._order[epoch] = order
        return self.train[self._order[epoch][place]]


def prepare_chats(
    renderer: TemplateRenderer,
    chats: Iterable[Sequence[Message]],
    *,
    max_length: int,
    measure: int,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> ChatData:
    """Encode, cut, and hold `measure` conversations out (at most 5 %, at least one). Raises TaskError, and
    RendererRefused where the chat template cannot be followed."""
    counts = Counts()
    groups: dict[str, list[Demonstration]] = {}
    seen: set[str] = set()
    for messages in chats:
        tick()
        counts.read += 1
        try:
            whole = write_chat(renderer, messages)
        except Unspeakable as error:
            raise TaskError(
                f"conversation {counts.read}: {error}. Where its arguments are not all text, the column tools has to "
                "say their types"
            ) from error
        one = Demonstration(whole.tokens[:max_length], whole.action[:max_length], whole.free[:max_length])
        if (mark := content_hash([whole.tokens.tobytes(), whole.action.tobytes()])) in seen:
            counts.twice += 1
            continue
        seen.add(mark)
        if not one.action.any():
            counts.left_out += 1
            continue
        if len(one) < len(whole):
            counts.cut += 1
            counts.tokens_cut += len(whole) - len(one)
            counts.answer_tokens_cut += int(whole.action[max_length:].sum())
        question = next(message["content"] for message in messages if message["role"] == "user")
        groups.setdefault(" ".join(question.split()).casefold(), []).append(one)
    train, heldout = _split(groups, measure)
    if not train or not heldout:
        raise TaskError(
            f"{counts.text(max_length)}: training needs at least two conversations with different first questions, one "
            "of them to be held out. Give more rows, or a larger --max-length"
        )
    counts.trained, counts.held_out = len(train), len(heldout)
    counts.tokens = sum(map(len, train))
    counts.answer_tokens = sum(int(one.action.sum()) for one in train)
    parts = (part for one in (*train, *heldout) for part in (one.tokens.tobytes(), one.action.tobytes()))
    return ChatData(train, heldout, counts, seed, content_hash(parts))


def _split(groups: dict[str, list[Demonstration]], measure: int) -> tuple[list[Demonstration], list[Demonstration]]:
    """(train, held out) by first question; the held-out ones are those whose question has the least hash, passing over
    those that too many begin with. Where all are such, it is the rarest one."""
    total = sum(map(len, groups.values()))
    wanted = min(measure, max(1, int(total * HELD_OUT)))
    held: set[str] = set()
    count = 0
    order = sorted(groups, key=lambda text: content_hash([text.encode("utf-8", "surrogatepass")]))
    if len(groups) > 1 and all(len(groups[question]) > wanted for question in order):
        held = {min(order, key=lambda question: len(groups[question]))}
    for question in order:
        if count + len(groups[question]) <= wanted and len(held) + 1 < len(groups):
            held.add(question)
            count += len(groups[question])
    train = [one for question, many in groups.items() if question not in held for one in many]
    return train, [one for question, many in groups.items() if question in held for one in many]
