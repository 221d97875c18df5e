"""Score a policy on tasks it was not trained on: the pass rate with its Wilson interval and how it was sampled.

Promises: a task counts once; infrastructure faults are tried again, and a task that never got a grade is not counted
as a failure but named in `ungraded`; the temperature and the policy versions that sampled stand beside the rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.dialogue import TextActor
from agent.fleet import Event, Fleet, FleetSettings, Stop, plan_draws
from agent.policy import Policy
from agent.presets import Preset
from agent.renderers import Renderer
from data.quoted import model_tokens
from data.task import Task
from data.trajectory import Status, Trajectory
from envs.environment import Environment
from eval.statistics import wilson_interval


@dataclass
class HeldoutScore:
    """`passed` of `graded` tasks got a reward of 1."""

    tasks: int
    temperature: float
    passed: int = 0
    graded: int = 0
    versions: list[int] = field(default_factory=list)
    """Oldest and newest policy version that sampled a token."""
    action_tokens: int = 0
    exits: dict[str, int] = field(default_factory=dict)

    @property
    def ungraded(self) -> int:
        return self.tasks - self.graded

    @property
    def rate(self) -> float:
        return self.passed / max(self.graded, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson."""
        return wilson_interval(self.passed, self.graded)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {**asdict(self), "rate": self.rate, "wilson_95": [low, high], "ungraded": self.ungraded}

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], tasks: int, temperature: float) -> HeldoutScore:
        """The last graded trajectory of each draw counts."""
        by_draw = {t.identity.draw: t for t in trajectories if t.outcome.status is Status.GRADED}
        sampled = [t for t in by_draw.values() if t.action_mask.any()]
        versions = [int(t.versions[t.action_mask].min()) for t in sampled] + [int(t.versions.max()) for t in sampled]
        return cls(
            tasks=tasks,
            temperature=temperature,
            passed=sum((t.outcome.reward or 0.0) >= 1.0 for t in by_draw.values()),
            graded=len(by_draw),
            versions=[min(versions), max(versions)] if versions else [],
            action_tokens=sum(map(model_tokens, by_draw.values())),
            exits=dict(Counter(str(t.outcome.exit_reason) for t in by_draw.values())),
        )


async def score(
    policy: Policy | TextActor,
    renderer: Renderer,
    preset: Preset,
    make_env: Callable[[Task], Environment],
    tasks: Sequence[Task],
    settings: FleetSettings,
    *,
    keep: Callable[[Trajectory], None] | None = None,
    observer: Callable[[Event], None] | None = None,
    stop: Stop | None = None,
) -> tuple[HeldoutScore, list[Trajectory]]:
    """Each task once, at the policy's own sampling. `keep` gets every trajectory, e.g. to log it. Raises FaultStorm."""
    made: list[Trajectory] = []

    def take(trajectory: Trajectory) -> None:
        made.append(trajectory)
        if keep is not None:
            keep(trajectory)

    fleet = Fleet(policy, renderer, preset, make_env, take, settings, observer=observer, stop=stop)
    await fleet.run(plan_draws(tasks))
    return HeldoutScore.of(made, len(tasks), policy.sampling.temperature), made
