"""Episodes that end in text: the answer is the last turn's, outside of its thoughts; what was cut is no answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agent.engines.scripted import ScriptedPolicy
from agent.episode import TurnReport, run_episode
from agent.presets import Limits, Preset
from agent.renderers.qwen import QwenRenderer
from data.task import Task
from data.trajectory import ExitReason, Identity, SpanKind, Status, Trajectory
from envs.blind import BlindEnvironment
from envs.environment import Observation, ToolCall
from envs.maths.environment import MathsEnvironment
from envs.maths.tool import SCHEMA

LIMITS: dict[str, Any] = dict(
    max_turns=5,
    max_tokens=400,
    max_context=4000,
    command_timeout_s=5,
    episode_timeout_s=20,
    observation_chars=400,
    answer_reserve=50,
)
CALL = f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': 'print(6*7)'}})}\n</tool_call>"


class Calculator(MathsEnvironment):
    """The maths environment with a tool that answers without a sandbox."""

    def __init__(self) -> None:
        super().__init__(Task("m/1", "maths", "train", {"problem": "6 * 7?", "answer": "42"}))
        self.tools = (SCHEMA,)

    async def step(self, call: ToolCall) -> Observation:
        return Observation("42")


def play(
    renderer: QwenRenderer,
    turns: list[str],
    *,
    tools: tuple[str, ...] = ("python",),
    env: Any = None,
    reports: list[TurnReport] | None = None,
    **limits: Any,
) -> Trajectory:
    world = env or Calculator()
    if not tools:
        world.tools = ()
    preset = Preset(name="t", system="", tools=tools, limits=Limits(**{**LIMITS, **limits}))
    identity = Identity("run-000000-0", "m/1", 0, 42, renderer.tokenizer_fingerprint)
    policy = ScriptedPolicy(turns, encode=renderer.action_ids)
    return asyncio.run(
        run_episode(policy, renderer, world, preset, identity, on_turn=None if reports is None else reports.append)
    )


def kinds(made: Trajectory) -> list[SpanKind]:
    return [span.kind for span in made.spans]


def test_a_turn_without_a_call_is_the_answer(renderer: QwenRenderer) -> None:
    reports: list[TurnReport] = []
    made = play(renderer, [CALL, r"<think>\boxed{1}</think>It is \boxed{42}."], reports=reports)
    assert (made.outcome.status, made.outcome.exit_reason) == (Status.GRADED, ExitReason.SUBMITTED)
    assert (made.outcome.reward, made.outcome.grade["answer"]) == (1.0, "42")
    assert kinds(made) == [SpanKind.PROMPT, SpanKind.ACTION, SpanKind.OBSERVATION, SpanKind.ACTION]
    observation = made.spans[2]
    assert (made.versions[observation.start : observation.end] == -1).all()  # masked
    assert [report.calls for report in reports] == [("python",), ()]


def test_a_box_in_a_thought_or_in_an_earlier_turn_is_no_answer(renderer: QwenRenderer) -> None:
    made = play(renderer, [r"I guess \boxed{42}. " + CALL, r"<think>\boxed{42}</think>Done."])
    assert (made.outcome.reward, made.outcome.grade["why"]) == (0.0, "no_box")


def test_a_thought_that_the_limit_cut_is_no_answer(renderer: QwenRenderer) -> None:
    made = play(renderer, [r"<think>It is \boxed{42}, I think, or perhaps not"], max_tokens=20)
    assert (made.outcome.exit_reason, made.outcome.reward) == (ExitReason.MAX_TOKENS, 0.0)
    assert made.outcome.grade["why"] == "no_text"


@pytest.mark.parametrize(("text", "why"), [(r"\boxed{42} and more", "equal"), (r"so it is \boxed{4", "open_box")])
def test_an_answer_that_the_limit_cut_counts_when_its_box_is_closed(
    renderer: QwenRenderer, text: str, why: str
) -> None:
    tokens = len(renderer.action_ids(text)) - 1
    made = play(renderer, [text], max_tokens=tokens)
    assert made.outcome.exit_reason is ExitReason.MAX_TOKENS
    assert made.outcome.grade["why"] == why


def test_the_context_cuts_too(renderer: QwenRenderer) -> None:
    prompt = len(play(renderer, [r"\boxed{42}"]).tokens) - len(renderer.action_ids(r"\boxed{42}"))
    made = play(renderer, ["x" * 300], max_context=prompt + 60)
    assert (made.outcome.exit_reason, made.outcome.grade["why"]) == (ExitReason.MAX_CONTEXT, "no_box")


def test_calls_until_the_turns_are_used_up_are_no_answer(renderer: QwenRenderer) -> None:
    made = play(renderer, [CALL] * 3, max_turns=3)
    assert (made.outcome.exit_reason, made.outcome.grade["why"]) == (ExitReason.MAX_TURNS, "no_text")
    assert made.outcome.reward == 0.0


def test_a_malformed_call_is_answered_not_graded(renderer: QwenRenderer) -> None:
    made = play(renderer, ["<tool_call>\n{bad}\n</tool_call>", r"\boxed{42}"])
    assert made.outcome.reward == 1.0
    assert made.turns == 2


def test_without_tools_every_turn_is_the_answer(renderer: QwenRenderer) -> None:
    made = play(renderer, [CALL + r" \boxed{42}"], tools=())
    assert (made.outcome.exit_reason, made.outcome.reward, made.turns) == (ExitReason.SUBMITTED, 1.0, 1)
    prompt = renderer.tokenizer.decode(made.tokens[: len(made.spans[0])].tolist())
    assert "Tools:" not in prompt


def test_the_blind_control_still_takes_the_answer(renderer: QwenRenderer) -> None:
    made = play(renderer, [CALL, r"\boxed{42}"], env=BlindEnvironment(Calculator()))
    assert made.outcome.reward == 1.0
    text = renderer.tokenizer.decode(made.tokens[made.spans[2].start : made.spans[2].end].tolist())
    assert "(hidden)" in text


def test_its_trajectories_can_be_trained_on(renderer: QwenRenderer) -> None:
    from trainer.packing import action_axis, untrainable_reason

    made = play(renderer, [CALL, r"\boxed{42}"])
    assert untrainable_reason(made) is None
    axis = action_axis([made])
    assert len(axis) == made.action_mask.sum()
    assert axis.rewards.sum() == 1.0
