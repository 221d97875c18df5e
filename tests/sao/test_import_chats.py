"""Other agents' trajectories as rows for fine-tuning: their texts and calls, never a benchmark's, whole or none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from data.foreign import ForeignRun, read_runs
from sao.import_chats import chat_row
from tests.agent.families import any_renderer
from tests.sao.command import runs, sao  # noqa: F401 - a fixture
from tests.shared_data import need_shared
from trainer.chats import read_chats, write_chat


def run_of(name: str) -> ForeignRun:
    (one,) = read_runs(need_shared("trajectories", name))
    return one


def test_a_trace_with_calls_is_read_as_an_episode(tmp_path: Path) -> None:
    """SWE-agent's function calls: each stands in the model's own format and is answered by its result."""
    foreign = run_of("sweagent_marshmallow-1867.function_calling.traj")
    assert foreign.is_benchmark  # looked at here, never trained on
    row = chat_row(foreign, "x")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (chat,) = read_chats([str(file)], "train", None)
    renderer = any_renderer("qwen3")
    written = write_chat(renderer, chat)
    learned = renderer.tokenizer.decode(written.tokens[written.action].tolist())
    calls = [call for message in foreign.messages for call in message.calls]
    assert learned.count("<tool_call>") == len(calls) > 5
    for message in foreign.messages:
        if message.role == "assistant":
            assert message.content in learned
        if message.role == "tool" and message is not foreign.messages[-1]:
            assert message.content not in learned
            assert message.content in renderer.tokenizer.decode(written.tokens.tolist())


def test_text_actions_alternate_and_what_follows_the_last_turn_is_left_out() -> None:
    foreign = run_of("minisweagent_github_issue.traj.json")
    row = chat_row(foreign, "x")
    roles = [message["role"] for message in row["messages"]]
    assert roles[-1] == "assistant"
    assert [one["content"] for one in row["messages"] if one["role"] == "assistant"] == [
        one.content for one in foreign.messages if one.role == "assistant"
    ]
    first = foreign.messages[1]
    twice = dataclasses.replace(foreign, messages=(foreign.messages[0], first, first, *foreign.messages[2:]))
    assert chat_row(twice, "x")["messages"][1]["content"] == f"{first.content}\n\n{first.content}"


def test_the_command_leaves_benchmarks_out_and_overwrites_nothing(runs: Path, tmp_path: Path) -> None:  # noqa: F811
    good = need_shared("trajectories", "minisweagent_github_issue.traj.json")
    bench = need_shared("trajectories", "sweagent_marshmallow-1867.function_calling.traj")
    out = tmp_path / "theirs.jsonl"
    assert "never" not in sao("import", bench, "--chats", out, "--plain", code=2)
    assert not out.exists()
    said = sao("import", good, bench, "--chats", out, "--plain")
    assert "1 of a benchmark's tasks left out" in said
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["harness"].startswith("mini-swe-agent")
    before = out.read_bytes()
    assert "nothing is overwritten" in sao("import", good, "--chats", out, "--plain", code=2)
    assert out.read_bytes() == before
    assert "end" in sao("import", good, "--chats", tmp_path / "theirs.txt", "--plain", code=2)
    assert not runs.exists()
