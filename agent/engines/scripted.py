"""Engines without a model: play written turns, or play a logged trajectory's own tokens again.

Promises: ids go out exactly as given, one entry per `generate`, under the same limits as a real engine.
`ScriptedPolicy` records log-probability 0.0 and version 0 for every token: nothing was sampled, so its trajectories are
for tests and demonstrations and say so in their identity (`lineage = "scripted"`); do not train on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from agent.policy import EngineError, Generation, Policy, StopReason
from data.trajectory import SpanKind, Trajectory

Turn = str | Sequence[int]
"""A text (encoded with its end of turn) or the ids themselves."""


class ScriptedPolicy(Policy):
    """Plays the same turns in every episode, or `turns[episode_id]` where a mapping is given.

    `encode` turns a text into the ids of a whole turn (e.g. `QwenRenderer.action_ids`). Episodes are told apart by
    `episode_id`. When the turns are used up: EngineError, unless `repeat_last`.
    """

    def __init__(
        self,
        turns: Sequence[Turn] | Mapping[str, Sequence[Turn]],
        *,
        encode: Callable[[str], list[int]] | None = None,
        repeat_last: bool = False,
        delay_s: float = 0.0,
    ) -> None:
        self.lineage, self.version = "scripted", 0
        self._turns, self._encode = turns, encode
        self._repeat_last, self._delay_s = repeat_last, delay_s
        self._played: dict[str, int] = {}

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        episode_id: str = "",
    ) -> Generation:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if isinstance(self._turns, Mapping):
            if episode_id not in self._turns:
                raise EngineError(f"no script for episode {episode_id!r}")
            turns = self._turns[episode_id]
        else:
            turns = self._turns
        at = self._played.get(episode_id, 0)
        if at >= len(turns) and not (self._repeat_last and turns):
            raise EngineError(f"the script of {len(turns)} turns is used up in episode {episode_id!r}")
        self._played[episode_id] = at + 1
        ids = self._ids(turns[min(at, len(turns) - 1)])
        return played(ids, [0.0] * len(ids), [0] * len(ids), max_new_tokens, stop_ids)

    def _ids(self, turn: Turn) -> list[int]:
        if not isinstance(turn, str):
            return list(turn)
        if self._encode is None:
            raise EngineError("a scripted text needs `encode` (for example QwenRenderer.action_ids)")
        return self._encode(turn)

    async def forget(self, episode_id: str) -> None:
        self._played.pop(episode_id, None)

    async def close(self) -> None:
        self._played.clear()


class ReplayPolicy(Policy):
    """Plays one trajectory's action tokens with their own log-probabilities and versions, turn by turn.

    It answers by turn whatever it is shown, so that an episode can run again although an observation differs; compare
    the observations afterwards.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.lineage = trajectory.identity.lineage
        self.version = trajectory.oldest_version or 0
        self._trajectory = trajectory
        self._spans = [span for span in trajectory.spans if span.kind is SpanKind.ACTION]
        self._next = 0

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        episode_id: str = "",
    ) -> Generation:
        if self._next >= len(self._spans):
            raise EngineError(f"the logged episode has {len(self._spans)} turns and one more was asked for")
        span = self._spans[self._next]
        self._next += 1
        logged = self._trajectory
        return played(
            logged.tokens[span.start : span.end].tolist(),
            logged.logprobs[span.start : span.end].tolist(),
            logged.versions[span.start : span.end].tolist(),
            max_new_tokens,
            stop_ids,
        )

    async def close(self) -> None:
        """Nothing is held."""


def played(
    tokens: list[int], logprobs: list[float], versions: list[int], max_new_tokens: int, stop_ids: Sequence[int]
) -> Generation:
    """What an engine would return for these tokens: up to the first stop token, within the limit."""
    if not tokens:
        raise EngineError("a scripted turn has no tokens")
    stops = frozenset(stop_ids)
    end = next((at + 1 for at, token in enumerate(tokens) if token in stops), len(tokens))
    end = min(end, max_new_tokens)
    reason = StopReason.STOP if tokens[end - 1] in stops else StopReason.LENGTH
    return Generation(tokens[:end], logprobs[:end], versions[:end], reason)
