"""Trajectory files of other agents: small ones of every shape, broken ones, and the 31 real ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from data.foreign import ALWAYS_LACKS, ForeignError, read_foreign
from tests.shared_data import need_shared

MESSAGES = [
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "total() is wrong."},
    {"role": "assistant", "content": "```bash\nls\n```"},
    {"role": "user", "content": "a.py \u2028"},
]
MINI = {
    "trajectory_format": "mini-swe-agent-1",
    "instance_id": "django__django-11138",
    "messages": MESSAGES,
    "info": {
        "exit_status": "Submitted",
        "submission": "diff --git a b\r\n",
        "mini_version": "1.15.0",
        "model_stats": {"api_calls": 3, "instance_cost": 0.5},
        "config": {"model": {"model_name": "m", "model_kwargs": {"temperature": 0.0}}},
    },
}
CALL = {"function": {"name": "edit", "arguments": '{ "text": "a\\nb" }'}, "id": "x", "type": "function"}
SWE = {
    "environment": "main",
    "trajectory": [],
    "history": [
        {"role": "system", "content": "s", "message_type": "system_prompt"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "Edit.", "tool_calls": [CALL]},
        {"role": "tool", "content": "ok", "tool_call_ids": ["x"]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "submit", "arguments": {}}}]},
    ],
    "info": {"exit_status": "submitted", "submission": None},
    "replay_config": json.dumps(
        {"agent": {"name": "pydicom__pydicom-1458", "model": {"name": "gpt-4o", "temperature": 1}}}
    ),
}


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_mini_swe_agent(tmp_path) -> None:
    run = read_foreign(write(tmp_path / "x.traj.json", MINI))
    assert (run.harness, run.instance, run.exit_status, run.model) == (
        "mini-swe-agent 1.15.0", "django__django-11138", "Submitted", "m",
    )  # fmt: skip
    assert [(message.role, message.text) for message in run.messages] == [(m["role"], m["content"]) for m in MESSAGES]
    assert (run.submission, run.temperature, run.stats["api_calls"]) == ("diff --git a b\r\n", 0.0, 3)
    assert run.is_benchmark
    assert run.lacks == ALWAYS_LACKS
    packed = tmp_path / "x.traj.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(MINI).encode()))
    assert read_foreign(packed) == run


def test_a_bare_list_of_messages_lacks_more(tmp_path) -> None:
    run = read_foreign(write(tmp_path / "my_issue.traj.json", MESSAGES))
    assert (run.harness, run.instance, run.is_benchmark) == ("mini-swe-agent", "my_issue", False)
    assert run.lacks[len(ALWAYS_LACKS) :] == ("exit status", "final diff", "model's name")
    assert "log-probabilities" in run.lacks


def test_swe_agent_with_tool_calls(tmp_path) -> None:
    run = read_foreign(write(tmp_path / "x.traj", SWE))
    assert (run.harness, run.instance, run.model, run.temperature) == (
        "SWE-agent",
        "pydicom__pydicom-1458",
        "gpt-4o",
        1.0,
    )
    texts = [message.text for message in run.messages]
    assert texts == ["s", "u", 'Edit.\n\nedit { "text": "a\\nb" }', "ok", "submit {}"]
    assert "final diff" in run.lacks


def test_contents_in_parts_are_their_text(tmp_path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    run = read_foreign(write(tmp_path / "x.json", [*MESSAGES, {"role": "user", "content": parts}]))
    assert run.messages[-1].text == "ab"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "no valid JSON"),
        (b"\x1f\x8bgarbage", "cannot be read"),
        (b"3", "holds: int"),
        (b'{"a": 1, "b": 2}', "SWE-agent .`history`.*holds: a, b"),
        (b"[]", "no message of the role assistant"),
        (b'[{"role": "user", "content": "x"}]', "no message of the role assistant"),
        (b'[{"role": "assistant", "content": "x"}]', "the prompt is missing"),
        (b'[{"content": "x"}]', "message 0 has no role"),
        (b'["x"]', "message 0 has no role"),
        (b'[{"role": "user", "content": 5}]', "content of message 0 is int"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_none_are_refused_by_name(tmp_path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.traj"
    path.write_bytes(content)
    with pytest.raises(ForeignError, match=f"broken.traj.*{words}"):
        read_foreign(path)
    with pytest.raises(ForeignError, match="cannot be read"):
        read_foreign(tmp_path / "absent")


def test_all_real_files_are_read() -> None:
    runs = {path.name: read_foreign(path) for path in sorted(need_shared("trajectories").glob("*.traj*"))}
    assert len(runs) == 31
    assert sum(run.is_benchmark for run in runs.values()) == 30
    for name, run in runs.items():
        assert run.messages[0].role == "system"
        assert run.instance.split("__")[-1] in name or not run.is_benchmark
        assert run.submission or not run.is_benchmark
    assert max(len(message.text) for run in runs.values() for message in run.messages) > 868_000
