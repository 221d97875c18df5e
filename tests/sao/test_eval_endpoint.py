"""An OpenAI-compatible endpoint as the model, by the command: maths with and without Python, SWE rows, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from data.log import TrajectoryLog
from data.trajectory import ExitReason, SpanKind, Status
from tests.chat_server import ChatServer, call, in_thread, say, turns_of
from tests.sao.command import sao
from tests.sao.test_eval_maths import PROBLEMS, ROOT, finished, problems, short

FAST = ("--set", "rollout.concurrency=4", "--plain")


def asked(body: Mapping[str, Any]) -> int:
    """n of "What is n + n?", -1 for the check's own question."""
    found = [re.search(r"What is (\d+) \+", str(message["content"])) for message in body["messages"]]
    return next((int(one[1]) for one in found if one), -1)


def knows(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Right on even problems, by its seed wrong or without a box on others."""
    n = asked(body)
    if n % 2:
        return say(f"I think \\boxed{{{2 * n + 1}}}" if body["seed"] % 2 else "I do not know.")
    return say(f"It is \\boxed{{{2 * n}}}.", reasoning_content=f"Perhaps \\boxed{{{n}}}.")


def endpoint(server: ChatServer, *more: object) -> tuple[object, ...]:
    return ("--endpoint", server.url, "--endpoint-model", server.model, *more, *FAST)


def test_maths_end_to_end_with_a_key_and_again(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    words = ("eval", "aime2025", "--data", problems(tmp_path), "--protocol", short(tmp_path), "--run", "a")
    with in_thread(ChatServer(knows, key="sk-very-secret")) as server:
        server.faults.extend([429, "ok", 500, "cut", "no_json", "inside"])
        flags = endpoint(server, "--api-key-env", "MY_KEY")
        said = sao(*words, *flags)
    assert "avg@3" in said
    assert "small-2026" in said
    report = json.loads((runs / "a" / "report.json").read_text())
    assert (report["model"], report["engine"], report["coverage"]) == ("endpoint:small", "endpoint", 1.0)
    assert report["avg_at_k"] == pytest.approx(3 / 5)
    assert "template_sha256" not in report
    seen = report["endpoint"]
    assert (seen["asked_for"], seen["answered_by"], seen["turns"]) == (["small"], {"small-2026": 15}, 15)
    assert (seen["finish_reasons"], seen["turns_without_usage"]) == ({"stop": 15}, 0)
    assert seen["completion_tokens"] == sum(
        each["tokens"] for one in report["per_problem"].values() for each in one["samples"]
    )
    done = list(TrajectoryLog(runs / "a" / "log").read())
    assert {one.outcome.status for one in done} == {Status.GRADED}
    assert {span.kind for one in done for span in one.spans} == {SpanKind.PROMPT, SpanKind.QUOTED}
    page = (runs / "a" / "report.html").read_text()
    assert page.count("turn 0 quoted") == 15
    assert "endpoint&#x27;s model" in page
    assert "endpoint's model" in (runs / "a" / "report.md").read_text()
    for file in (runs / "a").rglob("*"):
        assert not file.is_file() or b"sk-very-secret" not in file.read_bytes(), file
    assert "turn 0 quoted" in sao("replay", runs / "a", "--episode", "0", "--plain")

    # Finished: the endpoint need not be there to make the same report again.
    before = (runs / "a" / "report.json").read_bytes()
    sao(*words, *flags)
    assert (runs / "a" / "report.json").read_bytes() == before


def test_with_the_python_tool_and_malformed_calls(runs: Path, tmp_path: Path) -> None:
    def computes(body: Mapping[str, Any]) -> Mapping[str, Any]:
        n, turn, last = asked(body), turns_of(body), body["messages"][-1]
        if n < 0:
            return say("ready")
        if turn == 0:
            return call("python", '{"code": "print(', content="Let me see.")
        if turn == 1:
            assert last["role"] == "user"
            assert "bad_json" in last["content"]
            assert 'python {"code": "print(' in body["messages"][-2]["content"]  # as words: servers refuse it as a call
            return call("calculator", {"x": 1}, number=1)
        if turn == 2:
            assert (last["role"], last["tool_call_id"]) == ("tool", "c1")
            assert "unknown_tool" in last["content"]
            return call("python", {"code": f"print({n} + {n})"}, number=2, reasoning_content="hm")
        assert body["messages"][-2]["reasoning_content"] == "hm"
        found = re.search(r"^(\d+)$", last["content"], re.M)
        return say(f"\\boxed{{{found[1] if found else '?'}}}")

    words = ("eval", "aime2025", "--data", problems(tmp_path, PROBLEMS[:2]), "--python", "--samples", "1", "--run", "p")
    with in_thread(ChatServer(computes)) as server:
        sao(*words, "--sandbox", "embedded", *endpoint(server))
        tools = [tool["function"]["name"] for tool in server.bodies[-1]["tools"]]
        assert server.most_live <= 4
    assert tools == ["python"]
    report = json.loads((runs / "p" / "report.json").read_text())
    assert (report["avg_at_k"], report["mean_calls"], report["python"]) == (1.0, 1.0, True)
    assert report["endpoint"]["finish_reasons"] == {"stop": 2, "tool_calls": 6}
    made = next(TrajectoryLog(runs / "p" / "log").read())
    assert [span.kind for span in made.spans] == [
        SpanKind.PROMPT, *[SpanKind.QUOTED, SpanKind.OBSERVATION] * 3, SpanKind.QUOTED
    ]  # fmt: skip


def test_calls_written_as_text_where_the_endpoint_knows_no_tools(runs: Path, tmp_path: Path) -> None:
    def writes(body: Mapping[str, Any]) -> Mapping[str, Any]:
        n, last = asked(body), body["messages"][-1]
        if turns_of(body) == 0:
            inside = json.dumps({"name": "python", "arguments": {"code": f"print({n} + {n})"}})
            return say(f"<think>hm</think><tool_call>\n{inside}\n</tool_call>")
        return say(f"\\boxed{{{last['content'].split()[0]}}}")

    words = ("eval", "aime2025", "--data", problems(tmp_path, PROBLEMS[:2]), "--python", "--samples", "1", "--run", "t")
    with in_thread(ChatServer(writes)) as server:
        server.knows_tools = False
        refused = sao(*words, "--sandbox", "embedded", *endpoint(server), code=3)
        assert "endpoint.calls=text" in refused
        sao(*words, "--fresh", "--sandbox", "embedded", *endpoint(server, "--set", "endpoint.calls=text"), code=2)
        words = (*words[:-1], "t2")
        sao(*words, "--sandbox", "embedded", *endpoint(server, "--set", "endpoint.calls=text"))
    report = json.loads((runs / "t2" / "report.json").read_text())
    assert (report["avg_at_k"], report["endpoint"]["calls"]) == (1.0, ["text"])


def fixes(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The small repository's bug, in three turns."""
    if body["messages"][-1]["content"] == "Reply with the word ready.":
        return say("ready")
    steps = [
        call("bash", {"command": "cat *.py | head -50"}),
        call("bash", {"command": "sed -i 's/a - b/a + b/' *.py && git diff --stat"}, number=1),
        call("submit", "", number=2),
    ]
    return steps[min(turns_of(body), 2)]


def test_a_swe_row_end_to_end(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")
    from tests.sao.test_eval_swebench import write_rows

    names = write_rows(tmp_path / "rows.jsonl", 2)
    words = ("eval", "swebench", "--sandbox", "embedded", "--rows", tmp_path / "rows.jsonl", "--run", "agent")
    with in_thread(ChatServer(fixes)) as server:
        said = sao(*words, *endpoint(server))  # the preset is a real one without a word
    assert "2/2 = 100.0 %" in said
    assert "preset default@" in said
    report = json.loads((runs / "agent" / "grading" / "report.json").read_text())
    assert (report["resolved_ids"], report["model"]) == (names, "endpoint:small")
    assert report["endpoint"]["finish_reasons"] == {"tool_calls": 6}
    page = (runs / "agent" / "grading" / "report.html").read_text()
    assert page.count("turn 1 quoted") == 2
    predictions = [json.loads(line) for line in (runs / "agent" / "predictions.jsonl").read_text().splitlines()]
    assert all("a + b" in each["model_patch"] for each in predictions)


def test_generated_tasks_by_an_endpoint_and_nothing_trains_on_them(runs: Path, tmp_path: Path) -> None:
    from trainer.packing import UntrainableError, action_axis, untrainable_reason
    from trainer.replay import ReplayError, replay_offpolicy
    from trainer.value_pretrain import ValueDataError, usable

    with in_thread(ChatServer(fixes)) as server:
        settings = ("engine.kind=endpoint", f"endpoint.url={server.url}", "endpoint.model=small")
        flags = [word for one in settings for word in ("--set", one)]
        preset = ("--set", "agent.preset=default", "--sandbox", "embedded")
        sao("rollout", "--episodes", "2", "--run", "m", *preset, *flags, *FAST)
        said = sao("eval", "tasks", "--tasks", "2", "--split", "heldout", *preset, *endpoint(server))
        assert "0/2" in said
        assert "cannot be trained" in sao("train", *flags, "--plain", code=2)
    made = list(TrajectoryLog(runs / "m" / "log").read())
    assert Counter(one.outcome.exit_reason for one in made) == {ExitReason.SUBMITTED: 2}
    for one in made:
        assert "no log-probabilities" in str(untrainable_reason(one))
        with pytest.raises(UntrainableError, match="played by the endpoint's model small"):
            action_axis([one])
        with pytest.raises(ValueDataError, match="played by the endpoint's model"):
            usable([one])
        with pytest.raises(ReplayError, match="played by the endpoint's model"):
            replay_offpolicy([one], learner=None, batch=1, limit=1.0)  # type: ignore[arg-type]
    refused = sao("pretrain-value", runs / "m", "--out", tmp_path / "critic", "--plain", code=2)
    assert "no log-probabilities" in refused
    assert "cannot be played again" in sao("replay", runs / "m", "--execute", "--plain", code=2)
    assert "turn 0 quoted" in sao("replay", runs / "m", "--episode", "0", "--plain")


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "tasks", "--set", "tasks.name=swe", "--set", "tasks.path=/nowhere/rows.jsonl"),
        ("eval", "swebench", "--rows", "/nowhere/rows.jsonl"),
        ("eval", "aime2025", "--data", "/nowhere/problems.jsonl"),
    ],
)
def test_settings_are_looked_at_before_any_task_is(runs: Path, words: tuple[str, ...]) -> None:
    flags = ("--endpoint", "http://127.0.0.1:9/v1", "--endpoint-model", "m", "--api-key-env", "NO_SUCH")
    assert "variable NO_SUCH" in " ".join(sao(*words, *flags, code=2).split())
    assert not list(runs.glob("*"))


