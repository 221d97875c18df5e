"""Whole episodes in other formats and under tight budgets: fenced shell, one call a turn, thoughts, strict engines."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.engines.embedded import EmbeddedPolicy
from agent.engines.scripted import ScriptedPolicy
from agent.episode import run_episode
from agent.policy import EngineError
from agent.presets import Limits, Preset, PresetError, load_preset
from agent.renderers.choose import renderer_for
from agent.renderers.template import TemplateRenderer
from data.trajectory import ExitReason, Identity, SpanKind, Status, Trajectory
from envs.environment import Observation, ToolCall
from tests.agent.conftest import TEMPLATE
from tests.agent.embedded_support import sampled
from tests.agent.episode_support import FIX, LIMITS, VIEW, call, exit_of, identity, play, preset, texts
from tests.agent.families import any_renderer
from tests.agent.stand_in import stand_in


@pytest.fixture(scope="session")
def Shell(World):
    class Shell(World):
        """`World` with a shell that only repeats its command."""

        async def step(self, call: ToolCall) -> Observation:
            if call.name == "bash":
                self.calls.append(call)
                return Observation(f"ran {call.arguments['command']}")
            if call.name == "think":
                self.calls.append(call)
                return Observation("Noted.")
            return await super().step(call)

    return Shell


def run(renderer: TemplateRenderer, env, preset: Preset, turns: list[str], policy=None) -> Trajectory:
    policy = policy or ScriptedPolicy(turns, encode=renderer.action_ids)
    who = Identity("run-000000-0", "task", 0, 42, renderer.tokenizer_fingerprint)
    return asyncio.run(run_episode(policy, renderer, env, preset, who))


def test_the_mini_preset_acts_in_fenced_blocks(renderer, Shell) -> None:
    env = Shell()
    command = "cat > f.md <<'EOF'\n```bash\nmake\n```\nEOF"
    turns = [
        f"THOUGHT: look.\n\n```bash\n{command}\n```",
        "no block",
        "```bash\na\n```\n```bash\nb\n```",
        "```bash\nsubmit\n```",
    ]
    made = run(renderer, env, load_preset("mini"), turns)
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert env.calls == [ToolCall("bash", {"command": command}), ToolCall("submit", {})]
    (prompt,) = texts(renderer, made, SpanKind.PROMPT)
    assert "<tools>" not in prompt
    assert '"name": "bash"' not in prompt
    first, second, third, _ = texts(renderer, made, SpanKind.OBSERVATION)
    assert first == f"\n<|im_start|>user\nran {command}<|im_end|>\n<|im_start|>assistant\n"
    assert "Error (missing):" in second
    assert "Error (several_calls):" in third


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3-coder", "llama3.1", "deepseek-v3-0324", "gpt-oss", "GLM-4.6", "smollm2"]
)
def test_every_family_plays_an_episode(name: str, World) -> None:
    """View, a mistake, the fix and submit, with the family's own tokenizer where there is one."""
    renderer, env = any_renderer(name), World()
    view = renderer.spell([ToolCall("view", {"path": "a.py"})])
    fix = ToolCall("str_replace", {"path": "a.py", "old_str": "x = 1", "new_str": "x = 2"})
    submit = ToolCall("submit", {})
    ends = [renderer.spell([fix, submit])] if name != "gpt-oss" else [renderer.spell([fix]), renderer.spell([submit])]
    limits = Limits(**{**LIMITS, "max_tokens": 2000, "max_context": 6000, "max_turns": 6})
    chosen = Preset(name="t", system="You fix bugs.", tools=("view", "str_replace", "submit"), limits=limits)
    made = run(renderer, env, chosen, ["I look.\n" + view if name != "gpt-oss" else view, "no call", *ends])
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED), made.outcome
    assert made.outcome.reward == 1.0
    assert [one.name for one in env.calls] == ["view", "str_replace", "submit"]
    first, second, *_ = texts(renderer, made, SpanKind.OBSERVATION)
    assert "x = 1" in first
    assert "Error (missing):" in second


def test_more_calls_than_the_preset_allows_run_none(renderer, World) -> None:
    env = World()
    chosen = preset().model_copy(update={"max_calls": 1})
    made = run(renderer, env, chosen, [FIX, VIEW, call("submit")])
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert [one.name for one in env.calls] == ["view", "submit"]
    assert "Error (several_calls): The turn holds 2 calls; 1 may" in texts(renderer, made, SpanKind.OBSERVATION)[0]


