"""Trajectory files of other agents, as they are: mini-swe-agent (v1 `messages`, also its bare message lists) and
SWE-agent (`history`, with and without tool calls); plain or gzip.

Promises: message texts are the file's, unchanged; what the file lacks is listed (`lacks`), never made up; a task of a
public benchmark is named as such. Raises ForeignError, which says what in which file is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.reading import InputError, parse_json, read_bytes, shown

_INSTANCE = re.compile(r"(?<![\w-])([A-Za-z0-9][\w.-]*?)__([A-Za-z0-9][\w.-]*?)-(\d+)(?![\w-])")
"""owner__repo-number, as SWE-bench and its relatives name their tasks."""
ALWAYS_LACKS = ("log-probabilities", "token ids as sampled", "policy version", "a reward of this project's grader")


class ForeignError(InputError):
    """A file is no trajectory that can be read; the text says which and why."""


@dataclass(frozen=True)
class ForeignMessage:
    role: str
    text: str
    """The content and, below it, tool calls as `name {arguments}`, arguments as the file has them."""


@dataclass(frozen=True)
class ForeignRun:
    harness: str
    """mini-swe-agent or SWE-agent, with a version where the file says it."""
    instance: str
    """The task's id, the file's name where it has none."""
    messages: tuple[ForeignMessage, ...]
    exit_status: str = ""
    submission: str = ""
    """The final diff, as the file has it."""
    model: str = ""
    temperature: float | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""
    """Of the file's (unpacked) bytes."""

    @property
    def is_benchmark(self) -> bool:
        """The task has an id of the SWE-bench kind: benchmark data, for looking and evaluation only."""
        return _INSTANCE.fullmatch(self.instance) is not None

    @property
    def lacks(self) -> tuple[str, ...]:
        named = {"exit status": self.exit_status, "final diff": self.submission, "model's name": self.model}
        return (*ALWAYS_LACKS, *(name for name, value in named.items() if not value))


def read_foreign(path: Path) -> ForeignRun:
    """Raises ForeignError."""
    try:
        data = read_bytes(path)
        value = parse_json(data.decode(), shown(path))
    except UnicodeDecodeError as error:
        raise ForeignError(f"{path} is no JSON: {error}") from error
    except InputError as error:
        raise ForeignError(str(error)) from error
    digest = hashlib.sha256(data).hexdigest()
    if isinstance(value, list):
        return _mini(path, {"messages": value}, digest)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return _mini(path, value, digest)
    if isinstance(value, dict) and isinstance(value.get("history"), list):
        return _swe_agent(path, value, digest)
    found = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
    raise ForeignError(
        f"{path} is no trajectory of mini-swe-agent (it has no list `messages`) or SWE-agent (no list `history`); it "
        f"holds: {found[:200]}"
    )


def _mini(path: Path, value: Mapping[str, Any], digest: str) -> ForeignRun:
    info = _mapping(value.get("info"))
    model = _mapping(_mapping(info.get("config")).get("model"))
    version = str(info.get("mini_version") or "")
    return ForeignRun(
        harness=f"mini-swe-agent {version}".strip(),
        instance=str(value.get("instance_id") or _stem(path)),
        messages=_messages(path, value["messages"]),
        exit_status=str(info.get("exit_status") or ""),
        submission=str(info.get("submission") or ""),
        model=str(model.get("model_name") or ""),
        temperature=_number(_mapping(model.get("model_kwargs")).get("temperature")),
        stats=_stats(info),
        sha256=digest,
    )


def _swe_agent(path: Path, value: Mapping[str, Any], digest: str) -> ForeignRun:
    info = _mapping(value.get("info"))
    config = value.get("replay_config")
    if isinstance(config, str):  # some versions keep it as text
        try:
            config = parse_json(config, "replay_config")
        except InputError:
            config = {}
    agent = _mapping(_mapping(config).get("agent"))
    model = _mapping(agent.get("model"))
    named = next((name for name in (str(agent.get("name") or ""), _stem(path)) if _INSTANCE.search(name)), "")
    version = str(info.get("swe_agent_version") or "")
    return ForeignRun(
        harness=f"SWE-agent {version}".strip(),
        instance=(found[0] if (found := _INSTANCE.search(named)) else "") or _of_repository(path, value) or _stem(path),
        messages=_messages(path, value["history"]),
        exit_status=str(info.get("exit_status") or ""),
        submission=str(info.get("submission") or ""),
        model=str(model.get("name") or ""),
        temperature=_number(model.get("temperature")),
        stats=_stats(info),
        sha256=digest,
    )


def _of_repository(path: Path, value: Mapping[str, Any]) -> str:
    """Old SWE-agent files name no task, but work in /owner__repo, and are named after its number."""
    number = re.search(r"-(\d+)(?!\d)", _stem(path))
    first = json.dumps(value.get("trajectory") or "")[:200_000]
    folder = re.search(r"/([A-Za-z0-9][\w.-]*?__[A-Za-z0-9][\w.-]*?)[/\"\\ )]", first)
    return f"{folder[1]}-{number[1]}" if number and folder else ""


def _messages(path: Path, given: Sequence[Any]) -> tuple[ForeignMessage, ...]:
    made = []
    for number, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ForeignError(f"{path}: message {number} has no role")
        made.append(ForeignMessage(message["role"], _text(path, number, message)))
    if not any(message.role == "assistant" for message in made):
        raise ForeignError(f"{path}: no message of the role assistant: there is no turn to show")
    if made[0].role == "assistant":
        raise ForeignError(f"{path}: it begins with a model turn; the prompt is missing")
    return tuple(made)


def _text(path: Path, number: int, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # parts of text
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise ForeignError(f"{path}: the content of message {number} is {type(content).__name__}, not text")
    calls = [_mapping(_mapping(call).get("function")) for call in message.get("tool_calls") or []]
    lines = [f"{call.get('name', '?')} {_arguments(call.get('arguments'))}" for call in calls]
    return "\n\n".join([*([content] if content else []), *lines])


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _stats(info: Mapping[str, Any]) -> dict[str, Any]:
    stats = _mapping(info.get("model_stats"))
    return {key: value for key, value in stats.items() if isinstance(value, int | float | str)}


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".traj")
    return name or path.name


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
