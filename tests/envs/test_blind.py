from __future__ import annotations

import asyncio

from envs.blind import HIDDEN, BlindEnvironment
from envs.environment import Environment, Grade, Observation, ToolCall


class Talkative(Environment):
    tools = ({"type": "function", "function": {"name": "view"}},)

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.closed = False

    async def reset(self) -> str:
        return "the problem"

    async def step(self, call: ToolCall) -> Observation:
        self.calls.append(call)
        return Observation(
            f"secret of {call.name}", done=call.name == "submit", error="bad" if call.name == "x" else None
        )

    async def grade(self) -> Grade:
        return Grade(1.0, {"tests": 3}, b"patch")

    async def close(self) -> None:
        self.closed = True


def test_calls_run_and_nothing_is_told() -> None:
    async def play() -> None:
        inner = Talkative()
        blind = BlindEnvironment(inner)
        assert await blind.reset() == "the problem"
        assert list(blind.tools) == list(inner.tools)
        for name in ("view", "x", "submit"):
            observation = await blind.step(ToolCall(name, {"path": "a"}))
            assert (observation.text, observation.error, observation.done) == (HIDDEN, None, name == "submit")
        assert [call.name for call in inner.calls] == ["view", "x", "submit"]
        assert await blind.grade() == Grade(1.0, {"tests": 3}, b"patch")
        await blind.close()
        assert inner.closed

    asyncio.run(play())
