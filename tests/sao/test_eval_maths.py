"""`sao eval aime2025` and its kin end to end with the shipped policy, which solves none: it knows no mathematics."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from data.log import LogMissing, TrajectoryLog
from data.trajectory import Status
from sao.paths import ROOT
from tests.sao.command import sao

PROBLEMS = [{"id": f"p{n}", "problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(5)]
SMALL = ("--set", "model.threads=1", "--set", "rollout.concurrency=8", "--plain")


def problems(folder: Path, rows: list[dict] = PROBLEMS) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def short(folder: Path) -> Path:
    """The paper's protocol, cut to what the shipped policy can do in a second."""
    preset = folder / "short.toml"
    text = (ROOT / "agent" / "presets" / "maths.toml").read_text().replace("131072", "600")
    preset.write_text(text.replace("answer_reserve = 4096", "answer_reserve = 64"))
    protocol = folder / "quick.toml"
    protocol.write_text(
        f'name = "quick"\nagent = "{preset}"\nagent_with_python = "maths-python"\ntemperature = 1.0\nsamples = 3\n'
    )
    return protocol


def test_a_suite_end_to_end_and_again(runs: Path, tmp_path: Path) -> None:
    words = ("eval", "aime2025", "--data", problems(tmp_path), "--protocol", short(tmp_path), "--run", "a", *SMALL)
    said = sao(*words)
    assert "avg@3" in said
    report = json.loads((runs / "a" / "report.json").read_text())
    assert (report["suite"], report["k"], report["samples"], report["coverage"]) == ("aime2025", 3, 15, 1.0)
    assert (report["avg_at_k"], report["pass_at_k"]) == (0.0, {"1": 0.0, "2": 0.0, "3": 0.0})
    assert [run["graded"] for run in report["runs"]] == [5, 5, 5]
    assert set(report["per_problem"]) == {f"aime2025/p{n}" for n in range(5)}
    for fact in ("prompt_sha256", "protocol_sha256", "template_sha256", "data_sha256"):
        assert len(report[fact]) == 64
    assert (report["temperature"], report["top_p"], report["python"], report["max_context"]) == (1.0, 1.0, False, 600)
    assert (report["grader"], report["data"]) == ("exact integers", "problems.jsonl")
    done = list(TrajectoryLog(runs / "a" / "log").read())
    assert {one.identity.sandbox for one in done} == {"none"}  # nothing had to be there to run anything
    text = (runs / "a" / "report.md").read_text()
    assert "avg@3 | 0.0 %" in text
    page = (runs / "a" / "report.html").read_text()
    assert page.count('<details class="one"') == 5
    assert len(re.findall(r"<summary>turn \d+ action", page)) == 15  # every sample's own words
    assert "<td>avg@3<td>0.0 %" in page
    assert json.loads((runs / "a" / "scores.json").read_text())["scores"]["aime2025/p0"] == 0.0

    before = (runs / "a" / "report.json").read_bytes()
    sao(*words)
    assert (runs / "a" / "report.json").read_bytes() == before
    assert len(list(TrajectoryLog(runs / "a" / "log").read())) == len(done)
    assert "mean over 5 shared" in sao("eval", "compare", runs / "a", runs / "a", "--plain")

    # Other problems under the same name are refused; a training command refuses the run's log.
    problems(tmp_path, PROBLEMS[:4])
    assert "other weights, another tokenizer or other" in sao(*words, code=2)
    refused = sao("pretrain-value", runs / "a", "--out", tmp_path / "critic", "--plain", code=2)
    assert "evaluation set" in refused
    assert "evaluation set" in sao("replay", runs / "a", "--train", "offpolicy", "--plain", code=2)


def test_golds_that_do_not_verify_are_listed_and_not_played(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="MATHS NOT CHECKED: math-verify is not installed (EXTRAS=dev,eval)")
    rows = [
        {"id": "good", "problem": "What is half?", "answer": r"$\frac{1}{2}$"},
        {"id": "whole", "problem": "What is one?", "answer": "1"},
        {"id": "bad", "problem": "Which?", "answer": r"$\left\{ (a,b):ab\leq e^{3}\right\}$"},
    ]
    words = ("eval", "imo-answerbench", "--data", problems(tmp_path, rows), "--protocol", short(tmp_path))
    said = sao(*words, "--samples", "2", "--run", "i", *SMALL)
    assert "not scored imo-answerbench/bad" in said
    report = json.loads((runs / "i" / "report.json").read_text())
    assert list(report["not_scored"]) == ["imo-answerbench/bad"]
    assert (report["problems"], report["samples"], report["integer_subset"]["problems"]) == (2, 4, 1)
    assert report["grader"].startswith("math-verify 0.9")


def test_refusals(runs: Path, tmp_path: Path) -> None:
    assert "Known: matharena, paper" in sao("eval", "aime2025", "--data", problems(tmp_path), "--protocol", "x", code=2)
    assert "no task set at" in sao("eval", "aime2025", "--data", tmp_path / "none.jsonl", code=2)
    # The model is looked for before a set that would have to be fetched.
    assert "No model at" in sao("eval", "aime2025", "--data", tmp_path / "none.jsonl", "--model", "nowhere", code=2)
    bad = problems(tmp_path, [{"problem": "P"}])
    assert "no text in column" in sao("eval", "aime2025", "--data", bad, code=2)
    assert not runs.exists()
    assert "BeyondAIME" in sao("eval", "beyondaime", "--help")


def finished(log: Path) -> list[str]:
    with contextlib.suppress(LogMissing):
        return [one.identity.episode_id for one in TrajectoryLog(log).read()]
    return []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_and_started_again_none_is_graded_twice_none_is_lost_and_the_report_is_the_same(tmp_path: Path) -> None:
    data, protocol = problems(tmp_path), short(tmp_path)

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from sao.cli import main; main()", "eval", "aime2025", "--data", str(data)]
        command += ["--protocol", str(protocol), "--samples", "8", "--run", name, "--set", "rollout.concurrency=4"]
        environment = {**os.environ, "SAO_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*command, "--plain"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)

    whole = start("whole")
    killed = start("killed")
    log = tmp_path / "runs" / "killed" / "log"
    while killed.poll() is None and len(finished(log)) < 6:
        time.sleep(0.05)
    assert killed.poll() is None, "it was over before it could be killed"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = finished(log)
    assert 6 <= len(before) < 40
    again = start("killed")
    assert again.wait() == 0
    assert whole.wait() == 0
    done = list(TrajectoryLog(log).read(strict=True))
    graded = Counter(one.identity.draw for one in done if one.outcome.status is Status.GRADED)
    assert graded == Counter(range(40)), "every draw is graded exactly once"
    assert set(before) <= {one.identity.episode_id for one in done}

    def told(name: str) -> object:
        text = (tmp_path / "runs" / name / "report.json").read_text()
        return json.loads(text.replace(f'"{name}-0', '"run-0'))

    assert told("killed") == told("whole")
