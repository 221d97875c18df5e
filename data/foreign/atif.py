"""ATIF v1, the Agent Trajectory Interchange Format that harbor writes (`agent/trajectory.json` of a trial)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.foreign.messages import Messages
from data.foreign.run import (
    ForeignCall,
    ForeignError,
    ForeignMessage,
    ForeignRun,
    as_text,
    checked,
    instance_of,
    mapping,
    plain_stats,
    sequence,
    stem,
    text_of,
)

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def atif(path: Path, where: str, value: Mapping[str, Any], digest: str) -> ForeignRun:
    version = str(value["schema_version"])
    if not version.startswith("ATIF-v1."):
        raise ForeignError(f"{where}: its format is {version}; of ATIF version 1 is read")
    agent, extra = mapping(value.get("agent")), mapping(value.get("extra"))
    messages = Messages(where)
    copied = measured = referred = 0
    for number, step in enumerate(map(mapping, sequence(value.get("steps")))):
        role = _ROLES.get(text_of(step.get("source")))
        if role is None:
            source = step.get("source")
            raise ForeignError(f"{where}: step {number + 1} has the source {source!r}, not system, user or agent")
        copied += bool(step.get("is_copied_context"))
        measures = mapping(step.get("metrics"))
        measured += any(measures.get(key) for key in ("logprobs", "completion_token_ids"))
        calls = tuple(map(_call, sequence(step.get("tool_calls"))))
        content = messages.content(step.get("message"), number)
        thought = text_of(step.get("reasoning_content"))
        results = [mapping(one) for one in sequence(mapping(step.get("observation")).get("results"))]
        if role == "assistant" or content or not results:
            messages.say(ForeignMessage(role, content, thought, calls))
        for result in results:
            referred += bool(result.get("subagent_trajectory_ref"))
            text, call = messages.content(result.get("content"), number), text_of(result.get("source_call_id"))
            if call:
                messages.result(text, call)
            else:
                messages.say(ForeignMessage("user", text))
    more = {
        "token ids or log-probabilities of {} steps": measured,
        "the marks of {} steps as copied from an earlier trajectory": copied,
        "{} trajectories of subagents": max(referred, len(sequence(value.get("subagent_trajectories")))),
        "the trajectory that continues it ({})": value.get("continued_trajectory_ref"),
    }
    name = text_of(agent.get("name"))
    return ForeignRun(
        harness=f"{name} {text_of(agent.get('version'))}".strip() + f" ({version})",
        instance=_instance(path, value, extra),
        messages=checked(where, messages.made),
        exit_status=text_of(extra.get("exit_status")),
        submission=text_of(extra.get("submission")),
        model=text_of(agent.get("model_name")),
        stats=plain_stats(value.get("final_metrics")),
        not_carried=(*messages.not_carried, *(text.format(count) for text, count in more.items() if count)),
        tools=tuple(map(mapping, sequence(agent.get("tool_definitions")))),
        sha256=digest,
    )


def _call(value: Any) -> ForeignCall:
    call = mapping(value)
    name = text_of(call.get("function_name")) or "?"
    return ForeignCall(name, as_text(call.get("arguments", {})), text_of(call.get("tool_call_id")))


def _instance(path: Path, value: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    """The format names no task; harbor's folders do: <task>__<letters>/agent/trajectory.json."""
    folder = path.absolute().parent
    trial = folder.parent.name if folder.name == "agent" else folder.name
    named = [extra.get(key) for key in ("instance_id", "task_id", "task_name")]
    if trial.count("__") > 1 or (folder.name == "agent" and "__" in trial):
        named.append(trial.rpartition("__")[0])
    own = stem(path) if stem(path) != "trajectory" else trial
    return instance_of(*named, own, value.get("trajectory_id"), value.get("session_id"))
