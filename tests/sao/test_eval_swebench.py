"""`sao eval swebench` and `sao eval compare` as a user starts them, and SIGKILL in the middle of a grading run."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data.journal import Journal
from tests.eval.small import GOLD, diff, small_task
from tests.sao.command import whole_sao as sao

pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")
ROOT = Path(__file__).parents[2]
GRADE = ("eval", "swebench", "grade", "--sandbox", "embedded", "--plain", "--rows", "rows.jsonl")


def write_rows(path: Path, count: int) -> list[str]:
    names = [f"small__k-{number}" for number in range(count)]
    path.write_text("".join(json.dumps(dict(small_task(name).row)) + "\n" for name in names))
    return names


def write_predictions(path: Path, patches: dict[str, str | None]) -> None:
    lines = [{"instance_id": name, "model_name_or_path": "m", "model_patch": patch} for name, patch in patches.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_gold_nothing_and_the_comparison(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = write_rows(tmp_path / "rows.jsonl", 3)
    code, said = sao(*GRADE, "-p", "gold", "--run", "gold", capsys=capsys)
    assert code == 0, said
    assert "3/3 = 100.0 % [43.9, 100.0] 95 % Wilson" in said
    unchecked = "not validated: a FAIL_TO_PASS test that passes without any change counts as solved"
    assert unchecked in said
    assert all(unchecked in (runs / "gold" / name).read_text() for name in ("report.html", "report.md"))
    assert json.loads((runs / "gold" / "report.json").read_text())["not_validated_ids"] == names
    assert (runs / "gold" / "report.html").read_text().count(">whole file</a>") == 9  # patch, log, script of each
    write_predictions(tmp_path / "p.jsonl", {names[0]: GOLD, names[1]: "", "other__set-1": GOLD})
    code, said = sao(*GRADE, "-p", "p.jsonl", "--run", "mine", capsys=capsys)
    assert code == 0, said
    assert "predictions outside of this task set, not graded: 1 (other__set-1)" in said
    assert "unresolved 0 empty patch 1 error 0 incomplete 1" in said
    report = json.loads((runs / "mine" / "report.json").read_text())
    assert (report["resolved_ids"], report["empty_patch_ids"], report["incomplete_ids"]) == tuple([n] for n in names)
    assert report["harness"].startswith("swebench 5.")
    assert json.loads((runs / "mine" / "m.mine.json").read_text()) == report
    table = (runs / "mine" / "report.md").read_text()
    assert "| resolved | 1/3 = 33.3 %" in table
    for name, verdict in zip(names, ("resolved", "empty", "incomplete"), strict=True):
        assert f"| {name} | {verdict} |" in table
    (tmp_path / "gold").mkdir()  # a folder of that name here is not what is meant
    files = ("--json", "diff.json", "--markdown", "diff.md")
    code, said = sao("eval", "compare", "gold", "mine", *files, capsys=capsys)
    assert code == 0, said
    assert "mean over 2 shared instances 100.0 % 50.0 %" in said
    assert "McNemar exact p = 1" in said
    made = json.loads((tmp_path / "diff.json").read_text())
    assert (made["lost"], made["gained"], made["left_out"]) == ([names[1]], [], [names[2]])
    assert made["pairs"] == {names[0]: [1, 1], names[1]: [1, 0]}
    assert f"{names[1]} 1 0" in said
    table = (tmp_path / "diff.md").read_text()
    assert f"| {names[0]} | 1 | 1 |  |" in table
    assert f"| {names[1]} | 1 | 0 | first |" in table


def test_validate_writes_a_skip_list(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, free, wrong = (small_task(f"small__v-{number}") for number in range(3))
    free = dataclasses.replace(free, row={**free.row, "FAIL_TO_PASS": ["test_old (small.Tests)"], "PASS_TO_PASS": []})
    wrong = dataclasses.replace(wrong, row={**wrong.row, "patch": GOLD.replace("a + b", "a * b")})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(dict(task.row)) + "\n" for task in (good, free, wrong)))
    words = ("eval", "swebench", "validate", *GRADE[3:], "--repeats", "2")
    code, said = sao(*words, "--run", "check", capsys=capsys)
    assert code == 1
    assert "1 of 3 rows usable" in said
    skip = json.loads((runs / "check" / "skip.json").read_text())
    assert skip["skip"]["small__v-1"] == ["doing nothing is resolved"]
    assert skip["skip"]["small__v-2"][0].startswith("the reference fix is unresolved")
    assert (skip["usable"], skip["checked"], skip["need_network"], skip["not_checked"]) == (1, 3, [], {})
    code, said = sao(*GRADE, "-p", "gold", "--skip", str(runs / "check" / "skip.json"), capsys=capsys)
    assert code == 0
    assert "1/1 = 100.0 %" in said
    assert "all 1 checked by validate" in said


def test_an_agent_run_is_graded_in_one_go(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo policy on rows of another world: it solves none, and every verdict is the official one."""
    names = write_rows(tmp_path / "rows.jsonl", 2)
    words = ("eval", "swebench", "--sandbox", "embedded", "--plain", "--rows", "rows.jsonl", "--run", "agent")
    words = (*words, "--config", "demo")
    code, said = sao(*words, capsys=capsys)
    assert code == 0, said
    assert "2/2 episodes" in said
    assert "preset demo@" in said
    assert "6 turns" in said
    predictions = [json.loads(line) for line in (runs / "agent" / "predictions.jsonl").read_text().splitlines()]
    assert [each["instance_id"] for each in predictions] == names
    report = json.loads((runs / "agent" / "grading" / "report.json").read_text())
    assert (report["total_instances"], report["coverage"], report["incomplete_ids"]) == (2, 1.0, [])
    assert report["model"].startswith("demo-")
    assert (report["agent"]["max_turns"], report["agent"]["temperature"]) == (6, 1.0)
    assert report["agent"]["prompt_sha256"][:12] in (runs / "agent" / "grading" / "report.html").read_text()
    page = (runs / "agent" / "grading" / "report.html").read_text()
    assert page.count('<details class="one"') == 2
    assert page.count("turn 1 action") == 2  # the agent's own turns
    events = [each.event for each in Journal(runs / "agent" / "grading" / "journal.jsonl").read()]
    assert Counter(events) == {"grading": 2, "graded": 2}  # once, as the episodes ended
    code, said = sao(*words, capsys=capsys)
    assert code == 0, said
    assert "2/2 graded (2 stood already)" in said


