"""The endpoint behind the episode loop: faults by kind, budgets, a history that the protocol takes, cuts. A real server
of the protocol answers (tests/chat_server.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.dialogue import ContextFull
from agent.endpoint.actor import Endpoint
from agent.endpoint.client import ChatClient
from agent.endpoint.dialogue import Manner, guessed_tokens, shorter
from agent.endpoint.faults import EndpointDown, EndpointRefused, Filtered, Refusal, TooLong, fault_of
from agent.endpoint.settings import EndpointSettings
from agent.episode import run_episode
from agent.fleet import Fleet, FleetSettings, plan_draws
from agent.parsers import CallError, CallErrorKind, native
from agent.presets import Limits, Preset
from agent.renderers.plain import EMPTY, PlainRenderer
from data.quoted import endpoint_facts, model_tokens
from data.task import Task
from data.trajectory import ExitReason, Identity, SpanKind, Status, Trajectory
from envs.environment import ToolCall
from tests.chat_server import ChatServer, call, say, serving, turns_of

LIMITS: dict[str, Any] = dict(
    max_turns=5,
    max_tokens=4000,
    max_context=20_000,
    command_timeout_s=5,
    episode_timeout_s=20,
    observation_chars=400,
    answer_reserve=50,
)
QUESTION = [{"role": "user", "content": "Q"}]


def settings(server: ChatServer, **changes: Any) -> EndpointSettings:
    return replace(EndpointSettings(server.url, server.model, tries=3, patience_s=20), **changes)


def preset(calls: str = "native", **limits: Any) -> Preset:
    tools = ("bash", "submit") if calls == "fenced" else ("view", "str_replace", "submit")
    return Preset(name="t", system="You fix bugs.", tools=tools, calls=calls, limits=Limits(**{**LIMITS, **limits}))  # type: ignore[arg-type]


def chat(server: ChatServer, *, max_tokens: int = 100, **changes: Any) -> Any:
    async def run() -> Any:
        async with serving(server):
            client = ChatClient(settings(server, **changes))
            try:
                return await client.chat(QUESTION, max_tokens=max_tokens)
            finally:
                await client.close()

    return asyncio.run(run())


def play(server: ChatServer, renderer: Any, env: Any, *, manner: Manner | None = None, cut_after: float | None = None,
         changes: Mapping[str, Any] | None = None, calls: str = "native", **limits: Any) -> Trajectory:  # fmt: skip
    plain = PlainRenderer(renderer.tokenizer)

    async def run() -> Trajectory:
        cut = asyncio.Event()
        if cut_after is not None:
            asyncio.get_running_loop().call_later(cut_after, cut.set)
        async with serving(server):
            endpoint = await Endpoint.connect(
                settings(server, **(changes or {})), manner or Manner(), temperature=0.5, check=False
            )
            try:
                identity = Identity("run-000000-0", "task", 0, 42, plain.tokenizer_fingerprint)
                return await run_episode(endpoint, plain, env, preset(calls, **limits), identity, cut=cut)
            finally:
                await endpoint.close()

    made = asyncio.run(run())
    assert env.closed >= 1
    return made


def exit_of(made: Trajectory) -> tuple[Status, ExitReason]:
    return made.outcome.status, made.outcome.exit_reason


def works(body: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = [
        call("view", {"path": "a.py"}, content="Look."),
        call("str_replace", {"path": "a.py", "old_str": "x = 1", "new_str": "x = 2"}, number=1),
        call("submit", "", number=2),
    ]
    return steps[turns_of(body)]


def test_an_episode_with_native_calls(renderer: Any, World: Any) -> None:
    server, env = ChatServer(works), World()
    made = play(server, renderer, env)
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert (made.outcome.reward, made.patch, made.turns) == (1.0, b"diff", 3)
    assert [one.name for one in env.calls] == ["view", "str_replace", "submit"]
    assert not made.action_mask.any()
    assert made.oldest_version is None
    texts = [(span.kind, renderer.tokenizer.decode(made.tokens[span.start : span.end].tolist())) for span in made.spans]
    assert texts[1] == (SpanKind.QUOTED, 'Look.\n\nview {"path": "a.py"}')
    assert texts[2] == (SpanKind.OBSERVATION, "x = 1")
    assert '"name": "view"' in texts[0][1]
    facts = endpoint_facts(made)
    assert [turn["finish"] for turn in facts["turns"]] == ["tool_calls"] * 3
    assert model_tokens(made) == facts["completion_tokens"] == sum(t["completion_tokens"] for t in facts["turns"])
    assert facts["turns"][0]["model"] == "small-2026"
    sent = server.bodies
    assert [body["temperature"] for body in sent] == [0.5] * 3
    assert len({body["seed"] for body in sent}) == 3
    assert all(0 <= body["seed"] < 1 << 31 for body in sent)
    assert sent[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c0", "content": "x = 1"}
    assert made.outcome.grade["files"] == 1  # what the grader saw stands beside


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [429, 500, 503, 408, "cut", "no_json", "no_choices", "inside"])
def test_a_fault_is_tried_again(fault: Any) -> None:
    server = ChatServer(lambda body: say("fine"))
    server.faults.append(fault)
    answer = chat(server)
    assert (answer.content, answer.retries) == ("fine", 1)


def test_a_slow_answer_is_tried_again() -> None:
    server = ChatServer(lambda body: say("fine"))
    server.faults.append("slow")
    server.slow_s = 3.0
    assert chat(server, timeout_s=0.5).retries == 1


def test_retry_after_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChatServer(lambda body: say("fine"))
    server.faults.append(429)
    server.headers = {"Retry-After": "2"}
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *more: Any) -> None:
        waited.append(seconds)
        await real(0)

    monkeypatch.setattr("agent.endpoint.client.asyncio.sleep", sleep)
    chat(server)
    assert 2.0 in waited
    server.faults.append(429)
    server.headers = {"Retry-After": "3600"}  # longer than our patience: said, not slept
    with pytest.raises(EndpointDown, match="asks to wait 3600 s more"):
        chat(server)


def test_when_every_try_fails_it_is_an_infrastructure_fault_never_a_failure(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.faults.extend(["ok", 500, 500])
    made = play(server, renderer, World(), changes={"tries": 2})
    assert exit_of(made) == (Status.INFRA_ERROR, ExitReason.ENGINE_ERROR)
    assert made.outcome.reward is None
    assert (made.outcome.grade["kind"], made.turns) == ("EndpointDown", 1)
    assert "status 500: try later. Tried 2 times" in made.outcome.grade["message"]


def test_nobody_there() -> None:
    async def run() -> None:
        client = ChatClient(EndpointSettings("http://127.0.0.1:9/v1", "m", tries=2))
        try:
            with pytest.raises(EndpointDown, match="Connect"):
                await client.check()
        finally:
            await client.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "", "This model's maximum context length is 8 tokens.", TooLong),
        (400, "context_length_exceeded", "no", TooLong),
        (413, "", "prompt is too long: 9 tokens > 8 maximum", TooLong),
        (400, "content_filter", "filtered", Filtered),
        (400, "", "temperature must be 1", EndpointRefused),
        (401, "", "who?", EndpointRefused),
        (404, "model_not_found", "which?", EndpointRefused),
        (429, "insufficient_quota", "pay", EndpointRefused),
    ],
)
def test_refusals_by_kind(status: int, code: str, message: str, kind: type[Exception]) -> None:
    assert type(fault_of("POST x", Refusal(status, message, code), None)) is kind


@pytest.mark.parametrize(
    ("message", "room", "expected"),
    [
        ("This model's maximum context length is 100 tokens. However, you requested 130 tokens (30 in the messages, "
         "100 in the completion).", 100, 70),
        ("'max_tokens' is too large: 90. This model's maximum context length is 100 tokens and your request has 30 "
         "input tokens (90 > 100 - 30).", 90, 70),
        ("This model's maximum context length is 100 tokens. However, your messages resulted in 150 tokens.", 90, -50),
        ("Input is too long for requested model.", 90, 45),
    ],
)  # fmt: skip
def test_what_is_asked_for_after_a_refusal_for_length(message: str, room: int, expected: int) -> None:
    refused = fault_of("POST x", Refusal(400, message), None)
    assert isinstance(refused, TooLong)
    assert shorter(room, refused) == expected


def test_at_most_so_many_requests_at_once(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.delay_s = 0.02
    kept: list[Trajectory] = []

    async def run() -> None:
        async with serving(server):
            endpoint = await Endpoint.connect(settings(server, in_flight=3), Manner(), temperature=1.0, check=False)
            plain = PlainRenderer(renderer.tokenizer)
            task = Task("task", "swe", "train", {})
            fleet = Fleet(endpoint, plain, preset(), lambda _: World(), kept.append, FleetSettings("run", 0, 10))
            await fleet.run(plan_draws([task], 10))
            await endpoint.close()

    asyncio.run(run())
    assert server.most_live == 3
    assert [exit_of(made) for made in kept] == [(Status.GRADED, ExitReason.SUBMITTED)] * 10


def test_a_field_that_is_not_taken_is_refused_with_the_way_out() -> None:
    refused = fault_of("POST x", Refusal(400, "Unsupported parameter: 'max_tokens'."), None)
    assert isinstance(refused, EndpointRefused)
    assert "endpoint.limit_field" in str(refused)


def test_the_key_is_blotted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "sk-123456")
    server = ChatServer(lambda body: say("fine"), key="another")
    with pytest.raises(EndpointRefused, match=r"provided: \*\*\*"):
        chat(server, key_env="K")


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_the_context_that_the_endpoint_names_is_kept_by_asking_for_less(renderer: Any, World: Any) -> None:
    server = ChatServer(works, context=700)
    made = play(server, renderer, World())  # the preset alone would ask for 4000
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert max(body["max_tokens"] for body in server.bodies[1:]) <= 4000
    assert all(turn["completion_tokens"] > 0 for turn in endpoint_facts(made)["turns"])


def test_a_context_that_is_full_ends_the_episode_and_it_is_graded(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.faults.extend(["ok", *["too_long"] * 20])
    made = play(server, renderer, World())
    assert exit_of(made) == (Status.GRADED, ExitReason.MAX_CONTEXT)
    assert (made.outcome.reward, made.turns) == (0.0, 1)
    rooms = [body["max_tokens"] for body in server.bodies[1:]]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[-1] >= 50


def test_turns_and_tokens_and_wall_clock(renderer: Any, World: Any) -> None:
    looks = ChatServer(lambda body: call("view", {"path": "a.py"}, number=turns_of(body), tokens=30))
    assert exit_of(play(looks, renderer, World(), max_turns=2)) == (Status.GRADED, ExitReason.MAX_TURNS)
    looks = ChatServer(lambda body: call("view", {"path": "a.py"}, number=turns_of(body), tokens=30))
    made = play(looks, renderer, World(), max_tokens=70)
    assert exit_of(made) == (Status.GRADED, ExitReason.MAX_TOKENS)
    assert [body["max_tokens"] for body in looks.bodies] == [70, 40, 10]
    slow = ChatServer(works)
    slow.faults.append("slow")
    made = play(slow, renderer, World(), episode_timeout_s=0.3)
    assert exit_of(made) == (Status.GRADED, ExitReason.WALL_CLOCK)
    assert made.timings["generate"] < 3.0
    slow.faults.append("slow")
    made = play(slow, renderer, World(), cut_after=0.3)
    assert exit_of(made) == (Status.CUT, ExitReason.SYSTEM_CUT)


def test_observations_are_shortened_to_what_is_left(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.usage = False  # then sizes are guessed, and said to be
    made = play(server, renderer, World({"a.py": b"x = 1\n" + b"y\n" * 3000}), max_context=600, observation_chars=9000)
    assert exit_of(made)[1] in (ExitReason.SUBMITTED, ExitReason.MAX_CONTEXT)
    texts = [message["content"] for message in server.bodies[-1]["messages"] if message["role"] == "tool"]
    assert texts
    assert guessed_tokens(texts[0]) < 400
    assert all(turn["guessed"] for turn in endpoint_facts(made)["turns"])


# -- what a model may say ----------------------------------------------------------------------------------------------


def test_a_bad_call_beside_a_good_one_a_refusal_and_an_empty_turn(renderer: Any, World: Any) -> None:
    def answers(body: Mapping[str, Any]) -> Mapping[str, Any]:
        turn, last = turns_of(body), body["messages"][-1]
        if turn == 0:
            good = call("view", {"path": "a.py"})["tool_calls"][0]
            bad = call("view", '{"path": }', number=1)["tool_calls"][0]
            return say("Both.", tool_calls=[bad, good])
        if turn == 1:
            assert (last["role"], body["messages"][-2]["role"]) == ("user", "tool")
            assert "bad_json" in last["content"]
            return say("", refusal="I will not.")
        if turn == 2:
            assert "missing" in last["content"]
            return call("submit", {}, number=9)
        raise AssertionError

    made = play(ChatServer(answers), renderer, World())
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert endpoint_facts(made)["turns"][1]["refusal"] == "I will not."


def test_the_filter_of_the_endpoint_is_an_answer_not_a_fault(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.faults.append("filtered")
    made = play(server, renderer, World(), max_turns=1)
    assert exit_of(made) == (Status.GRADED, ExitReason.MAX_TURNS)
    assert endpoint_facts(made)["turns"][0]["finish"] == "content_filter"
    assert endpoint_facts(made)["turns"][0]["refusal"] == "The response was filtered."


def test_an_empty_answer_is_an_empty_turn(renderer: Any, World: Any) -> None:
    server = ChatServer(works)
    server.faults.append("empty")
    made = play(server, renderer, World(), max_turns=1)
    span = made.spans[1]
    assert renderer.tokenizer.decode(made.tokens[span.start : span.end].tolist()) == EMPTY


def test_a_fenced_preset(renderer: Any, World: Any) -> None:
    server = ChatServer(lambda body: say("Done.\n```bash\nsubmit\n```"))
    made = play(server, renderer, World(), calls="fenced")
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert "tools" not in server.bodies[0]
    assert endpoint_facts(made)["calls"] == "fenced"


def test_calls_beyond_what_the_preset_allows_are_each_answered(renderer: Any, World: Any) -> None:
    def answers(body: Mapping[str, Any]) -> Mapping[str, Any]:
        two = [call("view", {"path": "a.py"}, number=n)["tool_calls"][0] for n in (0, 1)]
        return say("", tool_calls=two) if turns_of(body) == 0 else call("submit", "", number=2)

    plain, server, env = PlainRenderer(renderer.tokenizer), ChatServer(answers), World()

    async def run() -> Trajectory:
        async with serving(server):
            endpoint = await Endpoint.connect(settings(server), Manner(), temperature=1.0, check=False)
            one = preset().model_copy(update={"max_calls": 1})
            made = await run_episode(endpoint, plain, env, one, Identity("r-0-0", "t", 0, 1, "x"))
            await endpoint.close()
            return made

    made = asyncio.run(run())
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    results = [message for message in server.bodies[1]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == ["c0", "c1"]
    assert all("several_calls" in message["content"] for message in results)


def test_dropped_thoughts_and_omitted_fields(renderer: Any, World: Any) -> None:
    def thinks(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**works(body), "reasoning": "hm"}

    server = ChatServer(thinks)
    changes = {"omit": ("seed", "temperature", "top_p"), "extra": {"reasoning_effort": "high"}}
    made = play(server, renderer, World(), manner=Manner(thoughts="drop"), changes=changes)
    assert exit_of(made)[1] is ExitReason.SUBMITTED
    body = server.bodies[-1]
    assert not {"seed", "temperature", "top_p"} & set(body)
    assert body["reasoning_effort"] == "high"
    assert all("reasoning" not in message for message in body["messages"])
    span = made.spans[1]
    assert renderer.tokenizer.decode(made.tokens[span.start : span.end].tolist()).startswith("<think>\nhm\n</think>")


def test_context_full_is_no_engine_error() -> None:
    assert not issubclass(ContextFull, RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "cut", "expected"),
    [
        ('{"path": "a"}', False, ToolCall("view", {"path": "a"})),
        ("", False, ToolCall("view", {})),
        (None, False, ToolCall("view", {})),
        ({"path": "a"}, False, ToolCall("view", {"path": "a"})),
        ('{"path": "a"', False, CallErrorKind.BAD_JSON),
        ('{"path": "a"', True, CallErrorKind.CUT_BY_LENGTH),
        ('{"path": "a"} and more', False, CallErrorKind.TEXT_AFTER),
        ('["a"]', False, CallErrorKind.BAD_ARGUMENTS),
        ('{"path": "a", "path": "b"}', False, CallErrorKind.BAD_JSON),
        ('{"path": "\\ud800"}', False, CallErrorKind.BAD_JSON),
        (7, False, CallErrorKind.BAD_ARGUMENTS),
        ('{"a":' * 100_000, False, CallErrorKind.BAD_JSON),
    ],
)
def test_native_calls(arguments: Any, cut: bool, expected: Any) -> None:
    (made,) = native.parse([{"function": {"name": "view", "arguments": arguments}}], cut=cut)
    assert (made.kind if isinstance(made, CallError) else made) == expected


@pytest.mark.parametrize("broken", [None, 7, {}, {"function": None}, {"function": {"arguments": "{}"}}])
def test_broken_native_calls_are_named_errors(broken: Any) -> None:
    (made,) = native.parse([broken])
    assert isinstance(made, CallError)
    json.dumps(made.message)


def test_no_native_call_is_a_missing_one() -> None:
    (made,) = native.parse([])
    assert isinstance(made, CallError)
    assert made.kind is CallErrorKind.MISSING
