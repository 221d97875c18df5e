"""The live view and the report of a training run, from files alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from sao.config import Config
from sao.plot import plot, smooth
from sao.train_report import Refresher, page, score_rows, write_report
from sao.train_view import TrainView, duration, share, sparkline

ALARM = {"kind": "approx_kl", "step": 1, "value": 0.3, "limit": 0.1, "text": "x"}


def line(step: int, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "step": step, "reward": 0.25 * step, "explained_variance": None if step == 0 else 0.1, "rejected_share": 0.001,
        "approx_kl": 1e-3, "ess": 0.99, "staleness_mean": 1.0, "staleness_max": 2, "mixed_version_share": 0.0,
        "tokens_per_second": 4000.0, "seconds": {"total": 2.0}, "weights_version": step, "dropped": {"stale": 1},
        "critic_only": step == 0, "alarms": [ALARM] if step == 1 else [],
    }  # fmt: skip
    return {**base, **changes}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(3):
            file.write(json.dumps(line(step)) + "\n")
    progress = {"step": 3, "steps": 10, "phase": "running", "consumed": 96, "planned": 320, "idle_share": 0.25}
    (tmp_path / "trainer_progress.json").write_text(json.dumps(progress))
    (tmp_path / "rollout_progress.json").write_text(json.dumps({"episodes_per_minute": 300, "idle_share": 0.1}))
    score = {"step": 2, "rate": 0.5, "wilson_95": [0.4, 0.6], "passed": 10, "graded": 20, "temperature": 1.0}
    (tmp_path / "heldout.jsonl").write_text(json.dumps(score) + "\n" + '{"torn')
    scores = {"before/heldout": score, "after/heldout": {**score, "rate": 0.8}}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    return tmp_path


def shown(run: Path) -> str:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    view = TrainView(console, run)
    view._reread()
    console.print(view.render())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_shows_what_a_person_looks_for(run: Path) -> None:
    text = shown(run)
    for words in (
        "3/10",
        "0.250 (last 10",
        "0.500 [0.40, 0.60] at step 2",
        "0.10",
        "rejected 0.10 %",
        "mean 1.00, max 2",
    ):
        assert words in text, words
    for words in ("4000 tokens/s", "idle 25 %", "300 episodes/min", "96/320", "approx_kl 0.3"):
        assert words in text, words


def test_an_empty_run_folder_is_no_error(tmp_path: Path) -> None:
    assert "starting" in shown(tmp_path)


def test_sparkline_averages_down() -> None:
    assert sparkline([0.0, None, 1.0]) == "▁█"
    assert len(sparkline([0.5] * 1000, width=40)) <= 40
    assert sparkline([]) == ""


def test_share() -> None:
    assert [share(value) for value in (None, 0.0, 0.0123, 0.5)] == ["—", "0.00 %", "1.23 %", "50 %"]


def test_report_is_one_page_with_curves_and_no_scripts(run: Path) -> None:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    html = write_report(run, console).read_text()
    assert "+0.300" in console.file.getvalue()  # type: ignore[attr-defined]
    assert html.count("<svg") == 6
    assert "<script" not in html
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_the_page_of_a_run_at_its_first_step(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(Config(name="mine").to_toml())
    refresher = Refresher(tmp_path)
    refresher.update(0)
    first = (tmp_path / "report.html").read_text()
    for words in ("<th>model</th><td>demo</td>", "<th>seed</th><td>0</td>", "max_staleness = 4", "0 steps"):
        assert words in first, words
    assert "before" not in first.split("</details>")[1]  # no table where nothing was scored
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(0)) + "\n")
    refresher.update(1)
    second = (tmp_path / "report.html").read_text()
    assert ">training step</text>" in second
    assert ">policy updates</text>" in second
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(0)) + "\n" + json.dumps(line(1)) + "\n")
    refresher.update(2)  # too soon
    assert (tmp_path / "report.html").read_text() == second


def test_time_gone_and_left(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("sao.train_view.time.monotonic", lambda: now)
    view = TrainView(Console(file=io.StringIO(), width=140), run)
    view._reread()
    assert view._time_text() == "0:00 gone"  # three steps of an earlier start: no pace yet
    progress = json.loads((run / "trainer_progress.json").read_text())
    (run / "trainer_progress.json").write_text(json.dumps({**progress, "step": 5}))
    now = 1100.0
    view._reread()
    assert view._time_text() == "1:40 gone, about 4:10 left"  # 2 steps in 100 s, 5 are left
    assert duration(3723) == "1:02:03"


def test_curves_where_there_is_width(run: Path) -> None:
    def curves(width: int) -> int:
        console = Console(file=io.StringIO(), width=width, color_system=None)
        view = TrainView(console, run)
        view._reread()
        console.print(view.render())
        rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        return sum(any(bar in row for bar in "▁▂▃▄▅▆▇█") for row in rows)

    assert curves(70) == 2
    assert curves(140) == 5


def test_a_line_is_said_once_and_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sao.train_view.time.monotonic", lambda: 1000.0)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    view = TrainView(console, run)
    view._reread()
    view._say()
    view._say()
    assert console.file.getvalue().count("step 3/10") == 1  # type: ignore[attr-defined]
    assert console.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]


def test_names_are_escaped() -> None:
    assert "<b>" not in page("<b>", "<b>", [("<b>", "", "", "")], [], [], [])


def test_plot_is_well_formed_also_for_one_point() -> None:
    for points in ([(0.0, 1.0)], [(0.0, 1.0), (1.0, 3.0)]):
        ElementTree.fromstring(plot({"": points}, [(0.5, 2.0)], x="step", y="a < b"))


def test_a_plot_names_its_lines() -> None:
    drawn = plot({"one <b>": [(0.0, 1.0)], "two": [(0.0, 1.0), (1.0, 3.0)]}, x="step", y="reward <1>")
    texts = [element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
    assert texts[-2:] == ["one <b>", "two"]
    assert texts[:2] == ["reward <1>", "step"]
    assert drawn.count("<polyline") == 2


def test_smooth_is_a_running_mean() -> None:
    assert smooth([(0, 0.0), (1, 1.0), (2, 5.0)], 2) == [(0, 0.0), (1, 0.5), (2, 3.0)]


def test_scores_without_an_after() -> None:
    score = {"rate": 0.5, "wilson_95": [0.4, 0.6], "passed": 1, "graded": 2, "temperature": 1.0}
    assert score_rows({"before/unseen": score}) == [("unseen, T = 1", "0.500 [0.400, 0.600] (1/2)", "—", "—")]
