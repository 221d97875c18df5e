"""One episode: a policy, a chat format and an environment make one trajectory.

    env.reset → first prompt → [ generate → append action → parse → env.step per call → append observation ]* → grade

Limits are checked before every generation, in this order; the first that is reached ends the episode:
    1. the system's cut          → cut (SYSTEM_CUT), not graded
    2. episode_timeout_s         → WALL_CLOCK (also ends a running generation; what was sampled stays)
    3. max_turns                 → MAX_TURNS
    4. max_tokens, sampled       → MAX_TOKENS
    5. max_context, of preset or engine, whichever is less → MAX_CONTEXT
    max_new_tokens = what 4, 5 and max_turn_tokens leave. An episode ended by 2–5 is graded like a submitted one.
Promises:
* ids are only appended; an observation that would not leave `answer_reserve` tokens is shortened, saying so, and if not
  even that fits, the episode ends with MAX_CONTEXT;
* where the environment takes text, a turn without a call is the answer: it ends the episode as SUBMITTED, and a turn
  that a limit cut before any call ends it with that limit; the environment gets what stands outside of its thoughts;
* a malformed call is answered with its named error and never ends the episode; the calls of one turn run in order and
  stop after the one that ends the episode; whole calls of a turn cut by length run too, where the format can tell;
* a fault of sandbox, grader or engine gives an infra_error trajectory with the tokens so far, never a reward;
* env.close and policy.forget are always called. Cancelling the task closes them and raises: to keep the trajectory, set
  `cut` instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from agent.parsers import CallError, CallErrorKind, Parsed
from agent.policy import EngineError, Generation, Policy, StopReason
from agent.presets import Limits, Preset, PresetError
from agent.renderers import Renderer
from agent.renderers.fenced import FencedRenderer
from agent.seeds import derive_seed
from data.trajectory import ExitReason, Identity, Outcome, Status, Trajectory, TrajectoryBuilder
from envs.environment import Environment, EnvironmentFault, Grade, Observation, ToolCall
from envs.sandbox.contract import SandboxError
from envs.tools.text import cap, error_text

T = TypeVar("T")
_log = logging.getLogger(__name__)

_ABORT_GRACE_S = 5.0
"""How long an engine may take to return the tokens of an aborted generation before the call is cancelled."""
_STEP_GRACE_S = 60.0
"""How far a tool call may exceed command_timeout_s before the sandbox counts as hung."""
_SHORTEST_CHARS = 120
"""An observation is not shortened below this; the episode ends instead."""


@dataclass(frozen=True)
class TurnReport:
    """What a live view needs of one turn."""

    episode_id: str
    turn: int
    action_tokens: int
    observation_tokens: int
    calls: tuple[str, ...]
    """Tool names in order, or `!kind` for a call that could not be parsed."""
    errors: tuple[str, ...]
    mean_logprob: float


class _Ended(Exception):
    def __init__(self, reason: ExitReason) -> None:
        self.reason = reason


class _Fault(Exception):
    """An infrastructure fault, with the phase it came in."""

    def __init__(self, reason: ExitReason, phase: str, error: BaseException) -> None:
        self.reason, self.phase, self.error = reason, phase, error


async def run_episode(
    policy: Policy,
    renderer: Renderer,
    env: Environment,
    preset: Preset,
    identity: Identity,
    *,
    limits: Limits | None = None,
    cut: asyncio.Event | None = None,
    on_turn: Callable[[TurnReport], None] | None = None,
) -> Trajectory:
    """Run one episode to its end. `limits` override the preset's. Raises PresetError before anything starts; whatever
    happens afterwards in sandbox or engine is in the trajectory's outcome."""
    episode = _Episode(
        policy, renderer, env, preset, identity, limits or preset.limits, cut or asyncio.Event(), on_turn
    )
    try:
        return await episode.run()
    finally:
        with contextlib.suppress(EngineError):  # a broken engine has nothing left to forget
            await policy.forget(identity.episode_id)
        try:
            await env.close()
        except (SandboxError, EnvironmentFault) as error:
            _log.warning("episode %s: closing the environment failed: %s", identity.episode_id, error)