def test_refusals_come_before_work_starts(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    words = ("eval", "aime2025", "--data", problems(tmp_path), "--protocol", short(tmp_path), "--samples", "1")
    with in_thread(ChatServer(knows, key="sk-right")) as server:
        said = sao(*words, *endpoint(server, "--api-key-env", "MY_KEY"), code=3)
        assert "status 401" in said
        assert "sk-wrong" not in said
        server.key = ""
        unknown = ("--endpoint", server.url, "--endpoint-model", "other", *FAST)
        assert "does not list the model other; it lists small" in sao(*words, *unknown, code=3)
        away = ("--endpoint", server.url.removesuffix("/v1"), "--endpoint-model", "small", *FAST)
        assert "most end in /v1" in sao(*words, *away, code=3)
        assert not server.bodies or all("messages" in body for body in server.bodies)
        assert "two models" in sao(*words, "--model", "my/model", *endpoint(server), code=2)
        by_setting = ("--set", "engine.kind=endpoint", "--set", f"endpoint.url={server.url}")
        assert "two models" in sao("eval", "tasks", "--run", "latest", *by_setting, code=2)
        assert "NO_KEY" in sao(*words, *endpoint(server, "--api-key-env", "NO_KEY"), code=2)
        assert "go with --endpoint" in sao(*words, "--endpoint-model", "x", code=2)
        assert "--endpoint-model" in sao(*words, "--endpoint", server.url, code=2)
        inside = server.url.replace("http://", "http://me:sk-wrong@")
        said = sao(*words, "--endpoint", inside, "--endpoint-model", "small", code=2)
        assert "environment variable" in said
        assert "sk-wrong" not in said
    assert all(not list(TrajectoryLog(one).read()) for one in runs.rglob("log"))


def test_killed_and_started_again_the_report_is_the_same(tmp_path: Path) -> None:
    data, protocol = problems(tmp_path), short(tmp_path)

    def start(server: ChatServer, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from sao.cli import main; main()", "eval", "aime2025", "--data", str(data)]
        command += ["--protocol", str(protocol), "--samples", "4", "--run", name, "--set", "rollout.concurrency=2"]
        command += ["--plain", "--endpoint", server.url, "--endpoint-model", "small"]
        environment = {**os.environ, "SAO_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)

    log = tmp_path / "runs" / "killed" / "log"
    with in_thread(ChatServer(knows)) as server:
        server.delay_s = 0.2
        killed = start(server, "killed")
        while killed.poll() is None and len(finished(log)) < 3:
            time.sleep(0.02)
        assert killed.poll() is None, "it was over before it could be killed"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = finished(log)
        server.delay_s = 0.0
        assert start(server, "killed").wait() == 0
        asked_for = len(server.bodies)
        assert start(server, "whole").wait() == 0
    assert 3 <= len(before) < 20
    assert asked_for <= 20 + 2 + 2 + 2  # those in flight when it was killed, and the two checks
    done = list(TrajectoryLog(log).read(strict=True))
    assert Counter(one.identity.draw for one in done) == Counter(range(20)), "every draw is graded exactly once"

    def told(name: str) -> object:
        text = (tmp_path / "runs" / name / "report.json").read_text()
        return json.loads(text.replace(f'"{name}-0', '"run-0'))

    assert told("killed") == told("whole")


def test_a_judge_beside_the_rules(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="JUDGE NOT TESTED: math-verify is not installed (EXTRAS=dev,eval)")
    rows = [
        {"id": "words", "problem": "What is 0 +?", "answer": "odd $n$"},
        {"id": "half", "problem": "What is 1 +?", "answer": r"$\frac{1}{2}$"},
    ]
    said = {0: "all odd n", 1: "0.5"}

    def rules(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return say(f"\\boxed{{\\text{{{said[0]}}}}}" if asked(body) == 0 else f"\\boxed{{{said[1]}}}")

    def judges(body: Mapping[str, Any]) -> Mapping[str, Any]:
        text = body["messages"][-1]["content"]
        mark = text.split("VERDICT ")[-1].split(":")[0]
        return say(f"The same set.\nVERDICT {mark}: CORRECT")

    words = ("eval", "imo-answerbench", "--data", problems(tmp_path, rows), "--protocol", short(tmp_path))
    words = (*words, "--samples", "2", "--run", "j")
    with in_thread(ChatServer(rules)) as server, in_thread(ChatServer(judges, model="judge", key="sk-j")) as other:
        wrong = ("--judge-endpoint", other.url, "--judge-model", "judge")
        assert "NO_SUCH" in sao(*words, *endpoint(server), *wrong, "--judge-key-env", "NO_SUCH", code=2)
        assert not (runs / "j").exists()
        assert "status 401" in sao(*words, *endpoint(server), *wrong, code=3)
        assert "need no judge" in sao("eval", "aime2025", "--data", problems(tmp_path), *wrong, code=2)
        problems(tmp_path, rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUDGE_KEY", "sk-j")
            flags = (*endpoint(server), *wrong, "--judge-key-env", "JUDGE_KEY")
            shown = sao(*words, *flags)
            asked_for = len(other.bodies)
            before = (runs / "j" / "report.json").read_bytes()
            sao(*words, *flags)  # nothing is asked twice, nothing changes
            assert len(other.bodies) == asked_for == 2  # the check, and one answer that both samples gave
            assert (runs / "j" / "report.json").read_bytes() == before
    report = json.loads(before)
    assert (report["avg_at_k"], report["judged"]["avg_at_k"]) == (0.5, 1.0)
    assert (report["judge"]["asked"], report["judge"]["coverage"], report["judge"]["turned_right"]) == (2, 1.0, 2)
    assert "by the rules, avg@2" in shown
    assert "judged by judge" in shown
    assert b"sk-j" not in b"".join(file.read_bytes() for file in (runs / "j").rglob("*") if file.is_file())
    assert "judged by judge (prompt v1" in (runs / "j" / "report.html").read_text()
    assert json.loads((runs / "j" / "scores.json").read_text())["scores"]["imo-answerbench/words"] == 0.0  # the rules'
