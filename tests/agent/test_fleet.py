"""The fleet: concurrency, retries, resume, stops, storms, seeds."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.engines.embedded import EmbeddedPolicy
from agent.engines.scripted import ScriptedPolicy
from agent.fleet import (
    Draw,
    EpisodeFinished,
    EpisodeRetried,
    EpisodeStarted,
    FaultStorm,
    Fleet,
    FleetReport,
    FleetSettings,
    Resume,
    Stop,
    plan_draws,
)
from agent.presets import Limits, Preset
from data.task import Task
from data.trajectory import ExitReason, Status, Trajectory
from envs.sandbox.contract import StartFailed
from tests.patience import PATIENCE_S

PRESET = Preset(
    name="t",
    system="You fix bugs.",
    tools=("view", "str_replace", "submit"),
    limits=Limits(
        max_turns=4, max_tokens=300, max_context=1500, command_timeout_s=5, episode_timeout_s=20, observation_chars=400
    ),
)
TURNS = [
    '<tool_call>{"name": "view", "arguments": {"path": "a.py"}}</tool_call>',
    "<tool_call>"
    + json.dumps({"name": "str_replace", "arguments": {"path": "a.py", "old_str": "1", "new_str": "2"}})
    + '</tool_call><tool_call>{"name": "submit"}</tool_call>',
]
TASKS = [Task(f"task-{i}", "test", "train") for i in range(3)]


class Bench:
    """Runs a fleet and keeps what came out."""

    def __init__(self, renderer, make_env, policy=None, **settings) -> None:
        self.kept: list[Trajectory] = []
        self.events: list = []
        self.stop = Stop()
        self.fleet = Fleet(
            policy or ScriptedPolicy(TURNS, encode=renderer.action_ids, delay_s=0.002),
            renderer,
            PRESET,
            make_env,
            self.kept.append,
            FleetSettings(**{"run_id": "run", "run_seed": 7, "episodes_at_once": 4, "backoff_s": 0.01, **settings}),
            observer=self.events.append,
            stop=self.stop,
        )

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def test_a_plan_runs_with_n_at_once_and_every_trajectory_reaches_the_sink(renderer, World) -> None:
    async def run() -> None:
        live = most = 0

        class Counted(World):
            async def reset(self):
                nonlocal live, most
                live += 1
                most = max(most, live)
                await asyncio.sleep(0.005)
                return await super().reset()

            async def close(self):
                nonlocal live
                live -= 1
                await super().close()

        bench = Bench(renderer, lambda task: Counted())
        report = await bench.fleet.run(plan_draws(TASKS, 13))
        assert report == FleetReport(graded=13, reward_sum=13.0)
        assert (most, live) == (4, 0)
        assert sorted(t.identity.draw for t in bench.kept) == list(range(13))
        assert {t.identity.episode_id for t in bench.kept} == {f"run-{d:06d}-0" for d in range(13)}
        assert {t.identity.task_id for t in bench.kept if t.identity.draw % 3 == 1} == {"task-1"}
        assert len({t.identity.seed for t in bench.kept}) == 13
        assert {t.identity.agent.split("@")[0] for t in bench.kept} == {"t"}
        assert len(bench.of(EpisodeStarted)) == len(bench.of(EpisodeFinished)) == 13

    asyncio.run(run())


def test_faults_are_retried_as_new_episodes_with_the_same_seed(renderer, World) -> None:
    async def run() -> None:
        tries: dict[str, int] = {}

        def make_env(task: Task):
            tries[task.task_id] = tries.get(task.task_id, 0) + 1
            fails = {"task-0": 0, "task-1": 2, "task-2": 9}[task.task_id]
            return World(faults={"reset": StartFailed("busy")} if tries[task.task_id] <= fails else {})

        bench = Bench(renderer, make_env, max_attempts=3)
        report = await bench.fleet.run(plan_draws(TASKS))
        assert tries == {"task-0": 1, "task-1": 3, "task-2": 3}
        assert report == FleetReport(graded=2, infra_errors=5, reward_sum=2.0, given_up=[2])
        of_one = [t for t in bench.kept if t.identity.draw == 1]
        assert [t.identity.episode_id for t in of_one] == ["run-000001-0", "run-000001-1", "run-000001-2"]
        assert len({t.identity.seed for t in of_one}) == 1
        delays = [event.delay_s for event in bench.of(EpisodeRetried) if event.draw == 2]
        assert delays == [0.01, 0.02]
        assert "StartFailed: busy" in bench.of(EpisodeRetried)[0].reason

    asyncio.run(run())


def test_resume_skips_graded_draws_and_never_repeats_an_episode_id(renderer, World) -> None:
    async def run() -> None:
        broken = True

        def make_env(task: Task):
            return World(faults={"reset": StartFailed("busy")} if broken and task.task_id == "task-1" else {})

        first = Bench(renderer, make_env, max_attempts=2)
        await first.fleet.run(plan_draws(TASKS))
        broken = False
        second = Bench(renderer, make_env)
        resume = Resume.of(first.kept)
        assert resume == Resume(frozenset({0, 2}), {0: 1, 1: 2, 2: 1})
        report = await second.fleet.run(plan_draws(TASKS, 5), resume)
        assert (report.skipped, report.graded) == (2, 3)
        assert sorted(t.identity.episode_id for t in second.kept) == ["run-000001-2", "run-000003-0", "run-000004-0"]
        both = [t.identity.episode_id for t in first.kept + second.kept]
        assert len(set(both)) == len(both)
        seeds = {t.identity.draw: t.identity.seed for t in first.kept}
        assert next(t.identity.seed for t in second.kept if t.identity.draw == 1) == seeds[1]

    asyncio.run(run())


def test_stop_finish_lets_running_episodes_end(renderer, World) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World(delays={"reset": 0.05}))
        asyncio.get_running_loop().call_later(0.08, bench.stop.finish)
        report = await bench.fleet.run(plan_draws(TASKS, 100))
        assert report.cut == 0
        assert 4 <= report.graded <= 8
        assert len(bench.of(EpisodeStarted)) == report.graded

    asyncio.run(run())


def test_stop_cut_ends_running_episodes_as_cut(renderer, World) -> None:
    async def run() -> None:
        envs = []

        def make_env(task: Task):
            envs.append(World(delays={"step": 10_000}))
            return envs[-1]

        bench = Bench(renderer, make_env)
        asyncio.get_running_loop().call_later(0.1, bench.stop.cut)
        report = await asyncio.wait_for(bench.fleet.run(plan_draws(TASKS, 100)), PATIENCE_S)
        assert report == FleetReport(cut=4)
        assert {t.outcome.status for t in bench.kept} == {Status.CUT}
        assert all(t.turns == 1 for t in bench.kept)
        assert all(env.closed for env in envs)
        assert Resume.of(bench.kept) == Resume(frozenset(), {d: 1 for d in range(4)})

    asyncio.run(run())


def test_stop_during_back_off_does_not_wait_for_it(renderer, World) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World(faults={"reset": StartFailed("busy")}), backoff_s=10_000)
        asyncio.get_running_loop().call_later(0.1, bench.stop.finish)
        report = await asyncio.wait_for(bench.fleet.run(plan_draws(TASKS, 4)), PATIENCE_S)
        assert report.infra_errors == 4
        assert sorted(report.given_up) == [0, 1, 2, 3]

    asyncio.run(run())


def test_a_storm_of_faults_stops_the_fleet_and_says_why(renderer, World) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World(faults={"reset": StartFailed("no space left")}))
        with pytest.raises(FaultStorm, match=r"10 episodes running(.|\n)*no space left(.|\n)*resume"):
            await bench.fleet.run(plan_draws(TASKS, 1000))
        assert 10 <= len(bench.kept) <= 14

    asyncio.run(run())


def test_faults_between_good_episodes_are_no_storm(renderer, World) -> None:
    async def run() -> None:
        made = 0

        def make_env(task: Task):
            nonlocal made
            made += 1
            return World(faults={"reset": StartFailed("busy")} if made % 3 else {})

        bench = Bench(renderer, make_env, storm_limit=12, max_attempts=99, max_backoff_s=0.001)
        report = await bench.fleet.run(plan_draws(TASKS, 20))
        assert report.graded == 20
        assert report.infra_errors > 20

    asyncio.run(run())


def test_a_bug_cuts_the_others_into_the_sink_and_is_raised(renderer, World) -> None:
    async def run() -> None:
        def make_env(task: Task):
            if task.task_id == "task-2":
                return World(faults={"step": KeyError("bug")})
            return World(delays={"step": 10_000})

        bench = Bench(renderer, make_env, episodes_at_once=3)
        with pytest.raises(KeyError, match="bug"):
            await asyncio.wait_for(bench.fleet.run(plan_draws(TASKS, 30)), PATIENCE_S)
        assert [t.outcome.exit_reason for t in bench.kept] == [ExitReason.SYSTEM_CUT] * 2

    asyncio.run(run())


def test_a_failing_sink_is_raised(renderer, World) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World())

        async def full(trajectory: Trajectory) -> None:
            raise OSError(28, "No space left on device")

        bench.fleet.sink = full
        with pytest.raises(OSError, match="No space left"):
            await bench.fleet.run(plan_draws(TASKS, 50))
        assert len(bench.of(EpisodeStarted)) <= 4

    asyncio.run(run())


def test_a_failing_observer_is_logged_and_harmless(renderer, World, caplog) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World())

        def fails(event: object) -> None:
            raise ValueError("view")

        bench.fleet._observer = fails
        assert (await bench.fleet.run(plan_draws(TASKS))).graded == 3

    asyncio.run(run())
    assert "the observer failed" in caplog.text


def test_the_gate_holds_back_draws_and_does_not_hold_up_a_stop(renderer, World) -> None:
    async def run() -> None:
        bench = Bench(renderer, lambda task: World(), episodes_at_once=2)
        tickets = asyncio.Semaphore(3)

        async def gate() -> None:
            await tickets.acquire()

        bench.fleet._gate = gate
        asyncio.get_running_loop().call_later(0.3, bench.stop.finish)
        assert (await asyncio.wait_for(bench.fleet.run(plan_draws(TASKS, 50)), PATIENCE_S)).graded == 3

    asyncio.run(run())


def test_cancelling_the_fleet_closes_every_environment(renderer, World) -> None:
    async def run() -> None:
        envs = []

        def make_env(task: Task):
            envs.append(World(delays={"step": 10_000}))
            return envs[-1]

        bench = Bench(renderer, make_env)
        task = asyncio.create_task(bench.fleet.run(plan_draws(TASKS, 50)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(envs) == 4
        assert all(env.closed for env in envs)

    asyncio.run(run())


def test_same_run_seed_same_tokens_whatever_the_concurrency(renderer, World, make_model) -> None:
    size = len(renderer.tokenizer)

    async def rollout(at_once: int) -> dict[int, list[int]]:
        engine = EmbeddedPolicy(make_model(0, vocab_size=size, max_position_embeddings=2048), threads=1)
        preset_limits = PRESET.limits.model_copy(update={"max_turn_tokens": 30})
        bench = Bench(renderer, lambda task: World(), policy=engine, episodes_at_once=at_once)
        bench.fleet.limits = preset_limits
        await bench.fleet.run(plan_draws(TASKS, 8))
        await engine.close()
        return {t.identity.draw: t.tokens.tolist() for t in bench.kept}

    one, eight = asyncio.run(rollout(1)), asyncio.run(rollout(8))
    assert one == eight
    assert len({tuple(tokens) for tokens in one.values()}) == 8


def test_settings_and_plans_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="episodes_at_once is 0"):
        FleetSettings("r", 0, episodes_at_once=0)
    with pytest.raises(ValueError, match="no tasks"):
        list(plan_draws([]))
    assert [draw.task.task_id for draw in plan_draws(TASKS, 4)] == ["task-0", "task-1", "task-2", "task-0"]
    assert next(plan_draws(TASKS)) == Draw(0, TASKS[0])
