"""Answers compared by math-verify in killable processes: what counts as equal, what a hostile answer does to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from data.maths_rows import Grading
from envs.environment import EnvironmentFault
from envs.maths import verify
from envs.maths.answer import integer_of
from envs.maths.grading import doubtful_golds, grade_text, integer_golds
from envs.maths.verify import Comparer, Comparison, GraderFault, VerifierMissing
from tests.patience import PATIENCE_S
from tests.shared_data import need_shared

pytest.importorskip("math_verify", reason="MATHS NOT CHECKED: math-verify is not installed (EXTRAS=dev,eval)")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def comparer() -> Iterator[Comparer]:
    made = Comparer(workers=1, cpu_s=0.5)
    yield made
    made.close()


def compare(comparer: Comparer, gold: str, answer: str) -> Comparison:
    return asyncio.run(comparer.compare(gold, answer))


EQUAL = [
    ("3", "3"),
    ("3", "3.0"),
    ("3", r"\frac{6}{2}"),
    ("1012", "1,012"),
    (r"$\frac{1}{2}$", "0.5"),
    (r"$\frac{1}{2}$", r"\dfrac12"),
    (r"$\frac{1}{2}$", "1/2"),
    ("0.5", r"\frac{2}{4}"),
    (r"$\frac{7}{18}", r"\frac{7}{18}"),  # a gold with one dollar
    ("$2^{2024}+1$", "1+2^{2024}"),
    (r"$\sqrt{2}-1$", r"-1+\sqrt 2"),
    (r"$\frac{5+\sqrt{21}}{2}$", r"\frac{5}{2}+\frac{\sqrt{21}}{2}"),
    ("3, 4", "4, 3"),
    ("3, 4", r"\{3, 4\}"),
    ("3, 4", r"3 \text{ and } 4"),
    ("$(5, 3, 7)$", "(5,3,7)"),
    ("f(x)=x+1", "f(x) = 1 + x"),
    (r"$n \ge 2$", r"n \geq 2"),
    ("$2-2m$", "2(1-m)"),
    ("6", r"6 \text{ cm}"),
    (r"$\left\lfloor \log_{2}a\right\rfloor +1$.", r"1+\lfloor \log_2 a \rfloor"),
    (r"$\mathbb{Z}$", r"\mathbb{Z}"),
]
DIFFERENT = [
    ("3", "4"),
    ("3", "3, 4"),
    ("3", "2 or 3"),
    ("3", "-3"),
    (r"$\frac{1}{2}$", "0.51"),
    (r"$\frac{1}{2}$", "2"),
    ("$(5, 3, 7)$", "(3, 5, 7)"),
    ("f(x)=x+1", "f(x)=x-1"),
    (r"$n \ge 2$", "n > 2"),
    ("8", "８"),
    ("8", "the answer is eight"),
    ("$2^{2024}+1$", "2^{2024}"),
    ("$2-2m$", "0"),  # the m is no metre
    ("$6m$", "6"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_the_same_value_in_another_form(comparer: Comparer, gold: str, answer: str) -> None:
    assert compare(comparer, gold, answer) == Comparison(True, "equal")


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_value(comparer: Comparer, gold: str, answer: str) -> None:
    assert not compare(comparer, gold, answer).equal


HOSTILE = [
    "9^{9^{9^{9}}}",
    "10^{9}!",
    "2^{10^{10}}",
    r"\sum_{n=1}^{10^9}\frac{1}{n}",
    "(x+y+z+w)^{400}",
    r"\sqrt{" * 600 + "2" + "}" * 600,
    "{" * 3000,
    "}}}}{{{",
    "(" * 1500,
    "٣",
    "\x00\ud7ff\U0010ffff",
    "\\",
    "$",
    r"\begin{pmatrix}",
    '__import__("os").system("touch /tmp/sao-was-here")',
    r"\text{" + "a" * 3000,
]


def test_hostile_answers_are_never_equal_and_the_next_one_is_answered(comparer: Comparer) -> None:
    for answer in HOSTILE:
        found = compare(comparer, "3", answer)
        assert not found.equal, answer
        assert compare(comparer, "3", rf"\frac{{{3 * len(answer)}}}{{{len(answer)}}}").equal, answer[:40]
    assert not Path("/tmp/sao-was-here").exists()


def test_a_tower_of_powers_costs_its_processor_time_and_a_megabyte_nothing(comparer: Comparer) -> None:
    assert compare(comparer, "4", "9^{9^{9^{9}}}").why == "too_hard"
    began = time.process_time()
    assert compare(comparer, "4", "1" * 1_000_000).why == "too_long"
    assert time.process_time() - began < 1.0


def test_the_loop_goes_on_while_an_answer_is_hard(comparer: Comparer) -> None:
    async def go() -> int:
        ticks = 0
        hard = asyncio.ensure_future(comparer.compare("5", "8^{8^{8^{8}}}"))
        while not hard.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(go()) > 5


def test_many_at_once_from_one_loop_and_from_another_one(comparer: Comparer) -> None:
    async def go() -> list[Comparison]:
        return await asyncio.gather(
            *(comparer.compare(rf"\frac{{{n}}}{{7}}", rf"\frac{{{2 * n}}}{{14}}") for n in range(1, 40))
        )

    for _ in range(2):
        assert all(made.equal for made in asyncio.run(go()))


def test_a_killed_worker_is_a_fault_and_the_next_answer_has_a_new_one() -> None:
    made = Comparer(workers=1)
    try:
        assert compare(made, "3", r"\frac{6}{2}").equal
        worker = made._idle.get()
        assert worker._process is not None
        os.killpg(worker._process.pid, signal.SIGKILL)
        made._idle.put(worker)
        with pytest.raises(GraderFault):
            compare(made, "3", r"\frac{9}{3}")
        assert compare(made, "3", r"\frac{9}{3}").equal
    finally:
        made.close()
        made.close()


def test_a_silent_worker_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Comparer(workers=1)
    try:
        asyncio.run(made.start())
        worker = made._idle.get()
        assert worker._process is not None
        made._idle.put(worker)
        os.killpg(worker._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(verify, "ANSWER_S", 0.3)
        with pytest.raises(GraderFault, match="no answer"):
            compare(made, "3", r"\frac{6}{2}")
    finally:
        made.close()


def test_workers_end_with_the_process_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from envs.maths.verify import shared_comparer\n"
        "async def go():\n"
        "    made = shared_comparer()\n"
        "    await made.compare('3', '6/2')\n"
        "    worker = made._idle.get()\n"
        "    while worker._process is None: worker = made._idle.get()\n"
        "    print(worker._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(go())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(run.stdout)).wait(timeout=PATIENCE_S)


def test_math_verify_missing_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = Comparer(workers=1)
    with pytest.raises(VerifierMissing, match="EXTRAS=dev,eval"):
        compare(made, "3", r"\frac{6}{2}")
    assert compare(made, "3", "03").equal  # integers need no package


TEXTS = [
    (r"It is \boxed{016}.", "16", Grading.INTEGER, True, "equal"),
    (r"It is \boxed{16}, or \boxed{17}.", "16", Grading.INTEGER, False, "different"),
    (r"It is \boxed{\frac{32}{2}}.", "16", Grading.INTEGER, False, "not_an_integer"),
    (r"It is \boxed{\frac{32}{2}}.", "16", Grading.SYMBOLIC, True, "equal"),
    (r"It is \boxed{16", "16", Grading.INTEGER, False, "open_box"),
    ("It is 16.", "16", Grading.SYMBOLIC, False, "no_box"),
    ("", "16", Grading.SYMBOLIC, False, "no_text"),
    (r"\boxed{336}", r"336^\circ", Grading.INTEGER, True, "equal"),
]


@pytest.mark.parametrize(("text", "gold", "grading", "correct", "why"), TEXTS)
def test_texts_are_graded(comparer: Comparer, text: str, gold: str, grading: Grading, correct: bool, why: str) -> None:
    made = asyncio.run(grade_text(text, gold, grading, comparer))
    assert (made.correct, made.why) == (correct, why)


def test_an_unreadable_reference_answer_is_a_fault_not_a_wrong_answer(comparer: Comparer) -> None:
    with pytest.raises(EnvironmentFault, match="no integer"):
        asyncio.run(grade_text(r"\boxed{1}", "one", Grading.INTEGER, comparer))
    with pytest.raises(EnvironmentFault, match="leave this task out"):
        asyncio.run(grade_text(r"\boxed{1}", r"\begin{cases}", Grading.SYMBOLIC, comparer))


def golds(name: str) -> dict[str, str]:
    lines = need_shared("math", name).read_text(encoding="utf-8").splitlines()
    return {row["id"]: row["answer_raw"] for row in map(json.loads, lines)}


@pytest.mark.parametrize(("name", "count"), [("aime2025.jsonl", 30), ("beyondaime.jsonl", 100)])
def test_every_real_integer_gold_is_read_and_right(comparer: Comparer, name: str, count: int) -> None:
    found = golds(name)
    assert len(found) == count
    for key, gold in found.items():
        made = asyncio.run(grade_text(rf"so \boxed{{{gold}}}", gold, Grading.INTEGER, comparer))
        assert made.correct, (key, gold)
        number = integer_of(gold)
        assert number is not None
        wrong = asyncio.run(grade_text(rf"so \boxed{{{number + 1}}}", gold, Grading.INTEGER, comparer))
        assert not wrong.correct


DOUBTFUL = {
    "imo-bench-algebra-031",
    "imo-bench-algebra-038",
    "imo-bench-geometry-078",
    "imo-bench-number_theory-006",
    "imo-bench-number_theory-014",
    "imo-bench-number_theory-029",
    "imo-bench-number_theory-036",
    "imo-bench-number_theory-048",
}


def test_every_real_symbolic_gold_is_right_or_listed(comparer: Comparer) -> None:
    found = golds("imo_answerbench_v2.jsonl")
    assert len(found) == 400
    assert set(asyncio.run(doubtful_golds(found, comparer))) == DOUBTFUL
    assert len(integer_golds(found)) == 228
    for key, gold in found.items():
        if key not in DOUBTFUL:
            assert compare(comparer, gold, gold.replace("$", "")).equal, (key, gold)
