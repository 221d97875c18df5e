"""A conversation with an endpoint: messages out, words and calls in, tokens as the endpoint counts them.

Promises:
* calls are `tool_calls` (`native`), or Hermes calls in the text where the endpoint knows no tools (`text`); a fenced
  preset is text either way. A call that cannot be read is answered with its named error;
* the history stays one that the protocol takes: each call has its result; a call that is no valid JSON goes back as the
  words it is, since servers refuse it as a call;
* sent and received texts stand in the trajectory as `quoted` and `observation` spans, as ids for looking only; usage,
  finish and refusal reasons and the model that answered stand in the outcome, turn by turn;
* sizes are the endpoint's own counts; what it has not counted yet is guessed at three bytes a token, which is rather
  too many. A refusal for length asks for a shorter answer, until less than `answer_reserve` is left: ContextFull;
* the episode's clock stands still while a request waits for its place, and for failed tries and their pauses; when it
  has run out in the middle of an answer, an endpoint that answers nothing else either has failed, not the model.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent.dialogue import ContextFull, Dialogue, fitted
from agent.endpoint.answers import Answer, Usage
from agent.endpoint.client import ChatClient, Idle
from agent.endpoint.faults import Filtered, TooLong
from agent.parsers import CallError, Parsed, Tools, fenced, hermes, native
from agent.parsers.common import spoken
from agent.policy import StopReason
from agent.presets import Limits, Preset
from agent.renderers import Message
from agent.renderers.plain import EMPTY, PlainRenderer, turn_text
from agent.renderers.template import with_tool_list
from data.quoted import ENDPOINT
from data.trajectory import Sampling, TrajectoryBuilder

Calls = Literal["native", "text"]
FILTERED = "content_filter"
_BYTES_A_TOKEN = 3
_MESSAGE_TOKENS = 8
"""What a message costs beside its text, guessed."""
_SEED_BITS = 31
"""Some endpoints take no larger seed."""


@dataclass(frozen=True)
class Manner:
    """How an endpoint is spoken with."""

    calls: Calls = "native"
    thoughts: Literal["send", "drop"] = "send"
    """Whether a turn's thoughts go back with it, where the endpoint gave them apart from its text."""
    max_context: int | None = None


