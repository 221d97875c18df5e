"""What the tests of an episode share: scripted turns played against a small world."""

from __future__ import annotations

import asyncio
import json

from agent.engines.scripted import ScriptedPolicy
from agent.episode import run_episode
from agent.presets import Limits, Preset
from data.trajectory import ExitReason, Identity, SpanKind, Status, Trajectory


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


VIEW = call("view", path="a.py")


FIX = call("str_replace", path="a.py", old_str="x = 1", new_str="x = 2") + "\n" + call("submit")


LIMITS = dict(
    max_turns=5,
    max_tokens=400,
    max_context=2000,
    command_timeout_s=5,
    episode_timeout_s=20,
    observation_chars=400,
    answer_reserve=50,
)


def preset(**limits: object) -> Preset:
    return Preset(
        name="t", system="You fix bugs.", tools=("view", "str_replace", "submit"), limits=Limits(**{**LIMITS, **limits})
    )


def identity(renderer, episode: str = "run-000000-0") -> Identity:
    return Identity(episode, "task", 0, 42, renderer.tokenizer_fingerprint)


def play(
    renderer, env, turns, *, policy=None, cut_after=None, cut_when_busy=False, reports=None, **limits
) -> Trajectory:
    policy = policy or ScriptedPolicy(turns, encode=renderer.action_ids)

    async def run() -> Trajectory:
        cut = asyncio.Event()
        if cut_after is not None:
            asyncio.get_running_loop().call_later(cut_after, cut.set)
        if cut_when_busy:
            env.when_busy = cut.set
        return await run_episode(
            policy,
            renderer,
            env,
            preset(**limits),
            identity(renderer),
            cut=cut,
            on_turn=(reports.append if reports is not None else None),
        )

    trajectory = asyncio.run(run())
    assert env.closed >= 1
    return trajectory


def texts(renderer, trajectory: Trajectory, kind: SpanKind) -> list[str]:
    return [
        renderer.tokenizer.decode(trajectory.tokens[span.start : span.end].tolist())
        for span in trajectory.spans
        if span.kind is kind
    ]


def exit_of(trajectory: Trajectory) -> tuple[Status, ExitReason]:
    return trajectory.outcome.status, trajectory.outcome.exit_reason
