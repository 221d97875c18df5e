"""A control: the same environment with its observations hidden, so that only what needs no reading can be learnt."""

from __future__ import annotations

from envs.environment import Environment, Grade, Observation, ToolCall

HIDDEN = "(hidden)"


class BlindEnvironment(Environment):
    """Every call runs as it would; its text, and whether it failed, is replaced by the same word."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.tools = inner.tools
        self.takes_text = inner.takes_text

    def answer(self, text: str) -> None:
        self._inner.answer(text)

    async def reset(self) -> str:
        return await self._inner.reset()

    async def step(self, call: ToolCall) -> Observation:
        observation = await self._inner.step(call)
        return Observation(HIDDEN, done=observation.done)

    async def grade(self) -> Grade:
        return await self._inner.grade()

    async def close(self) -> None:
        await self._inner.close()
