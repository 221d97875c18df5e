"""Files of mini-swe-agent and SWE-agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.foreign.messages import Messages
from data.foreign.run import (
    INSTANCE,
    ForeignRun,
    checked,
    instance_of,
    mapping,
    number_of,
    plain_stats,
    sequence,
    stem,
    text_of,
)
from data.reading import InputError, parse_json


def mini(path: Path, where: str, value: Mapping[str, Any], digest: str) -> ForeignRun:
    info = mapping(value.get("info"))
    model = mapping(mapping(info.get("config")).get("model"))
    version = str(info.get("mini_version") or "")
    given = sequence(value["messages"])
    last = mapping(mapping(given[-1]).get("extra")) if given else {}  # v2 repeats the end there
    messages = Messages(where)
    messages.read(given)
    return ForeignRun(
        harness=f"mini-swe-agent {version}".strip(),
        instance=str(value.get("instance_id") or stem(path)),
        messages=checked(where, messages.made),
        exit_status=str(info.get("exit_status") or last.get("exit_status") or ""),
        submission=str(info.get("submission") or last.get("submission") or ""),
        model=str(model.get("model_name") or ""),
        temperature=number_of(mapping(model.get("model_kwargs")).get("temperature")),
        stats=plain_stats(info.get("model_stats")),
        not_carried=messages.not_carried,
        sha256=digest,
    )


def swe_agent(path: Path, where: str, value: Mapping[str, Any], digest: str) -> ForeignRun:
    info = mapping(value.get("info"))
    config = value.get("replay_config")
    if isinstance(config, str):  # some versions keep it as text
        try:
            config = parse_json(config, "replay_config")
        except InputError:
            config = {}
    agent = mapping(mapping(config).get("agent"))
    model = mapping(agent.get("model"))
    named = next((name for name in (text_of(agent.get("name")), stem(path)) if INSTANCE.search(name)), "")
    version = str(info.get("swe_agent_version") or "")
    messages = Messages(where)
    messages.read(value["history"])
    return ForeignRun(
        harness=f"SWE-agent {version}".strip(),
        instance=(instance_of(named) or _of_repository(path, value) or stem(path)),
        messages=checked(where, messages.made),
        exit_status=str(info.get("exit_status") or ""),
        submission=str(info.get("submission") or ""),
        model=str(model.get("name") or ""),
        temperature=number_of(model.get("temperature")),
        stats=plain_stats(info.get("model_stats")),
        not_carried=messages.not_carried,
        sha256=digest,
    )


def _of_repository(path: Path, value: Mapping[str, Any]) -> str:
    """Old SWE-agent files name no task, but work in /owner__repo, and are named after its number."""
    number = re.search(r"-(\d+)(?!\d)", stem(path))
    first = json.dumps(value.get("trajectory") or "")[:200_000]
    folder = re.search(r"/([A-Za-z0-9][\w.-]*?__[A-Za-z0-9][\w.-]*?)[/\"\\ )]", first)
    return f"{folder[1]}-{number[1]}" if number and folder else ""
