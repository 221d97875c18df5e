"""Episodes that end otherwise: faults of the environment and of the engine, cuts, clocks, cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent.engines.embedded import EmbeddedPolicy
from agent.engines.scripted import ScriptedPolicy
from agent.episode import run_episode
from agent.policy import EngineError, Generation, Policy, StopReason
from data.trajectory import ExitReason, Status, Trajectory
from envs.environment import EnvironmentFault
from envs.sandbox.contract import EndedInside, OutOfDisk, OutOfMemory, SandboxDead, StartFailed
from tests.agent.episode_support import FIX, VIEW, exit_of, identity, play, preset


@pytest.mark.parametrize(
    ("phase", "error", "reason", "turns"),
    [
        ("reset", StartFailed("no image"), ExitReason.SANDBOX_ERROR, 0),
        ("reset", EnvironmentFault("bad repository"), ExitReason.SANDBOX_ERROR, 0),
        ("step", SandboxDead("gone"), ExitReason.SANDBOX_ERROR, 1),
        ("grade", EnvironmentFault("grader crashed"), ExitReason.GRADER_ERROR, 2),
        ("grade", SandboxDead("gone"), ExitReason.GRADER_ERROR, 2),
    ],
)
def test_faults_keep_the_tokens_and_never_give_a_reward(renderer, World, phase, error, reason, turns) -> None:
    made = play(renderer, World(faults={phase: error}), [VIEW, FIX])
    assert exit_of(made) == (Status.INFRA_ERROR, reason)
    assert made.outcome.reward is None
    assert made.turns == turns
    assert made.outcome.grade == {"phase": phase, "kind": type(error).__name__, "message": str(error)}


@pytest.mark.parametrize("error", [EndedInside("killed"), OutOfMemory("filled"), OutOfDisk("full")])
def test_a_sandbox_that_the_models_commands_ended_is_graded(renderer, World, error) -> None:
    made = play(renderer, World(faults={"step": error}), [VIEW, FIX])
    assert exit_of(made) == (Status.GRADED, ExitReason.SANDBOX_ENDED)
    assert made.outcome.reward == 0.0
    assert made.turns == 1
    assert made.outcome.grade["sandbox_ended"] == str(error)
    for phase in ("reset", "grade"):  # there no command of the model's runs
        assert play(renderer, World(faults={phase: error}), [VIEW, FIX]).outcome.status is Status.INFRA_ERROR


def test_engine_failure_is_an_infra_error(renderer, World) -> None:
    made = play(renderer, World(), [VIEW])  # the script is used up at the second turn
    assert exit_of(made) == (Status.INFRA_ERROR, ExitReason.ENGINE_ERROR)
    assert made.turns == 1
    assert "used up" in made.outcome.grade["message"]


def test_an_engine_that_returns_nothing_is_an_infra_error(renderer, World) -> None:
    class Empty(ScriptedPolicy):
        async def generate(self, tokens, **options):
            return Generation([], [], [], StopReason.LENGTH)

    made = play(renderer, World(), [], policy=Empty([]))
    assert exit_of(made) == (Status.INFRA_ERROR, ExitReason.ENGINE_ERROR)


@pytest.mark.parametrize("phase", ["reset", "step", "grade"])
def test_cut_while_the_environment_works(renderer, World, phase) -> None:
    made = play(renderer, World(delays={phase: 60}), [VIEW, FIX], cut_when_busy=True)
    assert exit_of(made) == (Status.CUT, ExitReason.SYSTEM_CUT)
    assert made.outcome.grade == {"phase": phase}
    assert made.timings["total"] < 30


@pytest.mark.parametrize(("phase", "limit"), [("reset", "reset_timeout_s"), ("grade", "grade_timeout_s")])
def test_a_hung_environment_is_an_infra_error(renderer, World, phase, limit) -> None:
    made = play(renderer, World(delays={phase: 5}), [FIX], **{limit: 0.05})
    assert made.outcome.status is Status.INFRA_ERROR
    assert "did not return within" in made.outcome.grade["message"]


class Slow(Policy):
    """One token every 10 ms; aborts like an engine does."""

    lineage, version = "slow", 3

    def __init__(self, can_abort: bool = True) -> None:
        self.can_abort, self.aborted, self.cancelled = can_abort, False, False

    async def generate(self, tokens, *, max_new_tokens, stop_ids, seed, episode_id=""):
        made: list[int] = []
        try:
            while len(made) < max_new_tokens and not self.aborted:
                await asyncio.sleep(0.01)
                made.append(5)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        reason = StopReason.ABORTED if self.aborted else StopReason.LENGTH
        return Generation(made, [-0.5] * len(made), [3] * len(made), reason)

    async def abort(self, episode_id: str) -> None:
        self.aborted = self.can_abort

    async def close(self) -> None: ...


def test_an_engine_whose_clock_stands_still_costs_an_episode_no_time(renderer, World) -> None:
    class Resting(Slow):
        """Away for half a second, five times the episode's limit."""

        def clock(self) -> float:
            since = time.monotonic() - self.began
            return min(since, 0.05) + max(0.0, since - 0.55)

        began = 0.0

    policy = Resting()
    policy.began = time.monotonic()
    made = play(renderer, World(), [], policy=policy, episode_timeout_s=0.1)
    assert exit_of(made) == (Status.GRADED, ExitReason.WALL_CLOCK)
    assert made.timings["total"] > 0.5


def test_cut_and_clock_during_generation_keep_what_was_sampled(renderer, World) -> None:
    made = play(renderer, World(), [], policy=Slow(), cut_after=0.1)
    assert exit_of(made) == (Status.CUT, ExitReason.SYSTEM_CUT)
    assert 3 <= made.action_mask.sum() <= 12
    assert made.oldest_version == 3
    made = play(renderer, World(), [], policy=Slow(), episode_timeout_s=0.1)
    assert exit_of(made) == (Status.GRADED, ExitReason.WALL_CLOCK)
    assert 3 <= made.action_mask.sum() <= 12


def test_an_engine_that_cannot_abort_is_cancelled(renderer, World, monkeypatch) -> None:
    monkeypatch.setattr("agent.episode._ABORT_GRACE_S", 0.05)
    policy = Slow(can_abort=False)
    made = play(renderer, World(), [], policy=policy, cut_after=0.05)
    assert exit_of(made) == (Status.CUT, ExitReason.SYSTEM_CUT)
    assert policy.cancelled
    assert made.action_mask.sum() == 0


def test_cancelling_the_task_closes_the_environment_and_the_request(renderer, World) -> None:
    env, policy = World(), Slow()

    async def run() -> None:
        task = asyncio.create_task(run_episode(policy, renderer, env, preset(), identity(renderer)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert env.closed == 1
    assert policy.cancelled


def test_a_bug_in_the_environment_is_raised_after_closing_it(renderer, World) -> None:
    env = World(faults={"step": KeyError("bug")})
    with pytest.raises(KeyError):
        play(renderer, env, [VIEW])
    assert env.closed == 1


def test_engine_errors_are_infra_faults_not_exceptions(renderer, World, make_model) -> None:
    async def run() -> Trajectory:
        engine = EmbeddedPolicy(make_model(0, max_position_embeddings=2048), threads=1)  # 97 ids: another tokenizer's
        made = await run_episode(engine, renderer, World(), preset(), identity(renderer))
        await engine.close()
        return made

    made = asyncio.run(run())
    assert exit_of(made) == (Status.INFRA_ERROR, ExitReason.ENGINE_ERROR)
    assert "tokenizer does not belong to this model" in made.outcome.grade["message"]
    assert issubclass(EngineError, RuntimeError)
