"""What every format is read into: a run of messages, with what its file lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.reading import InputError

INSTANCE = re.compile(r"(?<![\w-])([A-Za-z0-9][\w.-]*?)__([A-Za-z0-9][\w.-]*?)-(\d+)(?![\w-])")
"""owner__repo-number, as SWE-bench and its relatives name their tasks."""
ALWAYS_LACKS = ("log-probabilities", "token ids as sampled", "policy version", "a reward of this project's grader")


class ForeignError(InputError):
    """A file is no trajectory that can be read; the text says which and why."""


@dataclass(frozen=True)
class ForeignCall:
    name: str
    arguments: str
    """As the file has them; JSON where it has an object."""
    id: str = ""


@dataclass(frozen=True)
class ForeignMessage:
    role: str
    content: str = ""
    thought: str = ""
    """What was thought before it was said, where the file keeps it apart."""
    calls: tuple[ForeignCall, ...] = ()
    answers: str = ""
    """Id of the call that a message of the role `tool` answers, where the file says it."""
    name: str = ""
    """The tool that it answers for, where the file says it."""

    @property
    def text(self) -> str:
        """All of it as one text: the thought between tags, the content, and the calls as `name arguments`."""
        thought = [f"<think>\n{self.thought}\n</think>"] if self.thought else []
        calls = [f"{call.name} {call.arguments}".rstrip(" ") for call in self.calls]
        return "\n\n".join([*thought, *([self.content] if self.content else []), *calls])


@dataclass(frozen=True)
class ForeignRun:
    harness: str
    """Whose file it is, with a version where the file says it."""
    instance: str
    """The task's id, the file's name where it has none."""
    messages: tuple[ForeignMessage, ...]
    exit_status: str = ""
    submission: str = ""
    """The final diff, as the file has it."""
    model: str = ""
    temperature: float | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    not_carried: tuple[str, ...] = ()
    """What the file holds and the messages do not."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the tools, where the file has them."""
    sha256: str = ""
    """Of the file's (unpacked) bytes, or its line's."""

    @property
    def is_benchmark(self) -> bool:
        """The task has an id of the SWE-bench kind: benchmark data, for looking and evaluation only."""
        return INSTANCE.fullmatch(self.instance) is not None

    @property
    def lacks(self) -> tuple[str, ...]:
        named = {"exit status": self.exit_status, "final diff": self.submission, "model's name": self.model}
        return (*ALWAYS_LACKS, *(name for name, value in named.items() if not value), *self.not_carried)


def checked(where: str, messages: list[ForeignMessage]) -> tuple[ForeignMessage, ...]:
    """Raises ForeignError where there is nothing to show."""
    if not any(message.role == "assistant" for message in messages):
        raise ForeignError(f"{where}: no message of the role assistant: there is no turn to show")
    if messages[0].role == "assistant":
        raise ForeignError(f"{where}: it begins with a model turn; the prompt is missing")
    return tuple(messages)


def instance_of(*candidates: Any) -> str:
    """The first id of the SWE-bench kind in these texts, else the first text that is none empty."""
    texts = [text for text in candidates if isinstance(text, str) and text]
    return next((found[0] for text in texts if (found := INSTANCE.search(text))), texts[0] if texts else "")


def stem(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".traj")
    return name or path.name


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def number_of(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_text(value: Any) -> str:
    """Arguments of a call: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def plain_stats(stats: Any) -> dict[str, Any]:
    return {key: value for key, value in mapping(stats).items() if isinstance(value, int | float | str)}
