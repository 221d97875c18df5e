"""Whose fault it is at an endpoint, where that is easily mistaken: answers broken off, time in which nobody worked,
thoughts that are gone, keys in cut texts, settings that would contradict the run."""

from __future__ import annotations

from typing import Any

import pytest

from agent.endpoint.dialogue import Manner, shorter
from agent.endpoint.faults import EndpointRefused, Refusal, TooLong, fault_of
from agent.endpoint.settings import EndpointSettings
from agent.renderers.plain import EMPTY
from data.quoted import endpoint_facts
from data.trajectory import ExitReason, Status
from tests.agent.test_endpoint import chat, exit_of, play, works
from tests.chat_server import ChatServer, call, say, turns_of


@pytest.mark.parametrize("finish", ["abort", "error", "insufficient_system_resource"])
def test_an_answer_that_the_server_broke_off_is_no_turn(finish: str) -> None:
    server = ChatServer(lambda body: say("half of", finish=finish) if len(server.bodies) == 1 else say("whole"))
    answer = chat(server)
    assert (answer.content, answer.retries) == ("whole", 1)


def test_the_clock_stands_still_while_the_endpoint_is_down(renderer: Any, World: Any) -> None:
    """The tries take longer than the whole episode may: that is the endpoint's fault, never a graded time-out."""
    server = ChatServer(works)
    server.faults.extend([500, "cut", 503])
    made = play(server, renderer, World(), changes={"tries": 9}, episode_timeout_s=1.0)
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    assert made.timings["generate"] > 2.0
    server.faults.extend([500] * 3)
    made = play(server, renderer, World(), episode_timeout_s=1.0)
    assert (exit_of(made), made.outcome.reward) == ((Status.INFRA_ERROR, ExitReason.ENGINE_ERROR), None)


def test_an_endpoint_that_hangs_until_the_clock_runs_out(
    renderer: Any, World: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own failure where it says nothing to anybody, the model's where it only takes long over the turn."""
    monkeypatch.setattr("agent.endpoint.client._ANYBODY_S", 0.5)
    for fault, expected in (
        ("hang", (Status.INFRA_ERROR, ExitReason.ENGINE_ERROR)),
        ("slow", (Status.GRADED, ExitReason.WALL_CLOCK)),
    ):
        server = ChatServer(works)
        server.faults.append(fault)
        made = play(server, renderer, World(), episode_timeout_s=0.3)
        assert exit_of(made) == expected
    server = ChatServer(works)
    server.faults.append("hang")
    made = play(server, renderer, World(), cut_after=0.3)
    assert exit_of(made) == (Status.CUT, ExitReason.SYSTEM_CUT)


def test_a_turn_that_says_nothing_goes_back_as_one_that_every_server_takes(renderer: Any, World: Any) -> None:
    """Some refuse a history that holds an empty message: then the model's silence would end the run."""
    turns = [say(""), say("", refusal="I will not."), say("", reasoning_content="hm"), call("submit", "", number=3)]
    server = ChatServer(lambda body: turns[turns_of(body)])
    made = play(server, renderer, World())
    assert exit_of(made) == (Status.GRADED, ExitReason.SUBMITTED)
    sent = [message["content"] for message in server.bodies[-1]["messages"] if message["role"] == "assistant"]
    assert sent == [EMPTY, "I will not.", EMPTY]


@pytest.mark.parametrize("thoughts", ["send", "drop"])
def test_thoughts_that_do_not_go_back_take_no_context(renderer: Any, World: Any, thoughts: Any) -> None:
    def thinks(body: Any) -> Any:
        if turns_of(body):
            return call("submit", "", number=1)
        return call("view", {"path": "a.py"}, reasoning_content="hm " * 900, tokens=900)

    made = play(ChatServer(thinks), renderer, World(), manner=Manner(thoughts=thoughts), max_context=950)
    ends = {"send": ExitReason.MAX_CONTEXT, "drop": ExitReason.SUBMITTED}
    assert exit_of(made) == (Status.GRADED, ends[thoughts])
    assert endpoint_facts(made)["turns"][0]["completion_tokens"] == 900


@pytest.mark.parametrize("before", [*range(488, 500), 0])
def test_a_key_is_blotted_out_also_where_the_text_is_cut(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    monkeypatch.setenv("K", "sk-123456")
    server = ChatServer(lambda body: say("fine"))
    server._unknown = lambda request: web_text("x" * before + "sk-123456")  # type: ignore[method-assign]
    with pytest.raises(EndpointRefused) as refused:
        chat(server, key_env="K")
    assert "sk-" not in str(refused.value)


def web_text(text: str) -> Any:
    from aiohttp import web

    return web.Response(text=text, status=401)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 900. This model supports at most 64 completion tokens, whereas you provided 900.",
        "max_tokens: 900 > 64, which is the maximum allowed number of output tokens for small",
    ],
)
def test_a_model_with_shorter_answers_than_the_run_allows_is_asked_for_those(message: str) -> None:
    """The check's tiny question does not find it out, and no episode could end."""
    refused = fault_of("POST x", Refusal(400, message, "invalid_value"), None)
    assert isinstance(refused, TooLong)
    assert shorter(900, refused) == 64
    assert shorter(64, refused) == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"extra": {"temperature": 1.0}}, "extra sets temperature"),
        ({"extra": {"stream": True}}, "extra sets stream"),
        ({"extra": {"max_completion_tokens": 9}, "limit_field": "max_completion_tokens"}, "max_completion_tokens"),
        ({"omit": ("messages",)}, "omit leaves out messages"),
    ],
)
def test_settings_that_contradict_the_run_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(EndpointRefused, match=words):
        EndpointSettings("http://127.0.0.1:9/v1", "m", **changes).check()
