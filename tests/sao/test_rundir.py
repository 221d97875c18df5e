"""Run folders: one writer, the same plan continues, another plan is refused, nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sao.config import load_config
from sao.paths import UserError
from sao.run_kinds import FROZEN, LOGGED, TRAINED, TRAINING
from sao.rundir import find_run, open_run, read_config, shown_name

pytestmark = pytest.mark.usefixtures("runs")


def test_an_unfinished_run_of_the_same_plan_is_continued_and_a_finished_one_is_not(runs: Path) -> None:
    config = load_config("demo")
    first = open_run(config)
    first.close()
    again = open_run(config)
    assert (again.path, again.resumed) == (runs / "demo-001", True)
    again.write_summary({"episodes": 1})
    again.close()
    third = open_run(config)
    assert (third.path.name, third.resumed) == ("demo-002", False)
    third.close()


def test_fresh_and_another_plan_make_a_new_folder(runs: Path) -> None:
    open_run(load_config("demo")).close()
    fresh = open_run(load_config("demo"), fresh=True)
    other = open_run(load_config("demo", ["rollout.seed=9"]))
    assert [fresh.path.name, other.path.name] == ["demo-002", "demo-003"]


def test_a_folder_in_use_is_left_alone(runs: Path) -> None:
    config = load_config("demo")
    holder = open_run(config)
    second = open_run(config)
    assert (holder.path.name, second.path.name) == ("demo-001", "demo-002")
    with pytest.raises(UserError, match="in use by another process"):
        open_run(config, "demo-001")


def test_the_lock_dies_with_its_holder(runs: Path) -> None:
    code = (
        "import os, signal; from sao.config import load_config; from sao.rundir import open_run; "
        "run = open_run(load_config('demo')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert open_run(load_config("demo")).resumed


def test_another_plan_is_refused_by_name_and_says_what_differs(runs: Path) -> None:
    open_run(load_config("demo"), "mine").close()
    before = (runs / "mine" / "config.toml").read_bytes()
    with pytest.raises(UserError, match=r"rollout.seed was 0, is 4"):
        open_run(load_config("demo", ["rollout.seed=4"]), "mine")
    assert (runs / "mine" / "config.toml").read_bytes() == before


def test_a_plan_may_grow(runs: Path) -> None:
    open_run(load_config("demo", ["rollout.episodes=4"]), "mine").close()
    grown = open_run(load_config("demo", ["rollout.episodes=400"]), "mine")
    assert grown.resumed
    assert read_config(grown.path).rollout.episodes == 400


def test_finding_runs(runs: Path) -> None:
    with pytest.raises(UserError, match="`sao rollout` makes one"):
        find_run("latest")
    open_run(load_config("demo"), "mine").close()
    with pytest.raises(UserError, match="No run with trajectories"):
        find_run("latest")  # it began, and has no log yet
    (runs / "mine" / "log").mkdir()
    assert find_run("latest") == find_run("mine") == runs / "mine"
    with pytest.raises(UserError, match=r"config\.toml"):
        find_run("yours")


def test_latest_is_the_newest_run_of_the_kind_that_is_asked_for(runs: Path) -> None:
    holds = {
        "trained": ("log", "weights/v000001", "final"),
        "training": ("log", "weights/v000001"),
        "frozen": ("log",),
        "scored": ("log",),
        "begun": (),
    }
    for age, (name, folders) in enumerate(holds.items()):
        open_run(load_config("demo"), name).close()
        for folder in folders:
            (runs / name / folder).mkdir(parents=True)
        os.utime(runs / name / "config.toml", (age, age))
    (runs / "trained" / "final" / "config.json").write_text("{}")
    (runs / "scored" / "scores.json").write_text("{}")
    found = {kind.what: find_run("latest", kind).name for kind in (LOGGED, FROZEN, TRAINING, TRAINED)}
    assert list(found.values()) == ["scored", "frozen", "training", "trained"]


def test_a_damaged_run_configuration_is_named(runs: Path) -> None:
    open_run(load_config("demo"), "mine").close()
    (runs / "mine" / "config.toml").write_text("name = ")
    with pytest.raises(UserError, match=r"mine/config\.toml is not valid TOML"):
        open_run(load_config("demo"), "mine")


def test_a_folder_is_found_by_the_name_that_is_shown(runs: Path, tmp_path: Path) -> None:
    for run in (None, "named", str(runs / "named" / "frozen"), str(tmp_path / "elsewhere")):
        folder = open_run(load_config("demo"), run)
        folder.close()
        assert find_run(shown_name(folder.path)).resolve() == folder.path.resolve()
    assert shown_name(runs / "named" / "frozen") == "named/frozen"