def test_a_call_inside_a_thought_that_the_prompt_opened_is_not_run(World) -> None:
    """In every turn, not only in the first: observations open the thought again."""
    template = TEMPLATE.replace(
        "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}"
    ).replace(
        "message.role + '\\n' + message.content",
        "message.role + '\\n' + ('<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' "
        "if message.reasoning_content else '') + message.content",
    )
    renderer, env = renderer_for(stand_in(template, "<|im_end|>", ["<|endoftext|>"])), World()
    assert renderer.family == "qwen"
    bad = f"I could call {call('submit')} but first\n</think>\n\n"
    made = run(renderer, env, preset(max_tokens=3000, max_context=9000), [bad + VIEW, bad, "hm\n</think>\n\n" + FIX])
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert [one.name for one in env.calls] == ["view", "str_replace", "submit"]
    assert "Error (missing):" in texts(renderer, made, SpanKind.OBSERVATION)[1]
    assert texts(renderer, made, SpanKind.OBSERVATION)[0].endswith("assistant\n<think>\n")


def test_a_preset_without_thinking_says_so_to_the_template() -> None:
    renderer = renderer_for(any_renderer("qwen3").tokenizer, thinking=False)
    assert renderer.generation_text.endswith("<think>\n\n</think>\n\n")


def test_a_fenced_preset_needs_shell_tools(renderer, World) -> None:
    class NoShell(World):
        tools = World.tools[1:]

    with pytest.raises(PresetError, match="no tool bash"):
        run(renderer, NoShell(), load_preset("mini"), [])


LONG = call("view", path="long.py")


class Strict(ScriptedPolicy):
    """Refuses, as engines do, a request that could exceed its context, and one for no token at all."""

    asked: list[int]

    async def generate(self, tokens, *, max_new_tokens, stop_ids, seed, episode_id=""):
        if max_new_tokens < 1 or len(tokens) + max_new_tokens > self.max_context:
            raise EngineError(f"{len(tokens)} + {max_new_tokens} tokens do not fit {self.max_context}")
        self.asked.append(max_new_tokens)
        return await super().generate(
            tokens, max_new_tokens=max_new_tokens, stop_ids=stop_ids, seed=seed, episode_id=episode_id
        )


@given(
    st.lists(st.sampled_from([VIEW, VIEW + VIEW, "words " * 30, "<tool_call>", LONG]), min_size=1, max_size=6),
    st.integers(120, 900), st.integers(10, 400), st.none() | st.integers(1, 80), st.integers(1, 120),
)  # fmt: skip
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_is_too_long_and_an_observation_leaves_room_for_an_answer(
    renderer, World, script, context, max_tokens, max_turn_tokens, reserve
) -> None:
    env = World({"a.py": b"x = 1\n", "long.py": b"line of text\n" * 300})
    policy = Strict(script, encode=renderer.action_ids, repeat_last=True)
    policy.max_context, policy.asked = context, []
    made = play(
        renderer, env, [], policy=policy, max_tokens=max_tokens, max_context=context + 50, max_turns=9,
        max_turn_tokens=max_turn_tokens, answer_reserve=min(reserve, context - 1), observation_chars=9000,
    )  # fmt: skip
    assert made.outcome.status is Status.GRADED, made.outcome
    assert len(made) <= max(context, len(made.spans[0]))
    left = max_tokens
    for span, asked in zip((s for s in made.spans if s.kind is SpanKind.ACTION), policy.asked, strict=True):
        assert asked <= min(left, context - span.start, max_turn_tokens or left)
        left -= len(span)
    for span in made.spans:
        if span.kind is SpanKind.OBSERVATION:
            assert context - span.end >= min(reserve, context - 1)


def test_a_turn_keeps_what_is_left_of_its_budget_when_the_weights_change(renderer, World, make_model) -> None:
    """The policy is updated in the middle of the first turn: its limit counts from the turn's start, and so does the
    episode's; every token has the version that sampled it."""
    size = len(renderer.tokenizer)
    kwargs = {"vocab_size": size, "max_position_embeddings": 2048}

    async def main() -> Trajectory:
        engine = EmbeddedPolicy(make_model(0, **kwargs), threads=1)
        new = make_model(1, **kwargs).state_dict()
        chosen = preset(max_turn_tokens=60, max_tokens=100, max_turns=9)
        task = asyncio.create_task(run_episode(engine, renderer, World(), chosen, identity(renderer)))
        await sampled(engine, 20)
        await engine.update_weights(new, 1)
        made = await task
        await engine.close()
        return made

    made = asyncio.run(main())
    lengths = [len(span) for span in made.spans if span.kind is SpanKind.ACTION]
    assert all(length <= 60 for length in lengths)
    assert sum(lengths) <= 100
    versions = made.versions[made.action_mask]
    assert set(versions.tolist()) == {0, 1}
    assert (versions[:-1] <= versions[1:]).all()
    assert 20 <= (versions == 0).sum() < lengths[0]
