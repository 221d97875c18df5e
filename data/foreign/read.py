"""Which format a file has, and its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.foreign.atif import atif
from data.foreign.openhands import looks_like, openhands
from data.foreign.run import ForeignError, ForeignRun, mapping
from data.foreign.swe_agents import mini, swe_agent
from data.reading import InputError, parse_json, read_bytes

READ = "mini-swe-agent (`messages`), SWE-agent (`history`), OpenHands (output.jsonl), ATIF (`schema_version`)"


def read_runs(path: Path) -> Iterator[ForeignRun | ForeignError]:
    """The file's runs; of a file with a run a line, a line that cannot be read comes as its error.

    Raises ForeignError where the file as a whole cannot be read."""
    try:
        data = read_bytes(path)
    except InputError as error:
        raise ForeignError(str(error)) from error
    lines = [line.strip() for line in data.split(b"\n") if line.strip()]
    if ".jsonl" in path.name and not lines:
        raise ForeignError(f"{path} holds no run")
    if ".jsonl" in path.name or (len(lines) > 1 and all(line[:1] + line[-1:] == b"{}" for line in lines[:2])):
        for number, line in enumerate(data.split(b"\n"), start=1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    yield _text(where, _run(path, where, line, in_lines=True))
                except ForeignError as error:
                    yield error
        return
    yield _text(str(path), _run(path, str(path), data))


def read_foreign(path: Path) -> ForeignRun:
    """The only run of a file. Raises ForeignError."""
    runs = list(read_runs(path))
    if len(runs) > 1:
        raise ForeignError(f"{path} holds {len(runs)} runs; read_runs gives all of them")
    if isinstance(runs[0], ForeignError):
        raise runs[0]
    return runs[0]


def _text(where: str, run: ForeignRun) -> ForeignRun:
    """Raises ForeignError for what no tokenizer and no file can hold."""
    for number, message in enumerate(run.messages):
        _encode(f"{where}: message {number}", message.text)
    _encode(f"{where}: its facts", f"{run.instance}{run.exit_status}{run.model}{run.harness}")
    return run


def _encode(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ForeignError(f"{where} holds half of a surrogate pair at character {error.start}: no text") from error


def _run(path: Path, where: str, data: bytes, in_lines: bool = False) -> ForeignRun:
    try:
        value = parse_json(data.decode(), where, surrogates=True)  # `_text` says in which message
    except UnicodeDecodeError as error:
        raise ForeignError(f"{where} is no JSON: {error}") from error
    except InputError as error:
        raise ForeignError(str(error)) from error
    digest = hashlib.sha256(data).hexdigest()
    if isinstance(value, list) and not _other(value):
        return mini(path, where, {"messages": value}, digest)
    if isinstance(value, dict):
        if isinstance(value.get("schema_version"), str) and isinstance(value.get("steps"), list):
            return atif(path, where, value, digest)
        if looks_like(value):
            return openhands(path, where, value, digest)
        if isinstance(value.get("messages"), list) and not in_lines:
            return mini(path, where, value, digest)
        if isinstance(value.get("history"), list):
            return swe_agent(path, where, value, digest)
    if other := _other(value):
        raise ForeignError(f"{where} is {other}; read are {READ}")
    found = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
    raise ForeignError(f"{where} is in no format that is read: {READ}. It holds: {found[:200]}")


def _other(value: Any) -> str:
    """The name of a format that is not read, empty where none is known by its look."""
    first: Mapping[str, Any] = mapping(value[0] if isinstance(value, list) and value else value)
    for keys, name in _OTHERS:
        if all(key in first for key in keys):
            return name
    return ""


_OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("instance_id", "model_patch"), "SWE-bench predictions (`sao eval swebench grade` reads them)"),
    (("org", "repo", "number", "fix_patch"), "Multi-SWE-bench predictions (`sao eval swebench grade` reads them)"),
    (("conversations",), "ShareGPT conversations, which are no trajectory"),
    (("sessionId", "message"), "a session of Claude Code"),
    (("payload", "type"), "a session of Codex"),
    (("eval", "samples"), "a log of Inspect"),
    (("trajectory_steps",), "a trajectory of R2E-Gym"),
    (("observation", "source"), "OpenHands' events alone (its output.jsonl is read)"),
    (("action", "source"), "OpenHands' events alone (its output.jsonl is read)"),
    (("kind", "source"), "OpenHands' events alone (its output.jsonl is read)"),
    (("choices", "object"), "an answer of a chat API"),
    (("version", "width", "height"), "a terminal recording (asciinema)"),
    (("messages",), "a set of chats, which is no trajectory (`sao sft --chats` reads it)"),
)
