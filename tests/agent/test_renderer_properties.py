"""What holds for every renderer, whatever is said: ids are only appended, results come back out, nothing is forged."""

from __future__ import annotations

import json
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.parsers import CallError
from agent.renderers import Renderer
from agent.renderers.fenced import FencedRenderer
from agent.renderers.template import PROBE_TOOL
from data.trajectory import TrajectoryBuilder
from envs.environment import ToolCall
from tests.agent.families import any_renderer, every

QUIET = settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
MESSAGES = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "total() is wrong."}]
PIECES = [
    "<think>",
    "</think>",
    "<|im_end|>",
    "<|call|>",
    "<|observation|>",
    "</tool_call>",
    "\n",
    "{",
    '"',
    "é",
    "\u2028",
    "\uf900",
    "e\u0301",
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join)
TURNS = st.lists(
    st.tuples(TEXT, st.sampled_from(["end", "cut", "other"]), st.lists(TEXT, min_size=1, max_size=3), st.booleans()),
    max_size=3,
)


@pytest.mark.parametrize("name", every())
def test_prefix_property(name: str) -> None:
    """Ids of turn n+1 begin with all ids of turn n; the observation holds every result, and no special token but its
    own frame's."""
    plain = any_renderer(name)
    added = set(plain.tokenizer.added.values())
    fenced = [] if name == "qwen3.5" else [FencedRenderer(plain)]
    # Results of the same number of calls have the same special tokens, whatever they say.
    frames: dict[tuple[int, str, int, bool], list[int]] = {}

    def specials(ids: list[int]) -> list[int]:
        return [one for one in ids if one in added]

    @given(TURNS, st.sampled_from([plain, *fenced]))
    @QUIET
    def check(conversation, renderer: Renderer) -> None:
        builder = TrajectoryBuilder(renderer.prompt_ids(MESSAGES, [PROBE_TOOL]))
        for text, ending, results, called in conversation:
            seen = builder.tokens
            action = plain.action_ids(text)
            if ending != "end":
                action = action[:-1] or plain.tokenizer.encode_text("x")
            if ending == "other":
                action = [*action, renderer.stop_ids[-1]]
            builder.append_action(action, [-1.0] * len(action), [0] * len(action))
            last = action[-1] if action[-1] in renderer.stop_ids else None
            names = ["view" if called else None] * len(results)
            observation = renderer.observation_ids(results, last, names)
            builder.append_observation(observation)
            now = builder.tokens
            assert now[: len(seen)] == seen
            assert now[len(seen) :] == [*action, *observation]
            decoded = plain.tokenizer.decode(observation)
            for result in results:
                # Llama's user messages are trimmed by its template, JSON strings escape, and some families' own
                # tokenizers compose what they read (NFC).
                forms = (result.strip(), json.dumps(result, ensure_ascii=False))
                assert any(form in decoded or normalize("NFC", form) in decoded for form in forms)
            key = (len(results) if renderer is plain else 1, str(last), id(renderer), called)
            assert frames.setdefault(key, specials(observation)) == specials(observation)
            for item in renderer.parse(action, before=seen, cut=ending == "cut", tools=[PROBE_TOOL]):
                assert isinstance(item, CallError | ToolCall)

    check()


@pytest.mark.parametrize("name", every())
def test_the_prompt_holds_the_problem_and_nothing_forged(name: str) -> None:
    renderer = any_renderer(name)
    added = set(renderer.tokenizer.added.values())

    def prompt(problem: str) -> list[int]:
        return renderer.prompt_ids([MESSAGES[0], {"role": "user", "content": problem}], [PROBE_TOOL])

    plain = [one for one in prompt("x") if one in added]

    @given(st.lists(st.sampled_from(sorted(renderer.tokenizer.added)) | st.text(max_size=4), max_size=5).map("".join))
    @QUIET
    def check(problem: str) -> None:
        ids = prompt(problem)
        assert [one for one in ids if one in added] == plain
        assert problem.strip() in renderer.tokenizer.decode(ids)

    check()
