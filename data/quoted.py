"""Trajectories whose turns are text: of endpoints and imported files. To be looked at and scored, never trained on.

An endpoint gives text and tool calls, no ids and no log-probabilities. Its turns are kept as `quoted` spans, text as
ids of some tokenizer; what the endpoint counted and said of each turn stands in the outcome's `grade`, under `ENDPOINT`
(`agent.endpoint.dialogue` writes it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.trajectory import SpanKind, Status, Trajectory

ENDPOINT = "endpoint"
"""Key of `Outcome.grade`: model asked for, and per turn the model that answered, usage, finish and refusal reasons."""


def endpoint_facts(trajectory: Trajectory) -> Mapping[str, Any]:
    """What an endpoint said of its episode; empty for any other."""
    return trajectory.outcome.grade.get(ENDPOINT) or {}


def model_tokens(trajectory: Trajectory) -> int:
    """Tokens that the model made: sampled ones, or for an endpoint's episode as many as the endpoint counted."""
    if facts := endpoint_facts(trajectory):
        return int(facts.get("completion_tokens", 0))
    return sum(len(span) for span in trajectory.spans if span.kind is SpanKind.ACTION)


def quoted_refusal(trajectory: Trajectory) -> str:
    """Why a trajectory in text is never trained on, whatever the method; empty for one that was sampled here."""
    seen, identity = trajectory.outcome.grade, trajectory.identity
    if trajectory.outcome.status is Status.IMPORTED:
        why = f"episode {identity.episode_id} was imported from {seen.get('file', 'a file')} to be looked at"
        if seen.get("benchmark"):
            why += f"; its task {identity.task_id} is benchmark data, which no training may see"
    elif facts := endpoint_facts(trajectory):
        why = f"episode {identity.episode_id} was played by the endpoint's model {facts.get('model', '?')}"
    elif any(span.kind is SpanKind.QUOTED for span in trajectory.spans):
        why = f"episode {identity.episode_id} holds turns that were written elsewhere"
    else:
        return ""
    return f"{why}; it has no log-probabilities and no ids as sampled"
