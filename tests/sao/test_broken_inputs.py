"""Broken inputs through the commands: one clear refusal, no traceback, nothing written.

A draw of `benchmarks.broken_inputs`, whose whole table `python -m benchmarks.fuzz_inputs --count 0` goes through: each
kind meets some command here, and each command some kinds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from pathlib import Path

import pytest

from agent.engines.model_files import ModelRefused, check_model_folder
from benchmarks.broken_inputs import FILES, MODEL_VALUES, ODD, RAW, SAFETENSORS, Case, all_cases
from benchmarks.fuzz_inputs import tried
from data import reading
from data.loaders import load_tasks
from data.reading import InputError, read_bytes, user_path
from data.task import TaskError
from eval.errors import EvalError
from eval.maths.judge import JudgeBook, Judgement, Question, load_prompt
from sao.errors import LONGEST, exit_code_and_text
from sao.paths import DEMO_POLICY, UserError
from sao.train_files import read_lines
from trainer.metrics import MetricsError, read_metrics

CASES = all_cases()


def drawn() -> list[Case]:
    """Of each command that reads a file three kinds, so that every kind comes; some settings and fields beside them."""
    made = []
    order = [*RAW, *ODD]
    random.Random(5).shuffle(order)
    kinds = itertools.cycle(order)
    by_title = {one.title: one for one in CASES}
    for command in dict.fromkeys(one.command for one in files()):
        made += [by_title[f"{command} · {next(kinds)}"] for _ in range(3)]
    rest = [one for one in CASES if ": " in one.kind and one.command in QUICK and not one.kind.startswith("path:")]
    return [*made, *random.Random(5).sample(rest, 25)]


QUICK = {"config", "tasks show .jsonl", "eval compare", "eval swebench grade", "import .json"}
SLOW = ("sft", "train", "serve", "eval tasks", "eval aime", "tasks pack", "tasks show .csv", "tasks show .parquet")
"""They load more than the test is worth, or start programs; the benchmark has them."""


def files() -> list[Case]:
    kinds = {*RAW, *ODD}
    return [one for one in CASES if one.command in FILES and one.kind in kinds and not one.command.startswith(SLOW)]


@pytest.mark.parametrize("case", drawn(), ids=lambda case: case.title)
def test_a_broken_input_is_refused_in_words(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAO_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = tried(case, tmp_path)
    assert not result["problem"], result


def test_a_setting_beyond_every_number_is_answered(runs: Path) -> None:
    [case] = [one for one in CASES if one.title == "rollout · tasks.limit: huge"]
    runs.parent.joinpath("here").mkdir()
    result = tried(case, runs.parent / "here")
    assert not result["problem"], result


def test_what_has_no_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe"):
        read_bytes(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a device"):
        read_bytes("/dev/zero")
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(InputError, match="at most"):
        read_bytes(tmp_path / "holes")
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"a" * 1001))
    (tmp_path / "fits.gz").write_bytes(gzip.compress(b"a" * 500) + gzip.compress(b"b" * 500))
    with pytest.raises(InputError, match="unpacks to more"):
        read_bytes(tmp_path / "bomb.gz")
    assert read_bytes(tmp_path / "fits.gz") == b"a" * 500 + b"b" * 500


def test_a_path_that_no_file_can_have_is_an_input_error(tmp_path: Path) -> None:
    for given in ("a\0b", "\ud800"):
        with pytest.raises(InputError, match="is no path"):
            user_path(given, real=True)
    assert user_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")
    (tmp_path / "loop").symlink_to("loop")
    assert user_path(tmp_path / "loop", real=True).name == "loop"


def test_equal_names_of_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("instance_id,repo,repo\na,b,c\n")
    with pytest.raises(TaskError, match="column 'repo' comes twice"):
        load_tasks("", "train", tmp_path / "rows.csv")


@pytest.mark.parametrize("kind", SAFETENSORS)
def test_a_broken_header_of_weights_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS[kind])
    (tmp_path / "config.json").write_bytes((DEMO_POLICY / "config.json").read_bytes())
    with pytest.raises(ModelRefused, match=r"model\.safetensors|config\.json"):
        check_model_folder(tmp_path)


@pytest.mark.parametrize("kind", ["layers huge", "vocabulary huge", "hidden text", "heads list"])
def test_a_configuration_that_no_model_has_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(DEMO_POLICY / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(MODEL_VALUES[kind]))
    with pytest.raises(ModelRefused, match=r"config\.json"):
        check_model_folder(tmp_path)


def test_a_judges_book_of_another_make_is_refused_by_its_line(tmp_path: Path) -> None:
    file, prompt, question = tmp_path / "book.jsonl", load_prompt(), Question("1 + 1?", "2", "two")
    JudgeBook(file, prompt, "m").put(question, Judgement(True, "yes"))
    with file.open("a") as opened:
        opened.write('{"key": "cut o')  # as a kill leaves it
    assert JudgeBook(file, prompt, "m").get(question) == Judgement(True, "yes")
    for line in ("[1]", "{}", '{"key": 3, "correct": true}', '{"key": "a", "correct": "maybe"}', "7"):
        file.write_text(f"\n{line}\n")
        with pytest.raises(EvalError, match="line 2: no judgement of ours"):
            JudgeBook(file, prompt, "m")


def test_lines_of_a_run_that_are_none_are_named(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "a": 2}\n{"step": 2')
    assert read_lines(file) == read_metrics(file) == [{"step": 1, "a": 2}]
    for line in ("[" * 100_000, "7", "\x00"):
        file.write_text(f'{{"step": 1}}\n{line}\n')
        with pytest.raises(InputError, match="line 2"):
            read_lines(file)
        with pytest.raises(MetricsError, match="line 2"):
            read_metrics(file)


def test_a_refusal_is_no_longer_than_one_reads() -> None:
    known = exit_code_and_text(UserError("begins" + "x" * 300_000 + "ends"))
    assert known is not None
    code, text = known
    assert code == 2
    assert len(text) < LONGEST + 60
    assert (text.startswith("begins"), text.endswith("ends")) == (True, True)