class EndpointDialogue(Dialogue):
    builder: TrajectoryBuilder

    def __init__(
        self,
        client: ChatClient,
        manner: Manner,
        renderer: PlainRenderer,
        preset: Preset,
        limits: Limits,
        sampling: Sampling,
    ) -> None:
        self.client, self.manner, self.renderer = client, manner, renderer
        self.limits, self.sampling = limits, sampling
        self.max_context = manner.max_context
        self._fenced = preset.calls == "fenced"
        self._messages: list[dict[str, Any]] = []
        self._calls = ""
        self._tools: Tools = ()
        self._answer: Answer | None = None
        self._call_ids: list[str | None] = []
        """Of the newest turn's items: the protocol's id, or none for what is answered in a message of the user."""
        self._used = self._sampled = 0
        self._turns: list[dict[str, Any]] = []
        self._asking: asyncio.Task[Answer] | None = None
        self._idle = Idle()

    def clock(self) -> float:
        return time.monotonic() - self._idle.seconds

    def begin(self, messages: Sequence[Message], tools: Tools, *, listed: bool) -> None:
        self._messages = [dict(message) for message in messages]
        self._calls = "fenced" if self._fenced else (self.manner.calls if tools else "none")
        if self._fenced or not tools:
            self._tools = ()
        elif self.manner.calls == "native":
            self._tools = tools  # an endpoint's calls are only read where it was told of them
        elif listed:
            self._messages = with_tool_list(messages, tools, hermes.SHAPE)
        self.builder = TrajectoryBuilder(self.renderer.prompt_ids(self._messages, self._tools))
        listing = json.dumps(list(self._tools), ensure_ascii=False) if self._tools else ""
        texts = [listing, *(str(message["content"]) for message in self._messages)]
        self._used = sum(map(guessed_tokens, texts))

    @property
    def sampled(self) -> int:
        return self._sampled

    @property
    def used(self) -> int:
        return self._used

    async def generate(self, room: int, seed: int) -> StopReason:
        self._asking = asyncio.ensure_future(self._ask(room, seed))
        try:
            answer = await self._asking
        except asyncio.CancelledError:
            if self._asking.cancelled() and not _being_cancelled():
                return StopReason.ABORTED  # nothing of an unfinished answer is known
            self._asking.cancel()
            raise
        except Filtered as refused:
            answer = Answer("", (), FILTERED, refusal=refused.message)
        self._take(answer)
        return StopReason.LENGTH if answer.finish == "length" else StopReason.STOP

    async def overdue(self) -> None:
        await self.client.answers()

    async def abort(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, room: int, seed: int) -> Answer:
        fields: dict[str, Any] = {"seed": seed & ((1 << _SEED_BITS) - 1)}
        if self.sampling.temperature >= 0:
            fields |= {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        while True:
            try:
                return await self.client.chat(
                    self._messages, max_tokens=room, tools=self._tools, idle=self._idle, **fields
                )
            except TooLong as refused:
                room = shorter(room, refused)
                if room < self.limits.answer_reserve:
                    raise ContextFull(refused.message) from refused

    def _take(self, answer: Answer) -> None:
        """Part of the conversation from here on."""
        counted = answer.usage or Usage(self._used, guessed_tokens(answer.text))
        self._sampled += counted.completion
        self._used = counted.prompt + counted.completion - self._dropped(answer, counted)
        self.turn_tokens, self._answer = counted.completion, answer
        self.builder.append_quoted(self.renderer.text_ids(answer.text))
        told = {
            "model": answer.model,
            "finish": answer.finish,
            "prompt_tokens": counted.prompt,
            "completion_tokens": counted.completion,
            "reasoning_tokens": counted.reasoning,
            "cached_tokens": counted.cached,
            "guessed": answer.usage is None or None,
            "refusal": answer.refusal,
            "fingerprint": answer.fingerprint,
            "retries": answer.retries,
        }
        self._turns.append({key: value for key, value in told.items() if value not in (None, "", 0) or key == "finish"})

    def _dropped(self, answer: Answer, counted: Usage) -> int:
        """Tokens of thoughts that are not in the history: those that are hidden, or not sent back. Of a turn that was
        cut all count: what cut it must be seen."""
        if answer.finish == "length" or (answer.thought and self.manner.thoughts == "send"):
            return 0
        found = guessed_tokens(answer.thought) if counted.reasoning is None else counted.reasoning
        return min(found, counted.completion)

    def parse(self, *, cut: bool) -> Parsed:
        answer = self._newest
        if self._fenced:
            parsed = fenced.parse(answer.content, cut=cut)
        elif self.manner.calls == "text":
            parsed = hermes.parse(answer.content, cut=cut)
        else:
            parsed = native.parse(answer.calls, cut=cut)
        self._messages.append(self._reply(answer, parsed))
        return parsed

    def _reply(self, answer: Answer, parsed: Parsed) -> dict[str, Any]:
        """The turn as the history holds it."""
        content, calls = answer.content, []
        self._call_ids = [None] * len(parsed)
        for number, (item, call) in enumerate(zip(parsed, answer.calls, strict=False)):
            if isinstance(item, CallError):
                content = turn_text(content, [_shown_call(call)])
                continue
            name = str(call.get("id") or f"call_{len(self._turns)}_{number}")
            self._call_ids[number] = name
            function = {"name": item.name, "arguments": _sent_arguments(call)}
            calls.append({"id": name, "type": "function", "function": function})
        if not (content or calls):
            content = answer.refusal or EMPTY  # some servers refuse a history with a message that says nothing
        made: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            made["tool_calls"] = calls
        if answer.thought and self.manner.thoughts == "send":
            made[answer.thought_key] = answer.thought
        return made

    def said(self) -> str:
        # A server without a reasoning parser: the template opened the thought, so the text only holds its end.
        return spoken(self._newest.content, False)

    def observe(self, texts: list[str], names: Sequence[str | None], room: int) -> int | None:
        shown = fitted(texts, room, lambda made: made, lambda made: sum(map(guessed_tokens, made)))
        if shown is None:
            return None
        # One text can stand for several calls: none of a turn with too many was run.
        paired = [*shown, *[shown[-1]] * (len(self._call_ids) - len(shown))]
        plain = [text for text, name in zip(paired, self._call_ids, strict=True) if name is None]
        self._messages += [
            {"role": "tool", "tool_call_id": name, "content": text}
            for text, name in zip(paired, self._call_ids, strict=True)
            if name is not None
        ]
        if plain:
            self._messages.append({"role": "user", "content": "\n\n".join(plain)})
        took = sum(map(guessed_tokens, shown))
        self._used += took
        self.builder.append_observation(self.renderer.observation_ids(shown))
        return took

    def detail(self) -> Mapping[str, Any]:
        sums = {
            f"{name}_tokens": sum(turn.get(f"{name}_tokens", 0) for turn in self._turns)
            for name in ("prompt", "completion", "reasoning", "cached")
        }
        return {
            ENDPOINT: {
                "model": self.client.settings.model,
                "calls": self._calls,
                **sums,
                "turns": self._turns,
            }
        }

    @property
    def _newest(self) -> Answer:
        assert self._answer is not None, "no turn was made yet"
        return self._answer


def guessed_tokens(text: str) -> int:
    return _MESSAGE_TOKENS + len(text.encode("utf-8", "backslashreplace")) // _BYTES_A_TOKEN if text else 0


def shorter(room: int, refused: TooLong) -> int:
    """What to ask for after a refusal for length: by the endpoint's own numbers where it gives them, else half."""
    if refused.limit is not None and refused.input_tokens is not None:
        left = refused.limit - refused.input_tokens
        if left < room:
            return left
    return room // 2


def _shown_call(call: Any) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return "?", str(call)
    return str(function.get("name") or "?"), str(function.get("arguments") or "")


def _sent_arguments(call: Mapping[str, Any]) -> str:
    given = call["function"].get("arguments")
    return given if isinstance(given, str) and given.strip() else json.dumps(given or {})


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
