"""Scripted episodes in real sandboxes on real tiny repositories: the reference fix passes, doing nothing fails."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.engines.scripted import ScriptedPolicy
from agent.fleet import Fleet, FleetSettings, plan_draws
from agent.presets import load_preset
from data.loaders import load_tasks
from data.trajectory import ExitReason, Trajectory
from envs.sandbox import make_backend
from envs.sandbox.contract import BackendUnavailable
from envs.swe import SWEEnvironment
from envs.tools.toolset import ToolSet


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def reference_turns(row) -> list[str]:
    """view, then the one-line reference fix as str_replace and submit."""
    lines = row["patch"].splitlines()
    path = next(line[6:] for line in lines if line.startswith("+++ b/"))
    (old,) = (line[1:] for line in lines if line.startswith("-") and not line.startswith("---"))
    (new,) = (line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))
    edit = call("str_replace", path=path, old_str=old, new_str=new)
    return [call("view", path=path), edit + "\n" + call("submit")]


@pytest.mark.parametrize("fixing", [True, False])
def test_micro_swe_with_the_embedded_sandbox(renderer, fixing) -> None:
    tasks = [
        task
        for task in load_tasks("micro-swe", "train", limit=12)
        if sum(line.startswith("-") and not line.startswith("---") for line in task.row["patch"].splitlines()) == 1
        and sum(line.startswith("+") and not line.startswith("+++") for line in task.row["patch"].splitlines()) == 1
    ][:4]
    assert len(tasks) >= 2
    kept: list[Trajectory] = []

    async def run() -> None:
        backend = make_backend("embedded", "test-agent-real")
        try:
            try:
                await backend.check()
            except BackendUnavailable as error:
                pytest.skip(f"NO REAL EPISODE WAS RUN: {error}")
            preset = load_preset("demo")
            limits = preset.limits.model_copy(update={"max_context": 6000, "max_tokens": 2000})
            scripts = {
                f"real-{number:06d}-0": reference_turns(task.row) if fixing else [call("submit")]
                for number, task in enumerate(tasks)
            }
            fleet = Fleet(
                ScriptedPolicy(scripts, encode=renderer.action_ids),
                renderer,
                preset,
                lambda task: SWEEnvironment(task, backend, ToolSet(preset.tools)),
                kept.append,
                FleetSettings("real", 0, episodes_at_once=2, max_attempts=1, sandbox="embedded"),
                limits=limits,
            )
            await fleet.run(plan_draws(tasks))
        finally:
            await backend.close()

    asyncio.run(run())
    assert len(kept) == len(tasks)
    for made in kept:
        assert made.outcome.exit_reason is ExitReason.SUBMITTED, made.outcome
        assert made.outcome.reward == (1.0 if fixing else 0.0), made.outcome.grade
        assert bool(made.patch) == fixing
        assert made.turns == (2 if fixing else 1)
