"""Formats of other agents, each in small files of our own: every text arrives, what is left is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.foreign import ForeignCall, ForeignError, ForeignMessage, ForeignRun, read_foreign, read_runs
from data.foreign.messages import Messages

START = [{"role": "system", "content": "Fix it."}, {"role": "user", "content": "It is broken."}]


def read(tmp_path: Path, value: object, name: str = "x.traj.json") -> ForeignRun:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return read_foreign(path)


def messages(*given: dict[str, Any]) -> tuple[list[ForeignMessage], tuple[str, ...]]:
    made = Messages("here")
    made.read(given)
    return made.made, made.not_carried


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "Say.", "reasoning_content": "Think."},
        {"content": "Say.", "reasoning": "Think."},
        {"content": "Say.", "thinking_blocks": [{"type": "thinking", "thinking": "Think.", "signature": "x"}]},
        {"content": "Say.", "reasoning_details": [{"type": "reasoning.text", "text": "Think."}]},
        {"content": [{"type": "thinking", "thinking": "Think."}, {"type": "text", "text": "Say."}]},
        {"content": "Say.", "thought": "Think."},
        {  # the same three times over
            "content": "Say.",
            "reasoning_content": "Think.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Think."}],
            "provider_specific_fields": {"reasoning_content": "Think."},
        },
    ],
)
def test_a_thought_is_kept_once_wherever_it_stands(fields: dict[str, Any]) -> None:
    (one,), left = messages({"role": "assistant", **fields})
    assert (one.thought, one.content, left) == ("Think.", "Say.", ())
    assert one.text == "<think>\nThink.\n</think>\n\nSay."


def test_two_different_thoughts_are_both_kept() -> None:
    (one,), _ = messages({"role": "assistant", "content": "", "reasoning_content": "A.", "thought": "B."})
    assert one.thought == "A.\n\nB."


def test_tools_in_parts_of_a_content() -> None:
    made, left = messages(
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "t2", "name": "bash", "input": {"command": "pwd"}},
                {"type": "redacted_thinking", "data": "zzz"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.py"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "/w"},
                {"type": "text", "text": "Go on."},
                {"type": "image", "source": {}},
            ],
        },
    )
    assert made == [
        ForeignMessage(
            "assistant",
            "Look:",
            calls=(ForeignCall("bash", '{"command": "ls"}', "t1"), ForeignCall("bash", '{"command": "pwd"}', "t2")),
        ),
        ForeignMessage("tool", "a.py", answers="t1", name="bash"),
        ForeignMessage("tool", "/w", answers="t2", name="bash"),
        ForeignMessage("user", "Go on."),
    ]
    assert left == ("1 × image, which is no text", "1 × redacted_thinking, which is no text")


def test_null_contents_old_calls_and_actions_without_a_content() -> None:
    made, _ = messages(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{ }"}}],
        },
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "s"},
        {"role": "assistant", "content": "", "thought": "Hm.", "action": "ls -l"},
    )
    assert [one.text for one in made] == ["f { }", "r", "g {}", "s", "<think>\nHm.\n</think>\n\nls -l"]
    assert [one.role for one in made] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert (made[1].name, made[3].name) == ("f", "g")


PIECES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(PIECES, min_size=1, max_size=5), PIECES, PIECES)
@settings(deadline=None, max_examples=60)
def test_texts_come_through_unchanged(parts: list[str], thought: str, argument: str) -> None:
    blocks = [{"type": "text", "text": part} for part in parts]
    call = {"function": {"name": "f", "arguments": argument}, "id": "1"}
    (one, result), left = messages(
        {"role": "assistant", "content": blocks, "reasoning_content": thought, "tool_calls": [call]},
        {"role": "tool", "content": blocks, "tool_call_id": "1"},
    )
    assert one.content == result.content == "".join(parts)
    assert one.calls == (ForeignCall("f", argument, "1"),)
    assert one.thought == (thought if thought.strip() else "")
    assert left == ()


# --- mini-swe-agent 2 -------------------------------------------------------------------------------------------------


ANSWER = {
    "object": "response",
    "id": "r1",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}], "encrypted_content": "zz"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Listing."}]},
        {"type": "function_call", "call_id": "c1", "id": "fc1", "name": "bash", "arguments": '{"command":"ls"}'},
    ],
    "extra": {"actions": [{"command": "ls", "tool_call_id": "c1"}]},
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "a.py\n", "extra": {"returncode": 0}}
END = {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff --git\n"}}
V2 = {
    "trajectory_format": "mini-swe-agent-1.1",
    "info": {"mini_version": "2.0.0", "config": {"model": {"model_name": "m"}}},
    "instance_id": "my-task",
}
TURN = ForeignMessage("assistant", "Listing.", "Look first.", (ForeignCall("bash", '{"command":"ls"}', "c1"),))


def test_mini_swe_agent_2_in_its_responses_form(tmp_path) -> None:
    run = read(tmp_path, {**V2, "messages": [*START, ANSWER, RESULT, END]})
    assert run.harness == "mini-swe-agent 2.0.0"
    assert run.messages[2:4] == (TURN, ForeignMessage("tool", "a.py\n", answers="c1", name="bash"))
    assert (run.exit_status, run.submission) == ("Submitted", "diff --git\n")
    assert run.messages[-1] == ForeignMessage("exit", "diff")
    error = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "No call."}]}
    assert read(tmp_path, {**V2, "messages": [*START, ANSWER, error]}).messages[-1] == ForeignMessage(
        "user", "No call."
    )


def test_loose_responses_items_make_the_same_turn(tmp_path) -> None:
    run = read(tmp_path, {**V2, "messages": [*START, *ANSWER["output"], RESULT, *ANSWER["output"]]})
    assert [run.messages[2], run.messages[4]] == [TURN, TURN]


def test_mini_swe_agent_2_in_its_chat_form(tmp_path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "R."}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "a.py", "extra": {}}
    run = read(tmp_path, {**V2, "messages": [*START, said, answer, END]})
    assert run.messages[2].text == '<think>\nR.\n</think>\n\nbash {"command":"ls"}'
    assert run.messages[3] == ForeignMessage("tool", "a.py", answers="c1", name="bash")


# --- OpenHands --------------------------------------------------------------------------------------------------------


def answered(name: str, key: str, text: str, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """What an event of the old server keeps of the answer that it came from."""
    made = [{"id": at, "type": "function", "function": {"name": one, "arguments": given}} for at, one, given in calls]
    message = {"role": "assistant", "content": text, "tool_calls": made}
    return {
        "function_name": name,
        "tool_call_id": calls[0][0],
        "model_response": {"id": key, "choices": [{"message": message}]},
    }


LS, CAT = ("k1", "execute_bash", '{"command": "ls"}'), ("k2", "execute_bash", '{"command":"cat a"}')
BOTH = answered("execute_bash", "r1", "I look.", LS, CAT)
EVENTS: list[dict[str, Any]] = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "You fix.", "openhands_version": "0.40.0"}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": "Mend a.", "image_urls": None}},
    {"id": 2, "source": "user", "action": "recall", "args": {"query": "Mend a."}},
    {"id": 3, "source": "agent", "action": "run", "args": {"command": "ls"}, "tool_call_metadata": BOTH},
    {"id": 4, "source": "agent", "observation": "run", "content": "a\n", "tool_call_metadata": BOTH},
    {
        "id": 5,
        "source": "agent",
        "action": "run",
        "args": {"command": "cat a"},
        "tool_call_metadata": {**BOTH, "tool_call_id": "k2"},
    },
    {
        "id": 6,
        "source": "agent",
        "observation": "run",
        "content": "x",
        "tool_call_metadata": {**BOTH, "tool_call_id": "k2"},
    },
    {"id": 7, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
    {"id": 8, "source": "agent", "action": "finish", "args": {"thought": "Done.", "final_thought": "ok"}},
]
ROW: dict[str, Any] = {
    "instance_id": "owner__thing-7",
    "instruction": "Mend a.",
    "test_result": {"git_patch": "diff --git a/a b/a\n"},
    "metadata": {"agent_class": "CodeActAgent", "llm_config": {"model": "m", "temperature": 0.0}},
    "history": EVENTS,
    "metrics": {"accumulated_cost": 0.5},
    "error": None,
}


def test_openhands_events(tmp_path) -> None:
    run = read(tmp_path, ROW, "output.jsonl")
    assert (run.harness, run.instance, run.model, run.temperature) == ("OpenHands 0.40.0", "owner__thing-7", "m", 0.0)
    assert (run.submission, run.exit_status, run.stats) == ("diff --git a/a b/a\n", "finish", {"accumulated_cost": 0.5})
    assert run.is_benchmark
    assert [(one.role, one.text) for one in run.messages] == [
        ("system", "You fix."),
        ("user", "Mend a."),
        ("assistant", 'I look.\n\nexecute_bash {"command": "ls"}\n\nexecute_bash {"command":"cat a"}'),
        ("tool", "a\n"),
        ("tool", "x"),
        ("assistant", 'Done.\n\nfinish {"final_thought": "ok"}'),
    ]
    assert [one.answers for one in run.messages[3:5]] == ["k1", "k2"]
    assert run.not_carried == ("the model's own text of 1 turns (their actions are shown)",)


def test_old_pairs_of_events_get_their_instruction(tmp_path) -> None:
    pair = [
        {"source": "agent", "action": "run", "args": {"command": "ls", "thought": "Look."}},
        {"source": "agent", "observation": "run", "content": "a"},
    ]
    run = read(tmp_path, {**ROW, "history": [pair]}, "output.jsonl")
    assert [(one.role, one.text) for one in run.messages] == [
        ("user", "Mend a."),
        ("assistant", 'Look.\n\nrun {"command": "ls"}'),
        ("user", "a"),
    ]


def test_openhands_sdk_events(tmp_path) -> None:
    def action(name: str, call: str, given: str, **more: Any) -> dict[str, Any]:
        stored = {"id": call, "name": name, "arguments": given, "origin": "completion"}
        about = {"source": "agent", "tool_name": name, "tool_call_id": call, "tool_call": stored}
        return {"kind": "ActionEvent", "llm_response_id": "r", "thought": [], **about, **more}

    said = [{"type": "text", "text": "Two looks."}]
    history = [
        {
            "kind": "SystemPromptEvent",
            "source": "agent",
            "system_prompt": {"type": "text", "text": "You fix."},
            "tools": [{"function": {"name": "terminal"}}],
        },
        {
            "kind": "MessageEvent",
            "source": "user",
            "llm_message": {"role": "user", "content": [{"type": "text", "text": "Mend."}]},
            "extended_content": [{"type": "text", "text": " More."}],
        },
        action("terminal", "c1", '{"command":"ls"}', thought=said, reasoning_content="Hm."),
        action("terminal", "c2", '{"command":"pwd"}'),
        {
            "kind": "ObservationEvent",
            "source": "environment",
            "tool_name": "terminal",
            "tool_call_id": "c1",
            "observation": {"kind": "TerminalObservation", "content": [{"type": "text", "text": "a"}]},
        },
        {"kind": "AgentErrorEvent", "source": "agent", "tool_name": "terminal", "tool_call_id": "c2", "error": "No."},
        {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "x"},
        {"kind": "Condensation", "source": "environment"},
        action("finish", "c3", '{"message":"ok"}', llm_response_id="r2"),
    ]
    run = read(tmp_path, {**ROW, "history": history, "metadata": {"llm": {"model": "n"}}}, "output.jsonl")
    assert [(one.role, one.text) for one in run.messages] == [
        ("system", "You fix."),
        ("user", "Mend. More."),
        (
            "assistant",
            '<think>\nHm.\n</think>\n\nTwo looks.\n\nterminal {"command":"ls"}\n\nterminal {"command":"pwd"}',
        ),
        ("tool", "a"),
        ("tool", "No."),
        ("assistant", 'finish {"message":"ok"}'),
    ]
    assert (run.model, run.exit_status, len(run.tools)) == ("n", "finish", 1)
    assert run.not_carried == ("what the model saw after 1 condensations of its history",)


def test_a_line_that_is_broken_is_named_and_the_others_read(tmp_path) -> None:
    path = tmp_path / "output.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "history": []}) + "\n\n" + json.dumps(ROW)[:50])
    good, empty, torn = read_runs(path)
    assert isinstance(good, ForeignRun)
    assert isinstance(empty, ForeignError)
    assert "output.jsonl, line 2: no message of the role assistant" in str(empty)
    assert "output.jsonl, line 4, column 50: no valid JSON" in str(torn)
    with pytest.raises(ForeignError, match="holds 3 runs"):
        read_foreign(path)
    path.write_text("\n")
    with pytest.raises(ForeignError, match="holds no run"):
        read_foreign(path)


# --- ATIF -------------------------------------------------------------------------------------------------------------


ATIF: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m", "tool_definitions": [{"type": "function"}]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You fix."},
        {
            "step_id": 2,
            "source": "user",
            "message": [{"type": "text", "text": "Mend."}, {"type": "image", "source": {}}],
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"keystrokes": "ls\n"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.py"}, {"content": "New screen"}]},
            "metrics": {"prompt_tokens": 5, "logprobs": [-0.1], "completion_token_ids": [7]},
        },
        {"step_id": 4, "source": "agent", "message": "Done.", "is_copied_context": True},
    ],
    "final_metrics": {"total_cost_usd": 0.1, "extra": {}},
}


def test_harbors_format(tmp_path) -> None:
    run = read(tmp_path, ATIF, "django__django-11138__AbC12/agent/trajectory.json")
    assert (run.harness, run.model, run.instance) == ("terminus-2 2.0 (ATIF-v1.7)", "m", "django__django-11138")
    assert run.is_benchmark
    assert run.messages == (
        ForeignMessage("system", "You fix."),
        ForeignMessage("user", "Mend."),
        ForeignMessage("assistant", "I look.", "Hm.", (ForeignCall("bash", '{"keystrokes": "ls\\n"}', "c1"),)),
        ForeignMessage("tool", "a.py", answers="c1", name="bash"),
        ForeignMessage("user", "New screen"),
        ForeignMessage("assistant", "Done."),
    )
    assert run.not_carried == (
        "1 × image, which is no text",
        "token ids or log-probabilities of 1 steps",
        "the marks of 1 steps as copied from an earlier trajectory",
    )
    assert run.stats == {"total_cost_usd": 0.1}
    assert read(tmp_path, ATIF, "hello-world__AbC12/agent/trajectory.json").instance == "hello-world"


def test_what_of_it_cannot_be_read_is_refused(tmp_path) -> None:
    with pytest.raises(ForeignError, match=r"ATIF-v2.0; of ATIF version 1 is read"):
        read(tmp_path, {**ATIF, "schema_version": "ATIF-v2.0"})
    with pytest.raises(ForeignError, match=r"step 1 has the source 'robot'"):
        read(tmp_path, {**ATIF, "steps": [{"source": "robot", "message": "x"}]})


# --- others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([{"instance_id": "a", "model_patch": "x"}], "SWE-bench predictions"),
        ({"org": "a", "repo": "b", "number": 1, "fix_patch": "x"}, "Multi-SWE-bench predictions"),
        ({"conversations": [{"from": "human", "value": "x"}]}, "ShareGPT"),
        ({"type": "user", "sessionId": "s", "message": {}}, "Claude Code"),
        ({"type": "session_meta", "payload": {}}, "Codex"),
        ({"version": 2, "eval": {}, "samples": []}, "Inspect"),
        ([{"id": 0, "source": "agent", "action": "run", "args": {}}], "OpenHands' events alone"),
        ({"version": 2, "width": 80, "height": 24}, "terminal recording"),
    ],
)
def test_formats_that_are_not_read_are_named(tmp_path, value: object, name: str) -> None:
    with pytest.raises(ForeignError, match=name):
        read(tmp_path, value)


def test_half_a_surrogate_pair_is_refused_by_its_place(tmp_path) -> None:
    with pytest.raises(ForeignError, match="message 2 holds half of a surrogate pair at character 1"):
        read(tmp_path, [*START, {"role": "assistant", "content": "a\ud800"}])
