"""A conversation in exact tokens: a policy continues ids, a renderer gives the ids of new messages alone.

Ids are only appended; what was sampled is never rendered again. The trajectory it finishes can be trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.dialogue import Dialogue, fitted
from agent.parsers import Parsed, Tools
from agent.policy import EngineError, Generation, Policy, StopReason
from agent.presets import Preset
from agent.renderers import Message, Renderer
from agent.renderers.fenced import FencedRenderer
from data.trajectory import TrajectoryBuilder


class TokenDialogue(Dialogue):
    builder: TrajectoryBuilder

    def __init__(self, policy: Policy, renderer: Renderer, preset: Preset, episode_id: str) -> None:
        self.policy, self.episode_id = policy, episode_id
        self.renderer = FencedRenderer(renderer) if preset.calls == "fenced" else renderer
        self.max_context = policy.max_context
        self._tools: Tools = ()
        self._before: list[int] = []
        self._made: Generation | None = None

    def clock(self) -> float:
        return self.policy.clock()

    def begin(self, messages: Sequence[Message], tools: Tools, *, listed: bool) -> None:
        self._tools = tools
        self.builder = TrajectoryBuilder(self.renderer.prompt_ids(messages, tools if listed else []))

    @property
    def sampled(self) -> int:
        return self.builder.action_tokens

    @property
    def used(self) -> int:
        return len(self.builder)

    async def generate(self, room: int, seed: int) -> StopReason:
        before = self.builder.tokens
        made = await self.policy.generate(
            before,
            max_new_tokens=room,
            stop_ids=self.renderer.stop_ids,
            seed=seed,
            episode_id=self.episode_id,
        )
        if not made.tokens and made.stop_reason is not StopReason.ABORTED:
            raise EngineError("the engine returned no tokens")
        self._before, self._made = before, made
        self.turn_tokens = len(made.tokens)
        if made.tokens:
            self.turn_logprob = sum(made.logprobs) / len(made.logprobs)
            self.builder.append_action(made.tokens, made.logprobs, made.versions)
        return made.stop_reason

    async def abort(self) -> None:
        await self.policy.abort(self.episode_id)

    def parse(self, *, cut: bool) -> Parsed:
        return self.renderer.parse(self._newest.tokens, before=self._before, cut=cut, tools=self._tools)

    def said(self) -> str:
        return self.renderer.said(self._newest.tokens, before=self._before)

    def observe(self, texts: list[str], names: Sequence[str | None], room: int) -> int | None:
        last = self._newest.tokens[-1]
        ended_by = last if last in self.renderer.stop_ids else None
        ids = fitted(texts, room, lambda shown: self.renderer.observation_ids(shown, ended_by, names), len)
        if ids is None:
            return None
        self.builder.append_observation(ids)
        return len(ids)

    @property
    def _newest(self) -> Generation:
        assert self._made is not None, "no turn was made yet"
        return self._made
