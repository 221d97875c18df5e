"""The guard against training on the test: real rows of every benchmark, however they are dressed up."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from data.contamination import (
    EvaluationTask,
    evaluation_set,
    evaluation_tasks,
    known,
    normal_text,
    refuse_evaluation_tasks,
    training_refusal,
)
from data.task import Task, TaskError
from tests.data.trajectories import episode
from tests.shared_data import need_shared


def lines(*parts: str) -> list[dict]:
    path = need_shared(*parts)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode().splitlines()]


def swe(row: dict) -> Task:
    return Task(row["instance_id"], "swe", "train", row)


def maths(problem: str, name: str = "mine/1") -> Task:
    return Task(name, "maths", "train", {"problem": problem, "answer": "1"})


def found(task: Task) -> str | None:
    return next((name for _, name, _ in evaluation_tasks([task])), None)


def test_texts_are_compared_without_their_dress() -> None:
    plain = normal_text(r"Find the sum of all integer bases $b>9$ for which $17_{b}$ divides.")
    assert plain == "findthesumofallintegerbasesb9forwhich17bdivides"
    for dressed in (
        "FIND the sum of all\n\tinteger bases \\(b > 9\\) for which $17_b$ divides",
        r"Find the sum of all \textbf{integer} bases $\left. b>9 \right.$ for which $\displaystyle 17_{b}$ divides",
        "Ｆind the sum of all integer bases b>９ for which 17_b divides!",
    ):
        assert normal_text(dressed) == plain


def test_the_lists_hold_hashes_and_nothing_else() -> None:
    lists = known()
    assert set(lists.values()) >= {
        "aime2025",
        "beyondaime",
        "imo-answerbench",
        "swebench-verified",
        "swebench-dev",
    }
    assert len(lists) > 2300


def test_a_damaged_or_missing_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no lists"):
        known(tmp_path)
    (tmp_path / "x.txt").write_text("# a list\ndjango__django-1\n")
    with pytest.raises(TaskError, match="is no hash"):
        known(tmp_path)


def test_other_tasks_pass() -> None:
    refuse_evaluation_tasks(
        [
            maths("What is 1 + 1?"),
            Task("pandas-dev__pandas-1", "swe", "train", {"repo": "pandas-dev/pandas", "base_commit": "a" * 40}),
        ]
    )
    assert training_refusal(episode(1)) == ""


@pytest.mark.parametrize("suite", ["aime2025", "beyondaime", "imo-answerbench"])
def test_ids_of_our_own_evaluation_runs_are_known(suite: str) -> None:
    assert evaluation_set(f"{suite}/anything") == (suite, "id")
    assert evaluation_set(suite) is None
    one = episode(1)
    mine = dataclasses.replace(one, identity=dataclasses.replace(one.identity, task_id=f"{suite}/007"))
    assert suite in training_refusal(mine)


def test_every_real_swe_row_is_known_by_each_of_its_identities() -> None:
    for row in lines("swe", "verified_mini50.jsonl"):
        assert found(swe(row)) == "swebench-verified"
        other = {**row, "instance_id": "mine-1", "problem_statement": "Something else."}
        assert found(swe(other)) == "swebench-verified"  # by repository and commit
        moved = {**row, "instance_id": "mine-1", "base_commit": "0" * 40}
        assert found(swe(moved)) == "swebench-verified"  # by its text
        moved["problem_statement"] = row["problem_statement"].upper().replace("\n", "\r\n  ")
        assert found(swe(moved)) == "swebench-verified"
        moved["problem_statement"] = "Something else."
        assert found(swe(moved)) == "swebench-verified"  # by its patches
        assert found(swe({**moved, "patch": "", "test_patch": ""})) is None


def test_every_verified_instance_is_known_by_id() -> None:
    names = [row["instance_id"] for row in lines("swe", "verified500_preds_gemini3pro.jsonl.gz")]
    assert len(names) == 500
    for name in names:
        assert evaluation_set(name) == ("swebench-verified", "id")
        assert evaluation_set(name.upper()) == ("swebench-verified", "id")


@pytest.mark.parametrize(
    ("file", "suite", "count"),
    [
        ("aime2025.jsonl", "aime2025", 30),
        ("beyondaime.jsonl", "beyondaime", 100),
        ("imo_answerbench_v2.jsonl", "imo-answerbench", 400),
    ],
)
def test_every_real_maths_problem_is_known_bare_dressed_and_with_an_instruction(
    file: str, suite: str, count: int
) -> None:
    rows = lines("math", file)
    assert len(rows) == count
    for row in rows:
        problem = row["problem"]
        assert found(maths(problem)) == suite
        assert found(maths(problem.replace("$", " ").replace(" ", "  ").upper())) == suite
        assert evaluation_set(row["id"]) == (suite, "id")
        assert found(maths(f"{problem}\n\nPut your final answer within \\boxed{{}}.")) == suite
        assert found(maths(f"Solve this problem.\n\n{problem}\n \nThink first.")) == suite
        if len(normal_text(problem)) >= 120:
            assert found(maths(f"{problem} Put your final answer within \\boxed{{}}.")) == suite
            assert found(maths(f"Solve this problem: {problem}")) == suite


def test_the_files_with_prompts_and_the_first_version_are_known_too() -> None:
    for file, suite in (("aime2025.prompted.orig.jsonl", "aime2025"), ("beyondaime.prompted.orig.jsonl", "beyondaime")):
        short = [row for row in lines("math", file) if found(maths(row["prompt"])) != suite]
        assert short == []
    with need_shared("math", "imo_answerbench_v1.orig.csv").open(newline="", encoding="utf-8") as rows:
        assert {found(maths(row["Problem"])) for row in csv.DictReader(rows)} == {"imo-answerbench"}


def test_another_problem_with_the_usual_words_passes() -> None:
    ending = r"can be expressed as $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    assert found(maths(f"Two dice of 30 sides are thrown. The probability that they agree {ending}")) is None
    assert found(maths("Find the largest prime factor of 2025.\n\nPut your final answer within \\boxed{}.")) is None


def test_the_refusal_names_task_set_and_reason() -> None:
    row = lines("swe", "verified_mini50.jsonl")[0]
    with pytest.raises(EvaluationTask, match=r"2 of the tasks .*\(swebench-verified, by its id\)"):
        refuse_evaluation_tasks([swe(row), maths("What is 1 + 1?"), swe({**row, "instance_id": "other-1"})])


def test_a_native_log_of_a_benchmark_row_is_refused() -> None:
    row = lines("swe", "verified_mini50.jsonl")[0]
    one = episode(1)
    mine = dataclasses.replace(one, identity=dataclasses.replace(one.identity, task_id=row["instance_id"]))
    assert "swebench-verified" in training_refusal(mine)


def test_problems_that_only_a_trajectory_holds_are_known_too() -> None:
    """pylint__6528 is none of the 50 rows at hand: its text is known from what an agent was told."""
    with gzip.open(need_shared("trajectories", "pylint-dev__pylint-6528.traj.json.gz"), "rt", encoding="utf-8") as file:
        prompt = json.load(file)["messages"][1]["content"]
    told = prompt if isinstance(prompt, str) else prompt[0]["text"]
    problem = told.partition("description:\n")[2].partition("\n</pr_description>")[0]
    assert len(problem) > 200
    assert evaluation_set("renamed", "swe", {"problem_statement": problem.upper()}) == ("swebench-verified", "problem")


def test_a_row_in_disguise_is_still_known() -> None:
    """Another id, a fork's address, no commit but the image's name, words around the issue, a patch alone."""
    row = lines("swe", "verified_mini50.jsonl")[0]
    repo, commit, issue = row["repo"], row["base_commit"], row["problem_statement"]
    image = f"swebench/sweb.eval.x86_64.{row['instance_id'].replace('__', '_1776_')}:latest"
    disguises: dict[str, dict] = {
        "address": {"repo": f"https://github.com/{repo.upper()}.git/", "base_commit": commit},
        "ssh": {"repo": f"git@github.com:{repo}.git", "base_commit": commit},
        "fork": {"repo": "me/fork", "base_commit": commit},
        "image": {"repo": "me/fork", "base_commit": "HEAD", "image": image},
        "sentence": {"problem_statement": "Please mend this bug. " + issue},
        "line": {"problem_statement": f"Here is an issue:\n{issue}\nThank you.\n"},
        "paragraph": {"problem_statement": f"Here is an issue.\n\n{issue}\n\nWrite a patch."},
        "gold": {"patch": row["patch"]},
        "tests": {"test_patch": row["test_patch"]},
    }
    unseen = [name for name, columns in disguises.items() if not found(Task("my-1", "swe", "train", columns))]
    assert unseen == []
    stranger = {"repo": "me/fork", "base_commit": "a" * 40, "image": "me/sweb.eval.x86_64.me_1776_mine-1:latest"}
    stranger |= {"problem_statement": "My own bug.\n\nIt is odd.", "patch": "+x\n", "test_patch": "+y\n"}
    assert found(Task("my-1", "swe", "train", stranger)) is None
