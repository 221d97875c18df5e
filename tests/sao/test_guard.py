"""No training command takes tasks of an evaluation set, by id, by repository and commit, or by text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from data.contamination import EvaluationTask
from data.log import TrajectoryLog
from data.trajectory import Trajectory
from sao.config import load_config
from sao.errors import exit_code_and_text
from sao.guard import refuse_evaluation_run
from sao.paths import UserError
from sao.rundir import open_run
from tests.sao.command import sao
from tests.shared_data import need_shared
from tests.trainer.tiny import build
from trainer.packing import UntrainableError, action_axis, untrainable_reason
from trainer.replay import Recorded, ReplayError, replay_exact, replay_offpolicy
from trainer.value_pretrain import ValueDataError, usable


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAO_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def real_row() -> dict:
    return json.loads(need_shared("swe", "verified_mini50_v5.jsonl").read_text().splitlines()[0])


def rows(folder: Path, *given: dict) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return path


@pytest.mark.parametrize(
    "changes", [{}, {"instance_id": "mine-1", "problem_statement": "?"}, {"instance_id": "mine-1", "repo": "me/mine"}]
)
def test_sao_train_refuses_benchmark_rows_before_there_is_a_folder(runs: Path, tmp_path: Path, changes: dict) -> None:
    path = rows(tmp_path, {**real_row(), **changes})
    said = sao("train", "--set", "tasks.name=swe", "--set", f"tasks.path={path}", "--plain", code=2)
    assert "swebench-verified" in said
    assert not runs.exists()


def test_a_plan_is_refused_like_its_run_and_rolling_out_says_what_it_is(runs: Path, tmp_path: Path) -> None:
    path = rows(tmp_path, {**real_row(), "instance_id": "mine-1", "repo": "me/mine", "base_commit": "0" * 40})
    chosen = ("--set", "tasks.name=swe", "--set", f"tasks.path={path}", "--dry-run", "--plain")
    assert "swebench-verified" in sao("train", *chosen, code=2)
    assert "1 of 1 tasks belong to an evaluation set" in " ".join(sao("rollout", *chosen).split())


@pytest.mark.parametrize("suite", ["aime2025", "beyondaime", "imo-answerbench"])
def test_sao_train_refuses_maths_benchmarks(runs: Path, tmp_path: Path, suite: str) -> None:
    file = need_shared("math", {"imo-answerbench": "imo_answerbench_v2.jsonl"}.get(suite, f"{suite}.jsonl"))
    maths = ("--set", "agent.preset=maths", "--plain")
    said = sao("train", "--set", f"tasks.name={suite}", "--set", f"tasks.path={file}", *maths, code=2)
    assert suite in said
    row = json.loads(file.read_text().splitlines()[0])
    own = rows(tmp_path, {"problem": f"{row['problem']}\n\nAnswer in a box.", "answer": "1"})
    said = sao("train", "--set", "tasks.name=maths", "--set", f"tasks.path={own}", *maths, code=2)
    assert suite in said
    assert not runs.exists()


def as_task(name: str) -> Trajectory:
    one = build([("p", 3), ("a", 4)], reward=1.0, seed=1)
    return dataclasses.replace(one, identity=dataclasses.replace(one.identity, task_id=name))


@pytest.mark.parametrize("name", ["django__django-11099", "aime2025/aime25-001", "imo-bench-algebra-001"])
def test_no_part_of_the_trainer_takes_a_native_trajectory_of_a_benchmark(name: str) -> None:
    one = as_task(name)
    assert "evaluation set" in str(untrainable_reason(one))
    with pytest.raises(UntrainableError, match="evaluation set"):
        action_axis([one])
    with pytest.raises(ValueDataError, match="evaluation set"):
        usable([one])
    with pytest.raises(ReplayError, match="evaluation set"):
        replay_offpolicy([one], None, 1, limit=1.0)  # type: ignore[arg-type]
    import torch

    recorded = [Recorded(0, (one.identity.episode_id,), "s", torch.get_num_threads())]
    with pytest.raises(ReplayError, match="evaluation set"):
        replay_exact(recorded, {one.identity.episode_id: one}, None, "s")  # type: ignore[arg-type]


def run_of(runs: Path, path: Path, name: str = "swe") -> Path:
    """A run folder made on these rows, with one trajectory under a name that tells nothing."""
    config = load_config("demo", [f"tasks.name={name}", f"tasks.path={json.dumps(str(path))}"])
    with_log = open_run(config, "r")
    with TrajectoryLog(with_log.log).open() as log:
        log.append(as_task("mine-1"))
    with_log.close()
    return with_log.path


def test_a_run_on_renamed_benchmark_rows_is_refused_by_its_own_tasks(runs: Path, tmp_path: Path) -> None:
    path = rows(tmp_path, {**real_row(), "instance_id": "mine-1"})
    folder = run_of(runs, path)
    with pytest.raises(EvaluationTask, match="swebench-verified"):
        refuse_evaluation_run(folder)
    assert "swebench-verified" in sao("pretrain-value", "r", "--out", tmp_path / "critic", "--plain", code=2)
    assert "swebench-verified" in sao("replay", "r", "--train", "exact", "--plain", code=2)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read again") as caught:
        refuse_evaluation_run(folder)
    assert exit_code_and_text(caught.value) is not None


def test_a_run_on_generated_tasks_passes(runs: Path) -> None:
    opened = open_run(load_config("demo"), "d")
    opened.close()
    refuse_evaluation_run(opened.path)
