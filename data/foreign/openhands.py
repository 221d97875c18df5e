"""Rows of OpenHands' `output.jsonl`: events of the old server (`action`, `observation`) and of the SDK (`kind`).

A turn is what the model's answer was: the stored answer where an event has it, several calls of one answer together.
Events that the model never sees (states, condensations) are no messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.foreign.messages import Messages
from data.foreign.run import (
    ForeignCall,
    ForeignMessage,
    ForeignRun,
    as_text,
    checked,
    mapping,
    number_of,
    plain_stats,
    sequence,
    stem,
    text_of,
)

_SILENT_ACTIONS = ("change_agent_state", "null", "recall", "condensation", "condensation_request", "start", "pause")
_SILENT_OBSERVATIONS = ("agent_state_changed", "null")
_NOT_ARGUMENTS = ("thought", "hidden", "confirmation_state", "security_risk", "is_confirmed", "blocking", "is_input")


def looks_like(value: Mapping[str, Any]) -> bool:
    history = value.get("history")
    if not isinstance(history, list):
        return False
    first = history[0] if history else {}
    event = mapping(first[0] if isinstance(first, list) and first else first)
    is_event = any(key in event for key in ("action", "observation", "kind"))
    return is_event or any(key in value for key in ("test_result", "git_patch"))


def openhands(path: Path, where: str, value: Mapping[str, Any], digest: str) -> ForeignRun:
    reader = _Events(where)
    for item in sequence(value.get("history")):
        for event in item if isinstance(item, list) else [item]:  # old files pair an action with its observation
            reader.event(mapping(event))
    messages = reader.messages.made
    instruction = text_of(value.get("instruction"))
    if instruction and not any(message.role == "user" for message in messages[: _first_turn(messages)]):
        messages.insert(_first_turn(messages), ForeignMessage("user", instruction))
    metadata = mapping(value.get("metadata"))
    model = mapping(metadata.get("llm_config") or metadata.get("llm"))
    result = value.get("test_result")
    patch = text_of(mapping(result).get("git_patch")) or text_of(value.get("git_patch"))
    error = value.get("error")
    usage = mapping(value.get("metrics"))
    return ForeignRun(
        harness=f"OpenHands {reader.version}".strip(),
        instance=text_of(value.get("instance_id")) or stem(path),
        messages=checked(where, messages),
        exit_status=(error if isinstance(error, str) else "error") if error else reader.ended,
        submission=patch,
        model=text_of(model.get("model")),
        temperature=number_of(model.get("temperature")),
        stats=plain_stats(usage) | plain_stats(usage.get("accumulated_token_usage")),
        not_carried=reader.not_carried,
        tools=reader.tools,
        sha256=digest,
    )


def _first_turn(messages: list[ForeignMessage]) -> int:
    return next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))


class _Events:
    def __init__(self, where: str) -> None:
        self.messages = Messages(where)
        self.version = self.ended = ""
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self._answers: dict[str, int] = {}
        """Answer of the model -> its message's place."""
        self._without_answer = self._condensed = self._number = 0

    @property
    def not_carried(self) -> tuple[str, ...]:
        made = list(self.messages.not_carried)
        if self._without_answer:
            made.append(f"the model's own text of {self._without_answer} turns (their actions are shown)")
        if self._condensed:
            made.append(f"what the model saw after {self._condensed} condensations of its history")
        return tuple(made)

    def event(self, event: Mapping[str, Any]) -> None:
        self._number += 1
        if isinstance(event.get("kind"), str):
            self._sdk(event, event["kind"])
        elif isinstance(event.get("observation"), str):
            self._observation(event)
        elif isinstance(event.get("action"), str):
            self._action(event, event["action"])

    # --- the old server ---------------------------------------------------------------------------------------------

    def _action(self, event: Mapping[str, Any], action: str) -> None:
        arguments = mapping(event.get("args"))
        known = mapping(event.get("tool_call_metadata"))
        if action.startswith("condensation"):
            self._condensed += action == "condensation"
        if action in _SILENT_ACTIONS:
            return
        if action == "system":
            self.version = text_of(arguments.get("openhands_version")) or self.version
            self.tools = tuple(map(mapping, sequence(arguments.get("tools"))))
            self.messages.say(ForeignMessage("system", text_of(arguments.get("content"))))
        elif event.get("source") != "agent":
            said = text_of(arguments.get("content"))
            self.messages.say(ForeignMessage("user", said or f"{action} {as_text(dict(arguments))}"))
        elif (answer := mapping(known.get("model_response"))) and self._answer(answer):
            self.ended = "finish" if action == "finish" else self.ended
        else:
            self.ended = "finish" if action == "finish" else self.ended
            thought = arguments.get("thought")
            thought = text_of(mapping(thought).get("text")) if isinstance(thought, dict) else text_of(thought)
            given = {key: value for key, value in arguments.items() if key not in _NOT_ARGUMENTS}
            if action == "message":
                self.messages.say(ForeignMessage("assistant", text_of(arguments.get("content"))))
            else:
                self._without_answer += 1
                call = ForeignCall(action, as_text(given), text_of(known.get("tool_call_id")))
                self.messages.say(ForeignMessage("assistant", thought, calls=(call,)))

    def _answer(self, answer: Mapping[str, Any]) -> bool:
        """The model's answer as it was, once; whether there is one."""
        choices = sequence(answer.get("choices"))
        message = mapping(mapping(choices[0]).get("message")) if choices else {}
        if not message:
            return False
        key = text_of(answer.get("id")) or as_text(message)
        if key not in self._answers:
            self._answers[key] = len(self.messages.made)
            self.messages.say(self.messages.chat({**message, "role": "assistant"}, self._number))
        return True

    def _observation(self, event: Mapping[str, Any]) -> None:
        known = mapping(event.get("tool_call_metadata"))
        content = self.messages.content(event.get("content"), self._number)
        if event["observation"] in _SILENT_OBSERVATIONS:
            return
        if known:
            self.messages.result(content, text_of(known.get("tool_call_id")), text_of(known.get("function_name")))
        elif content:
            self.messages.say(ForeignMessage("user", content))

    # --- the SDK ----------------------------------------------------------------------------------------------------

    def _sdk(self, event: Mapping[str, Any], kind: str) -> None:
        messages, number = self.messages, self._number
        call_id, name = text_of(event.get("tool_call_id")), text_of(event.get("tool_name"))
        if kind == "SystemPromptEvent":
            self.tools = tuple(map(mapping, sequence(event.get("tools"))))
            prompt = [event.get("system_prompt"), event.get("dynamic_context")]
            messages.say(ForeignMessage("system", "".join(messages.content(one, number) for one in prompt)))
        elif kind == "MessageEvent":
            said = dict(mapping(event.get("llm_message")))
            said.setdefault("role", "assistant" if event.get("source") == "agent" else "user")
            made = messages.chat(said, number)
            more = messages.content(event.get("extended_content"), number)
            messages.say(replace(made, content=made.content + more))
        elif kind == "ActionEvent":
            self._sdk_action(event, call_id, name)
        elif kind == "AgentErrorEvent":
            messages.result(text_of(event.get("error")), call_id, name)
        elif kind == "UserRejectObservation":
            messages.result(text_of(event.get("rejection_reason")), call_id, name)
        elif kind == "ObservationEvent":
            seen = mapping(event.get("observation"))
            content = next((seen[key] for key in ("content", "output", "text") if seen.get(key)), "")
            messages.result(messages.content(content, number), call_id, name)
        elif kind == "Condensation":
            self._condensed += 1

    def _sdk_action(self, event: Mapping[str, Any], call_id: str, name: str) -> None:
        stored = mapping(event.get("tool_call"))
        inner = mapping(stored.get("function")) or stored
        given = inner.get("arguments", mapping(event.get("action")))
        call = ForeignCall(text_of(inner.get("name")) or name, as_text(given), call_id or text_of(stored.get("id")))
        self.ended = "finish" if call.name == "finish" else self.ended
        key = text_of(event.get("llm_response_id"))
        if key and key in self._answers:  # one answer, several calls
            place = self._answers[key]
            turn = self.messages.made[place]
            self.messages.made[place] = replace(turn, calls=(*turn.calls, call))
            return
        shape = {key: event.get(key) for key in ("reasoning_content", "thinking_blocks")}
        said = {**shape, "role": "assistant", "content": event.get("thought")}
        made = self.messages.chat(said, self._number)
        if key:
            self._answers[key] = len(self.messages.made)
        self.messages.say(replace(made, calls=(call,)))