AGENT = ("eval", "swebench", "--plain", "--rows", "real.jsonl")


def refusals(tmp_path: Path) -> list[tuple[tuple[str, ...], str]]:
    write_rows(tmp_path / "rows.jsonl", 1)
    new = ("eval_script", "log_parser", "eval_type")
    old = {key: value for key, value in small_task().row.items() if key not in new}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    (tmp_path / "twice.jsonl").write_text("".join(
        json.dumps({"instance_id": "small__k-0", "model_patch": patch}) + "\n" for patch in "ab"))  # fmt: skip
    real = {key: value for key, value in {**small_task().row, "base_commit": "0" * 40}.items() if key != "files"}
    (tmp_path / "real.jsonl").write_text(json.dumps(real) + "\n")
    (tmp_path / "other.jsonl").write_text(json.dumps({"instance_id": "x__x-1", "model_patch": "p"}) + "\n")
    return [
        ((*GRADE, "-p", "twice.jsonl"), "two different predictions for small__k-0"),
        ((*GRADE, "-p", "none.jsonl"), "no predictions file at none.jsonl"),
        ((*GRADE, "-p", "other.jsonl"), "no prediction is for an instance of this task set"),
        ((*GRADE, "-p", "gold", "-i", "nobody"), "the task set has no instance nobody"),
        ((*GRADE, "-p", "gold", "--skip", "rows.jsonl"), "is no skip list"),
        ((*GRADE[:-1], "old.jsonl", "-p", "gold"), "is in the old format"),
        (("eval", "swebench", "grade", "-p", "gold", "--split", "mine"), "no split 'mine'"),
        ((*AGENT,), "the demo policy cannot work on small__one-1"),
        ((*AGENT, "--model", "copy", "--set", "agent.preset=demo"), "agent.preset demo is for generated tasks"),
        (("eval", "compare", "rows.jsonl", "old.jsonl"), "is no report"),
        (("eval", "compare", "nothing", "rows.jsonl"), "no results at"),
    ]


def test_refusals_are_one_paragraph(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in refusals(tmp_path):
        code, said = sao(*words, capsys=capsys)
        assert (code, "Traceback" in said) == (2, False), said
        assert text in said, said


# -- kill -9 ----------------------------------------------------------------------------------------------------------


def start(folder: Path, run: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "SAO_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)}
    words = (*GRADE, "-p", "p.jsonl", "--run", run, "--workers", "2")
    command = [sys.executable, "-c", "from sao.cli import main; main()", *words]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def story(folder: Path) -> tuple[Counter[str], list[str]]:
    """Verdicts by instance, and instances that were begun again after their verdict stood."""
    graded: Counter[str] = Counter()
    again = []
    for entry in Journal(folder / "journal.jsonl").read():
        name = entry.fields["instance_id"]
        if entry.event == "graded":
            graded[name] += 1
        elif graded[name]:
            again.append(name)
    return graded, again


def comparable(path: Path, run: str) -> Any:
    return json.loads((path / "report.json").read_text().replace(run, "RUN"))


@pytest.mark.slow
def test_kill_9_in_the_middle_and_start_again(tmp_path: Path) -> None:
    """None graded twice, none lost, the same report as a run that nobody killed."""
    names = write_rows(tmp_path / "rows.jsonl", 10)
    slow = diff({"calc.py": b"import time\ntime.sleep(0.4)\n\n\ndef add(a, b):\n    return a + b\n"}).decode()
    kinds = [slow, slow, slow.replace("a + b", "a * b"), "", GOLD.replace("a - b", "else")]
    write_predictions(tmp_path / "p.jsonl", {name: kinds[number % 5] for number, name in enumerate(names)})
    draw = random.Random(9)
    folder, kills = tmp_path / "runs" / "killed", 0

    def done() -> int:
        return len(list(folder.rglob("outcome.json")))

    for _ in range(20):
        process = start(tmp_path, "killed")
        enough, end = done() + 2, time.monotonic() + 60
        while process.poll() is None and done() < enough and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(draw.random() * 0.5)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0, process.communicate()[1].decode()
        break
    assert kills >= 2
    assert (folder / "report.json").is_file()
    graded, again = story(folder)
    assert again == []
    assert max(graded.values()) == 1
    assert len(list(folder.rglob("outcome.json"))) == 10
    whole = start(tmp_path, "whole")
    assert whole.wait(120) == 0
    assert comparable(folder, "killed") == comparable(tmp_path / "runs" / "whole", "whole")
    report = comparable(folder, "killed")
    ends = ("resolved_instances", "unresolved_instances", "empty_patch_instances", "error_instances")
    assert [report[name] for name in ends] == [4, 2, 2, 2]