class _Episode:
    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        env: Environment,
        preset: Preset,
        identity: Identity,
        limits: Limits,
        cut: asyncio.Event,
        on_turn: Callable[[TurnReport], None] | None,
    ) -> None:
        self.policy, self.env = policy, env
        self.renderer = FencedRenderer(renderer) if preset.calls == "fenced" else renderer
        self.preset, self.identity, self.limits = preset, identity, limits
        self.cut, self.on_turn = cut, on_turn
        offered = {schema["function"]["name"]: schema for schema in env.tools}
        missing = [name for name in preset.tools if name not in offered]
        if missing:
            raise PresetError(
                f"preset {preset.name}: the environment has no tool {', '.join(missing)}. It has {', '.join(offered)}."
            )
        self.tools = [offered[name] for name in preset.tools]
        self.context = min(limits.max_context, policy.max_context or limits.max_context)
        self.builder: TrajectoryBuilder | None = None
        self.timings = dict.fromkeys(("reset", "generate", "step", "grade"), 0.0)
        self.phase = "reset"
        self.deadline = float("inf")

    async def run(self) -> Trajectory:
        self.timings["started_at"] = time.time()
        began = time.monotonic()
        grade = Grade(0.0)
        try:
            try:
                reason = await self._play()
            except _Ended as ended:
                reason = ended.reason
            if reason is ExitReason.SYSTEM_CUT:
                outcome = Outcome(Status.CUT, reason, grade={"phase": self.phase})
            else:
                grade = await self._grade()
                outcome = Outcome(Status.GRADED, reason, grade.reward, dict(grade.detail))
        except _Ended as ended:  # cut while grading
            outcome = Outcome(Status.CUT, ended.reason, grade={"phase": self.phase})
        except _Fault as fault:
            kind, message = type(fault.error).__name__, str(fault.error)
            outcome = Outcome(
                Status.INFRA_ERROR, fault.reason, grade={"phase": fault.phase, "kind": kind, "message": message}
            )
        self.timings["total"] = time.monotonic() - began
        if self.builder is not None:
            return self.builder.finish(outcome, self.identity, self.timings, grade.patch)
        # The fault came before the first prompt: there are no tokens to keep.
        return Trajectory(
            tokens=np.zeros(0, np.int32),
            logprobs=np.zeros(0, np.float32),
            versions=np.zeros(0, np.int32),
            spans=(),
            outcome=outcome,
            identity=self.identity,
            timings=self.timings,
        )

    async def _play(self) -> ExitReason:
        problem = await self._world("reset", self.env.reset(), self.limits.reset_timeout_s)
        self.deadline = time.monotonic() + self.limits.episode_timeout_s
        builder = TrajectoryBuilder(self.renderer.prompt_ids(self.preset.messages(problem), self.tools))
        self.builder = builder
        turn = 0
        while True:
            room = self._room(builder, turn)
            before = builder.tokens
            made = await self._generate(builder, turn, room)
            if made.tokens:
                builder.append_action(made.tokens, made.logprobs, made.versions)
            if made.stop_reason is StopReason.ABORTED:
                raise _Ended(ExitReason.WALL_CLOCK if self._late() and not self.cut.is_set() else ExitReason.SYSTEM_CUT)
            parsed = self._parse(before, made)
            if self.env.takes_text and self._is_text(parsed):
                self._take_text(builder, turn, made, before)
            await self._answer(builder, turn, made, parsed)
            turn += 1

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _room(self, builder: TrajectoryBuilder, turn: int) -> int:
        """Tokens that the next turn may have; raises _Ended at the first limit of the module's list."""
        if self.cut.is_set():
            raise _Ended(ExitReason.SYSTEM_CUT)
        if self._late():
            raise _Ended(ExitReason.WALL_CLOCK)
        if turn >= self.limits.max_turns:
            raise _Ended(ExitReason.MAX_TURNS)
        tokens = self.limits.max_tokens - builder.action_tokens
        if tokens <= 0:
            raise _Ended(ExitReason.MAX_TOKENS)
        context = self.context - len(builder)
        if context <= 0:
            raise _Ended(ExitReason.MAX_CONTEXT)
        return min(tokens, context, self.limits.max_turn_tokens or tokens)

    async def _generate(self, builder: TrajectoryBuilder, turn: int, room: int) -> Generation:
        episode_id = self.identity.episode_id
        call = self.policy.generate(
            builder.tokens,
            max_new_tokens=room,
            stop_ids=self.renderer.stop_ids,
            seed=derive_seed(self.identity.seed, "turn", turn),
            episode_id=episode_id,
        )
        async with self._timed("generate"):
            task = asyncio.ensure_future(call)
            try:
                if not await self._wait(task, self.deadline - time.monotonic()):
                    # Cut or out of time: ask for what was sampled so far rather than throw it away.
                    await self.policy.abort(episode_id)
                    await asyncio.wait({task}, timeout=_ABORT_GRACE_S)
                    if not task.done():
                        await _end(task)
                        return Generation([], [], [], StopReason.ABORTED)
                    made = task.result()
                    return Generation(made.tokens, made.logprobs, made.versions, StopReason.ABORTED)
                made = task.result()
            except EngineError as error:
                raise self._fault(ExitReason.ENGINE_ERROR, error) from error
            finally:
                await _end(task)
        if not made.tokens and made.stop_reason is not StopReason.ABORTED:
            raise self._fault(ExitReason.ENGINE_ERROR, EngineError("the engine returned no tokens"))
        return made

    def _parse(self, before: list[int], made: Generation) -> Parsed:
        cut = made.stop_reason is StopReason.LENGTH
        parsed = self.renderer.parse(made.tokens, before=before, cut=cut, tools=self.tools)
        allowed = self.preset.max_calls
        if allowed is not None and len(parsed) > allowed:
            message = f"The turn holds {len(parsed)} calls; {allowed} may stand in one turn. None was run."
            return (CallError(CallErrorKind.SEVERAL_CALLS, message),)
        return parsed

    def _is_text(self, parsed: Parsed) -> bool:
        """The turn calls nothing and does not try to: no tool is offered, or no call was begun."""
        first = parsed[0]
        silent = (CallErrorKind.MISSING, CallErrorKind.CUT_BY_LENGTH)
        return not self.tools or (len(parsed) == 1 and isinstance(first, CallError) and first.kind in silent)

    def _take_text(self, builder: TrajectoryBuilder, turn: int, made: Generation, before: list[int]) -> NoReturn:
        """The turn is the answer. A cut call reads as one too: it holds no answer, and there is no room to mend it."""
        self.env.answer(self.renderer.said(made.tokens, before=before))
        self._report(turn, made, [], (), ())
        if made.stop_reason is not StopReason.LENGTH:
            raise _Ended(ExitReason.SUBMITTED)
        full = len(builder) >= self.context and builder.action_tokens < self.limits.max_tokens
        raise _Ended(ExitReason.MAX_CONTEXT if full else ExitReason.MAX_TOKENS)

    async def _answer(self, builder: TrajectoryBuilder, turn: int, made: Generation, parsed: Parsed) -> None:
        """Run the turn's calls and append their observation; raises _Ended when a call ended the episode."""
        observations: list[Observation] = []
        names: list[str] = []
        for item in parsed:
            names.append(f"!{item.kind}" if isinstance(item, CallError) else item.name)
            observations.append(await self._call(item))
            if observations[-1].done:
                break
        texts = [cap(observation.text, self.limits.observation_chars) for observation in observations]
        answered = [item.name if isinstance(item, ToolCall) else None for item in parsed[: len(texts)]]
        ids = self._fit(texts, made.tokens[-1], answered, self.context - len(builder) - self.limits.answer_reserve)
        if ids is not None:
            builder.append_observation(ids)
        self._report(turn, made, ids or [], names, [each.error for each in observations if each.error])
        if observations[-1].done:
            raise _Ended(ExitReason.SUBMITTED)
        if ids is None:
            # Out of sampled tokens as well: that limit comes first.
            spent = builder.action_tokens >= self.limits.max_tokens
            raise _Ended(ExitReason.MAX_TOKENS if spent else ExitReason.MAX_CONTEXT)

    def _report(self, turn: int, made: Generation, ids: list[int], names: Sequence[str], errors: Sequence[str]) -> None:
        if self.on_turn is not None:
            mean = sum(made.logprobs) / len(made.logprobs)
            report = (self.identity.episode_id, turn, len(made.tokens), len(ids), tuple(names), tuple(errors), mean)
            self.on_turn(TurnReport(*report))

    async def _call(self, item: ToolCall | CallError) -> Observation:
        if isinstance(item, CallError):
            return Observation(error_text(item.kind, item.message), error=item.kind)
        offered = [tool["function"]["name"] for tool in self.tools]
        if item.name not in offered:
            message = f"there is no tool {item.name!r}. Tools: {', '.join(offered)}."
            return Observation(error_text("unknown_tool", message), error="unknown_tool")
        limit = self.limits.command_timeout_s + _STEP_GRACE_S
        return await self._world("step", self.env.step(item), limit)

    def _fit(self, texts: list[str], last: int, names: list[str | None], room: int) -> list[int] | None:
        """The observation's ids, at most `room` of them: all texts get the same, largest possible number of
        characters. None when not even the shortest form fits. `last`: the turn's last token."""
        ended_by = last if last in self.renderer.stop_ids else None
        ids = self.renderer.observation_ids(texts, ended_by, names)
        if len(ids) <= room:
            return ids
        best: list[int] | None = None
        low, high = _SHORTEST_CHARS, max(len(text) for text in texts) - 1
        while low <= high:
            middle = (low + high) // 2
            ids = self.renderer.observation_ids([cap(text, middle) for text in texts], ended_by, names)
            if len(ids) <= room:
                best, low = ids, middle + 1
            else:
                high = middle - 1
        return best

    async def _grade(self) -> Grade:
        return await self._world("grade", self.env.grade(), self.limits.grade_timeout_s)

    async def _world(self, phase: str, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Await the environment: its faults become _Fault, the system's cut _Ended."""
        self.phase = phase
        reason = ExitReason.GRADER_ERROR if phase == "grade" else ExitReason.SANDBOX_ERROR
        async with self._timed(phase):
            task = asyncio.ensure_future(work)
            try:
                if await self._wait(task, limit_s):
                    return task.result()
                if self.cut.is_set():
                    raise _Ended(ExitReason.SYSTEM_CUT)
                raise _Fault(reason, phase, EnvironmentFault(f"{phase} did not return within {limit_s:.0f} s"))
            except (SandboxError, EnvironmentFault) as error:
                raise _Fault(reason, phase, error) from error
            finally:
                await _end(task)

    async def _wait(self, task: asyncio.Future[Any], limit_s: float) -> bool:
        """True when the task is done; False when the cut or the time came first."""
        watch = asyncio.ensure_future(self.cut.wait())
        try:
            await asyncio.wait({task, watch}, timeout=max(limit_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
        return task.done()

    def _fault(self, reason: ExitReason, error: BaseException) -> _Fault:
        return _Fault(reason, "generate", error)

    @contextlib.asynccontextmanager
    async def _timed(self, phase: str) -> AsyncIterator[None]:
        self.phase = phase
        began = time.monotonic()
        try:
            yield
        finally:
            self.timings[phase] += time.monotonic() - began


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task that nobody needs any more and wait until it is over, for a while."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=10.0)
    if task.done() and not task.cancelled():
        task.exception()  # retrieved: whoever cared has seen it


def error_detail(trajectory: Trajectory) -> Mapping[str, Any]:
    """phase, kind and message of an infra_error trajectory; empty for any other."""
    return trajectory.outcome.grade if trajectory.outcome.status is Status.INFRA_ERROR else {}
