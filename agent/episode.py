"""One episode: whoever acts and an environment make one trajectory.

    env.reset → first prompt → [ generate, append → parse → env.step per call → append observation ]* → grade

Who acts is a `Policy` with its chat format (ids: `token_dialogue`) or an endpoint (text: `endpoint.dialogue`).

Limits are checked before every generation, in this order; the first that is reached ends the episode:
    1. the system's cut          → cut (SYSTEM_CUT), not graded
    2. episode_timeout_s         → WALL_CLOCK (also ends a running generation; what was sampled stays)
    3. max_turns                 → MAX_TURNS
    4. max_tokens, sampled       → MAX_TOKENS
    5. max_context, of preset or engine, whichever is less → MAX_CONTEXT; also when an endpoint takes no more
    max_new_tokens = what 4, 5 and max_turn_tokens leave. An episode ended by 2–5 is graded like a submitted one.
Promises:
* ids are only appended; an observation that would not leave `answer_reserve` tokens is shortened, saying so, and if not
  even that fits, the episode ends with MAX_CONTEXT;
* where the environment takes text, a turn without a call is the answer: it ends the episode as SUBMITTED, and a turn
  that a limit cut before any call ends it with that limit; the environment gets what stands outside of its thoughts;
* a malformed call is answered with its named error and never ends the episode; the calls of one turn run in order and
  stop after the one that ends the episode; whole calls of a turn cut by length run too, where the format can tell;
* a sandbox that the model's own commands ended (`BY_COMMANDS`) ends the episode as SANDBOX_ENDED, graded on what can
  still be read; any other fault of sandbox, grader or engine gives an infra_error trajectory with the tokens so far,
  never a reward;
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

from agent.dialogue import ContextFull, Dialogue, TextActor
from agent.parsers import CallError, CallErrorKind, Parsed
from agent.policy import EngineError, Policy, StopReason
from agent.presets import Limits, Preset, PresetError
from agent.renderers import Renderer
from agent.seeds import derive_seed
from agent.token_dialogue import TokenDialogue
from data.trajectory import ExitReason, Identity, Outcome, Status, Trajectory
from envs.environment import Environment, EnvironmentFault, Grade, Observation, ToolCall
from envs.sandbox.contract import BY_COMMANDS, SandboxError
from envs.tools.text import cap, error_text

T = TypeVar("T")
_log = logging.getLogger(__name__)

_ABORT_GRACE_S = 5.0
"""How long an engine may take to return the tokens of an aborted generation before the call is cancelled."""
_CLOCK_S = 0.05
_STEP_GRACE_S = 60.0
"""How far a tool call may exceed the longest command before the sandbox counts as hung."""


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
    """NaN where the turn has no log-probabilities."""


class _Ended(Exception):
    def __init__(self, reason: ExitReason, seen: Mapping[str, Any] | None = None) -> None:
        self.reason, self.seen = reason, seen or {}


class _Fault(Exception):
    """An infrastructure fault, with the phase it came in."""

    def __init__(self, reason: ExitReason, phase: str, error: BaseException) -> None:
        self.reason, self.phase, self.error = reason, phase, error


async def run_episode(
    policy: Policy | TextActor,
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
    limits = limits or preset.limits
    dialogue = (
        TokenDialogue(policy, renderer, preset, identity.episode_id)
        if isinstance(policy, Policy)
        else policy.dialogue(renderer, preset, limits)
    )
    episode = _Episode(dialogue, env, preset, identity, limits, cut or asyncio.Event(), on_turn)
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
        dialogue: Dialogue,
        env: Environment,
        preset: Preset,
        identity: Identity,
        limits: Limits,
        cut: asyncio.Event,
        on_turn: Callable[[TurnReport], None] | None,
    ) -> None:
        self.dialogue, self.env = dialogue, env
        self.preset, self.identity, self.limits = preset, identity, limits
        self.cut, self.on_turn = cut, on_turn
        offered = {schema["function"]["name"]: schema for schema in env.tools}
        missing = [name for name in preset.tools if name not in offered]
        if missing:
            raise PresetError(
                f"preset {preset.name}: the environment has no tool {', '.join(missing)}. It has {', '.join(offered)}."
            )
        self.tools = [offered[name] for name in preset.tools]
        self.context = min(limits.max_context, dialogue.max_context or limits.max_context)
        self.timings = dict.fromkeys(("reset", "generate", "step", "grade"), 0.0)
        self.phase = "reset"
        self.clock = dialogue.clock
        self.deadline = float("inf")

    async def run(self) -> Trajectory:
        self.timings["started_at"] = time.time()
        began = time.monotonic()
        grade = Grade(0.0)
        try:
            seen: Mapping[str, Any] = {}
            try:
                reason = await self._play()
            except _Ended as ended:
                reason, seen = ended.reason, ended.seen
            if reason is ExitReason.SYSTEM_CUT:
                outcome = self._outcome(Status.CUT, reason, {"phase": self.phase})
            else:
                grade = await self._grade()
                outcome = self._outcome(Status.GRADED, reason, {**grade.detail, **seen}, grade.reward)
        except _Ended as ended:  # cut while grading
            outcome = self._outcome(Status.CUT, ended.reason, {"phase": self.phase})
        except _Fault as fault:
            kind, message = type(fault.error).__name__, str(fault.error)
            seen = {"phase": fault.phase, "kind": kind, "message": message}
            outcome = self._outcome(Status.INFRA_ERROR, fault.reason, seen)
        self.timings["total"] = time.monotonic() - began
        if made := self.dialogue.finish(outcome, self.identity, self.timings, grade.patch):
            return made
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

    def _outcome(
        self, status: Status, reason: ExitReason, seen: Mapping[str, Any], reward: float | None = None
    ) -> Outcome:
        return Outcome(status, reason, reward, {**seen, **self.dialogue.detail()})

    async def _play(self) -> ExitReason:
        problem = await self._world("reset", self.env.reset(), self.limits.reset_timeout_s)
        self.deadline = self.clock() + self.limits.episode_timeout_s
        self.dialogue.begin(self.preset.messages(problem), self.tools, listed=self.preset.list_tools)
        turn = 0
        while True:
            stopped = await self._generate(turn, self._room(turn))
            if stopped is StopReason.ABORTED:
                raise _Ended(ExitReason.WALL_CLOCK if self._late() and not self.cut.is_set() else ExitReason.SYSTEM_CUT)
            parsed = self._parse(stopped)
            if self.env.takes_text and self._is_text(parsed):
                self._take_text(turn, stopped)
            await self._answer(turn, parsed)
            turn += 1

    def _late(self) -> bool:
        return self.clock() >= self.deadline

    def _room(self, turn: int) -> int:
        """Tokens that the next turn may have; raises _Ended at the first limit of the module's list."""
        if self.cut.is_set():
            raise _Ended(ExitReason.SYSTEM_CUT)
        if self._late():
            raise _Ended(ExitReason.WALL_CLOCK)
        if turn >= self.limits.max_turns:
            raise _Ended(ExitReason.MAX_TURNS)
        tokens = self.limits.max_tokens - self.dialogue.sampled
        if tokens <= 0:
            raise _Ended(ExitReason.MAX_TOKENS)
        context = self.context - self.dialogue.used
        if context <= 0:
            raise _Ended(ExitReason.MAX_CONTEXT, self._unasked(turn))
        return min(tokens, context, self.limits.max_turn_tokens or tokens)

    def _unasked(self, turn: int) -> Mapping[str, Any]:
        """For the outcome of an episode in which the model never had a turn: that is no failure of its own."""
        if turn:
            return {}
        return {"unasked": f"the first prompt does not fit into the context of {self.context} tokens"}

    async def _generate(self, turn: int, room: int) -> StopReason:
        async with self._timed("generate"):
            seed = derive_seed(self.identity.seed, "turn", turn)
            task = asyncio.ensure_future(self.dialogue.generate(room, seed))
            try:
                while not await self._wait(task, self.deadline - self.clock()):
                    if self.cut.is_set() or self._late():
                        break
                    await asyncio.sleep(_CLOCK_S)  # the engine's clock stood still: there is time left
                else:
                    return task.result()
                if not self.cut.is_set():
                    await self.dialogue.overdue()
                # Cut or out of time: ask for what was sampled so far rather than throw it away.
                await self.dialogue.abort()
                await asyncio.wait({task}, timeout=_ABORT_GRACE_S)
                if task.done():
                    task.result()
                return StopReason.ABORTED
            except ContextFull as full:
                raise _Ended(ExitReason.MAX_CONTEXT, self._unasked(turn)) from full
            except EngineError as error:
                raise _Fault(ExitReason.ENGINE_ERROR, "generate", error) from error
            finally:
                await _end(task)

    def _parse(self, stopped: StopReason) -> Parsed:
        parsed = self.dialogue.parse(cut=stopped is StopReason.LENGTH)
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

    def _take_text(self, turn: int, stopped: StopReason) -> NoReturn:
        """The turn is the answer. A cut call reads as one too: it holds no answer, and there is no room to mend it."""
        self.env.answer(self.dialogue.said())
        self._report(turn, 0, (), ())
        if stopped is not StopReason.LENGTH:
            raise _Ended(ExitReason.SUBMITTED)
        full = self.dialogue.used >= self.context and self.dialogue.sampled < self.limits.max_tokens
        raise _Ended(ExitReason.MAX_CONTEXT if full else ExitReason.MAX_TOKENS)

    async def _answer(self, turn: int, parsed: Parsed) -> None:
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
        took = self.dialogue.observe(texts, answered, self.context - self.dialogue.used - self.limits.answer_reserve)
        self._report(turn, took or 0, names, [each.error for each in observations if each.error])
        if observations[-1].done:
            raise _Ended(ExitReason.SUBMITTED)
        if took is None:
            # Out of sampled tokens as well: that limit comes first.
            spent = self.dialogue.sampled >= self.limits.max_tokens
            raise _Ended(ExitReason.MAX_TOKENS if spent else ExitReason.MAX_CONTEXT)

    def _report(self, turn: int, observed: int, names: Sequence[str], errors: Sequence[str]) -> None:
        if self.on_turn is not None:
            dialogue = self.dialogue
            report = (self.identity.episode_id, turn, dialogue.turn_tokens, observed, tuple(names), tuple(errors))
            self.on_turn(TurnReport(*report, dialogue.turn_logprob))

    async def _call(self, item: ToolCall | CallError) -> Observation:
        if isinstance(item, CallError):
            return Observation(error_text(item.kind, item.message), error=item.kind)
        offered = [tool["function"]["name"] for tool in self.tools]
        if item.name not in offered:
            message = f"there is no tool {item.name!r}. Tools: {', '.join(offered)}."
            return Observation(error_text("unknown_tool", message), error="unknown_tool")
        limit = self.limits.longest_command_s + _STEP_GRACE_S
        return await self._world("step", self.env.step(item), limit)

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
                if phase == "step" and isinstance(error, BY_COMMANDS):
                    raise _Ended(ExitReason.SANDBOX_ENDED, {"sandbox_ended": str(error)}) from error
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
