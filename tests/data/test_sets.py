"""Known sets, each from small rows in its own columns, written here; nothing is fetched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from data.chats import SETS as CHAT_SETS
from data.chats import load_chats
from data.contamination import EvaluationTask, refuse_evaluation_tasks
from data.loaders import load_tasks
from data.sets import known_sets
from data.sets.swe import test_files as files_of
from data.task import TaskError
from envs.maths.environment import read_maths_row
from envs.swe.parsers import find_parser
from envs.swe.row import read_row
from tests.shared_data import need_shared

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BENCH = {
    "instance_id": "shop__Cart-12",
    "repo": "shop/cart",
    "base_commit": COMMIT,
    "problem_statement": "total() subtracts",
    "hints_text": "",
    "patch": "diff --git a/cart.py b/cart.py\n",
    "test_patch": "--- a/tests/test_cart.py\n+++ b/tests/test_cart.py\n@@ -1 +1 @@\n",
    "created_at": "2024-01-01",
    "version": "1.0",
    "FAIL_TO_PASS": ["tests/test_cart.py::test_total"],
    "PASS_TO_PASS": ["tests/test_cart.py::test_empty", "tests/test_shop.py::TestShop::test_open[a b]"],
}
ASKED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 6 times 7?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "row", "image", "command"),
    [
        ("swe-gym", {}, "xingyaoww/sweb.eval.x86_64.shop_s_cart-12:latest", "python -m pytest -rA"),
        (
            "swe-rebench",
            {"install_config": {"test_cmd": "pytest --no-header -rA", "log_parser": "parse_log_pytest"}},
            "swerebench/sweb.eval.x86_64.shop_1776_cart-12:latest",
            "pytest --no-header -rA",
        ),
        (
            "swe-rebench",
            {"docker_image": "own/image:1", "install_config": json.dumps({"test_cmd": ["make", "pytest -rA"]})},
            "own/image:1",
            "make && pytest -rA",
        ),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_swe_sets_become_rows_that_the_environment_takes(
    tmp_path: Path, name: str, row: dict[str, Any], image: str, command: str, as_text: bool
) -> None:
    given = {**BENCH, **row}
    if as_text:
        given |= {column: json.dumps(given[column]) for column in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    [task] = load_tasks(name, "train", jsonl(tmp_path / "rows.jsonl", given))
    ready = read_row(task)
    find_parser(ready.log_parser)
    assert (task.task_id, ready.image, ready.base_commit) == ("shop__Cart-12", image, COMMIT)
    assert ready.fail_to_pass == ("tests/test_cart.py::test_total",)
    assert ready.eval_script.splitlines() == [
        "#!/bin/bash",
        "source /opt/miniconda3/bin/activate testbed",
        "cd /testbed",
        f"{command}{' --color=no -p no:cacheprovider' if name == 'swe-gym' else ''} "
        "tests/test_cart.py tests/test_shop.py",
    ]


def test_an_eval_script_of_the_row_is_kept(tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "rows.jsonl", {**BENCH, "eval_script": "pytest -rA one.py\n"})
    assert load_tasks("swe-gym", "train", rows)[0].row["eval_script"] == "pytest -rA one.py\n"


def test_files_come_from_the_ids_else_from_the_test_patch() -> None:
    assert files_of(["a/test_x.py::T::t", "a/test_x.py::u", "b.py::v"], "") == ["a/test_x.py", "b.py"]
    assert files_of(["test_total"], BENCH["test_patch"]) == ["tests/test_cart.py"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("swe-gym", {**BENCH, "FAIL_TO_PASS": "tests/test_cart.py"}, "swe-gym, row 1: column FAIL_TO_PASS is no JSON"),
        ("swe-gym", {**BENCH, "repo": None}, "swe-gym, row 1: no text in column repo"),
        ("swe-rebench", {**BENCH, "install_config": "[]"}, ""),
        ("dapo-math-17k", {"prompt": []}, "column prompt is an empty list"),
        ("deepscaler", {"problem": "?"}, "no text in column answer (it has problem)"),
        ("aime2025", {"question": "?"}, "no text in column answer_raw or answer or Short Answer or label"),
    ],
)
def test_complaints_name_set_row_and_column(tmp_path: Path, name: str, row: dict[str, Any], words: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", row)
    if not words:  # an empty configuration: the defaults
        assert load_tasks(name, "test", path)
        return
    with pytest.raises(TaskError) as caught:
        load_tasks(name, "train", path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "row", "problem", "answer", "grading"),
    [
        (
            "dapo-math-17k",
            {"prompt": ASKED, "solution": "42", "extra_info": {"index": "x1"}},
            "What is 6 times 7?",
            "42",
            "integer",
        ),
        (
            "dapo-math-17k",
            {"prompt": [{"role": "user", "content": ASKED}], "reward_model": {"ground_truth": "42"}},
            "What is 6 times 7?",
            "42",
            "integer",
        ),
        ("dapo-math-17k", {"prompt": "Bare?", "solution": "-1"}, "Bare?", "-1", "integer"),
        ("deepscaler", {"problem": "P", "answer": "42", "solution": "s"}, "P", "42", "integer"),
        ("deepscaler", {"problem": "P", "answer": r"\frac{1}{2}", "solution": "s"}, "P", r"\frac{1}{2}", "symbolic"),
        ("aime2025", {"problem_idx": 3, "problem": "P", "answer": 70}, "P", "70", "integer"),
        ("beyondaime", {"problem": "P", "answer": 70}, "P", "70", "integer"),
        (
            "imo-answerbench",
            {"Problem ID": "imo-bench-a-1", "Problem": "P", "Short Answer": "$2^n$", "Category": "Algebra"},
            "P",
            "$2^n$",
            "symbolic",
        ),
    ],
)
def test_maths_sets_become_rows_that_the_environment_takes(
    tmp_path: Path, name: str, row: dict[str, Any], problem: str, answer: str, grading: str
) -> None:
    [task] = load_tasks(name, "train", jsonl(tmp_path / "rows.jsonl", row))
    ready = read_maths_row(task)
    assert (ready.problem, ready.gold, ready.grading) == (problem, answer, grading)
    if known_sets()[name].evaluation:
        assert task.task_id.startswith(f"{name}/")
        with pytest.raises(EvaluationTask):
            refuse_evaluation_tasks([task])


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_the_formats_of_files(tmp_path: Path, kind: str) -> None:
    from datasets import Dataset

    rows = Dataset.from_list([{"problem": "P", "answer": "0042", "solution": ""}] * 1)
    path = tmp_path / f"rows.{kind}"
    {"csv": rows.to_csv, "parquet": rows.to_parquet, "json": lambda file: rows.to_json(file, lines=False)}[kind](path)
    assert load_tasks("deepscaler", "train", path)[0].row["answer"] == "0042"


def test_rows_of_our_own(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "mine.jsonl", {"id": "a", "problem": "P", "answer": 1}, {"problem": "Q", "answer": "x^2"})
    tasks = load_tasks("maths", "train", path)
    assert [task.task_id for task in tasks] == ["a", "maths (mine.jsonl)-000001"]
    assert {task.kind for task in tasks} == {"maths"}
    with pytest.raises(TaskError, match="give their file"):
        load_tasks("maths", "train")


def test_known_names_refuse_unknown_splits_without_asking_the_hub() -> None:
    for one in known_sets().values():
        with pytest.raises(TaskError, match=one.hub):
            load_tasks(one.name, "no-such-split")
        assert one.licence
        assert one.rows


def test_the_real_benchmark_files_load_by_their_suite() -> None:
    for name, file, count in (
        ("aime2025", "aime2025.jsonl", 30),
        ("beyondaime", "beyondaime.jsonl", 100),
        ("imo-answerbench", "imo_answerbench_v2.jsonl", 400),
    ):
        tasks = load_tasks(name, "test", need_shared("math", file))
        assert len(tasks) == count
        for task in tasks:
            read_maths_row(task)


TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]


def test_chats(tmp_path: Path) -> None:
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    path = jsonl(tmp_path / "chats.jsonl", {"messages": TALK, "source": "x"}, {"messages": system, "source": "y"})
    assert load_chats("smoltalk", "train", path) == [TALK, system]
    assert load_chats("mine", "train", path, limit=1) == [TALK]
    assert CHAT_SETS["smoltalk"].hub == "HuggingFaceTB/smoltalk"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no list of messages"),
        ("hello", "no JSON"),
        ([{"role": "user"}], "message 0 is no object"),
        (TALK[:1], "expected user and assistant in turn"),
        ([*TALK, TALK[1]], "expected user and assistant in turn"),
        ([{"role": "system", "content": "s"}], "expected user and assistant in turn"),
        ([TALK[0], {"role": "assistant", "content": "a\ud800"}], "half of a surrogate pair at character 1"),
    ],
)
def test_conversations_that_cannot_be_taught_are_named(tmp_path: Path, messages: Any, words: str) -> None:
    path = jsonl(tmp_path / "chats.jsonl", {"messages": TALK}, {"messages": messages})
    with pytest.raises(TaskError, match="row 2") as caught:
        load_chats("mine", "train", path)
    assert words in str(caught.value)


def test_unknown_chat_sets_and_splits() -> None:
    with pytest.raises(TaskError, match="choose smoltalk"):
        load_chats("talktalk", "train")
    with pytest.raises(TaskError, match="it has train, test"):
        load_chats("smoltalk", "validation")


def test_a_conversation_about_a_benchmark_problem_is_refused(tmp_path: Path) -> None:
    row = json.loads(need_shared("math", "aime2025.jsonl").read_text().splitlines()[1])
    talk = [{"role": "user", "content": f"Help me: {row['problem']}"}, TALK[1]]
    with pytest.raises(EvaluationTask, match="aime2025"):
        load_chats("mine", "train", jsonl(tmp_path / "chats.jsonl", {"messages": talk}))


def test_reasoning_gym_is_generated_alike_and_apart() -> None:
    pytest.importorskip("reasoning_gym", reason="REASONING-GYM NOT CHECKED: not installed (EXTRAS=dev,gym)")
    for name in ("reasoning-gym:chain_sum", "reasoning-gym:gcd"):
        tasks = load_tasks(name, "train", limit=20)
        assert tasks == load_tasks(name, "train", limit=30)[:20]
        assert {task.row["problem"] for task in tasks} != {
            task.row["problem"] for task in load_tasks(name, "heldout", limit=20)
        }
        assert {read_maths_row(task).grading for task in tasks} == {"integer"}
    short = load_tasks("reasoning-gym:chain_sum?min_terms=2&max_terms=2&max_digits=1", "train", limit=20)
    assert all(re.search(r": \d [+-] \d =$", task.row["problem"]) for task in short)
    (lenient,) = load_tasks("reasoning-gym:chain_sum?grading=last_integer", "train", limit=1)
    assert read_maths_row(lenient).grading == "last_integer"
    mixed = load_tasks("reasoning-gym:decimal_chain_sum", "train", limit=3)
    assert {read_maths_row(task).grading for task in mixed} == {"symbolic"}
    (asked,) = load_tasks("reasoning-gym:gcd?grading=symbolic", "train", limit=1)
    assert read_maths_row(asked).grading == "symbolic"
    for words, arguments in (
        ("write reasoning-gym:<task>", ("reasoning-gym:nothing", "train")),
        ("it has train, heldout", ("reasoning-gym:gcd", "test")),
        ("is no number", ("reasoning-gym:spell_backward", "train")),
        ("refuses its options.* it has min_terms", ("reasoning-gym:chain_sum?terms=2", "train")),
        ("refuses its options.* must be >=", ("reasoning-gym:chain_sum?max_terms=0", "train")),
        ("option=value", ("reasoning-gym:chain_sum?max_terms", "train")),
        ("refuses its options", ("reasoning-gym:chain_sum?max_terms=many", "train")),
        ("leave tasks.path empty", ("reasoning-gym:gcd", "train", "x.jsonl")),
        ("no integer, so grading=last_integer", ("reasoning-gym:decimal_chain_sum?grading=last_integer", "train")),
        ("no integer, so grading=integer", ("reasoning-gym:decimal_chain_sum?grading=integer", "train")),
        ("grading is 'word'", ("reasoning-gym:gcd?grading=word", "train")),
    ):
        with pytest.raises(TaskError, match=words):
            load_tasks(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None, limit=3)
