"""How quickly answers are graded, and what hostile ones cost.

    python -m benchmarks.grading --quick

Ordinary: texts with a box, half graded as integers, half by math-verify in forms other than the reference's, no two
alike (nothing comes from a cache), all asked for at once from one asyncio loop. Hostile: one after the other, each with
an ordinary answer behind it that must be right. The last line is JSON; `hangs` counts answers that took over five
seconds by the clock, broke a worker or spoilt the next one. (An answer gets one second of processor time: on a machine
that is busy with other work that takes longer by the clock; the figures of processor time say what it is without.)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable

import psutil

from data.maths_rows import Grading
from envs.environment import EnvironmentFault
from envs.maths.grading import grade_text
from envs.maths.verify import Comparer

LIMIT_S = 5.0
PROSE = "We look at the cases one after the other and use $a_{n+1} = a_n + \\boxed{?}$ as a plan only.\n" * 20
Pair = tuple[str, str, Grading, bool]

FORMS: list[Callable[[int, int], tuple[str, str]]] = [
    lambda a, b: (rf"$\frac{{{a}}}{{{b}}}$", rf"\dfrac{{{3 * a}}}{{{3 * b}}}"),
    lambda a, b: (rf"${a}\sqrt{{{b}}}+1$", rf"1+{a}\sqrt{{{b}}}"),
    lambda a, b: (f"{a}, {b}", rf"\{{{b}, {a}\}}"),
    lambda a, b: (f"$P(x)={a}x+{b}$", f"P(x)={b}+{a}x"),
    lambda a, b: (f"${a}n-{b}$", f"-{b}+{a} n"),
    lambda a, b: (f"$({a}, {b})$", rf"\left({a}, {b}\right)"),
    lambda a, b: (rf"$2^{{{b}}}+{a}$", rf"{a}+2^{{{b}}}"),
]
"""Reference and right answer, made of two numbers."""
HOSTILE = {
    "tower": "9^{9^{9^{9}}}",
    "factorial": "10^{9}!",
    "power": "2^{10^{10}}",
    "exponential": "e^{10^{10^{10}}}",
    "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "sum": r"\sum_{n=1}^{10^{9}}\frac{1}{n}",
    "integral": r"\int_0^1 e^{e^{x^{x}}} dx",
    "product": r"\prod_{k=1}^{10^{7}}k",
    "polynomial": "(x+y+z+w)^{400}",
    "nested roots": r"\sqrt{" * 500 + "2" + "}" * 500,
    "nested fractions": r"\frac{1}{" * 300 + "2" + "}" * 300,
    "long set": ",".join(map(str, range(800))),
    "megabyte box": "1" * 1_000_000,
    "megabyte of braces": "{" * 1_000_000,
    "balanced megabyte": "{" * 500_000 + "}" * 500_000,
    "unbalanced braces": "}}}}{{{",
    "open groups": "(" * 1500,
    "full-width digits": "７",
    "arabic digits": "٧",
    "superscript digits": "⁷",
    "minus signs": "-" * 3900 + "7",
    "control characters": "\x00\x07\U0010ffff",
    "python": '__import__("os").abort()',
}


def _two(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(2, 10**6) * 2 + 1, rng.randrange(2, 900) * 2


def ordinary(count: int, seed: int = 0) -> list[Pair]:
    """(text, gold, grading, whether it is right); one in four is wrong."""
    rng = random.Random(seed)
    made: list[Pair] = []
    for number in range(count):
        right = number % 4 != 0
        if number % 2:
            gold = str(rng.randrange(10**7))
            answer, grading = (f"{int(gold):,}" if right else str(int(gold) + 1)), Grading.INTEGER
        else:
            (gold, answer), grading = FORMS[number // 2 % len(FORMS)](*_two(rng)), Grading.SYMBOLIC
            answer = answer if right else FORMS[(number // 2 + 1) % len(FORMS)](*_two(rng))[1]
        made.append((f"{PROSE}So the answer is $\\boxed{{{answer}}}$.", gold, grading, right))
    return made


async def measure(count: int, workers: int) -> dict[str, object]:
    comparer = Comparer(workers)
    try:
        began = time.monotonic()
        await comparer.start()
        start_s = time.monotonic() - began
        work = ordinary(count)
        began, spent_before = time.monotonic(), _processor_s()
        grades = await asyncio.gather(*(grade_text(text, gold, kind, comparer) for text, gold, kind, _ in work))
        seconds, processor_s = time.monotonic() - began, _processor_s() - spent_before
        wrong = [pair for pair, grade in zip(work, grades, strict=True) if grade.correct != pair[3]]
        slowest, slowest_processor, hangs, outcomes = 0.0, 0.0, 0, {}
        for number, (name, answer) in enumerate(HOSTILE.items()):
            began, spent_before = time.monotonic(), _processor_s()
            try:
                grade = await grade_text(f"\\boxed{{{answer}}}", "$7^{2}+1$", Grading.SYMBOLIC, comparer)
                outcomes[name] = grade.why
                spent = time.monotonic() - began
                after = await grade_text(rf"\boxed{{\frac{{{4 + 2 * number}}}{{2}}}}", f"{2 + number}.0",
                                         Grading.SYMBOLIC, comparer)  # fmt: skip
                hangs += spent > LIMIT_S or grade.correct or not after.correct
            except EnvironmentFault as fault:
                spent, hangs = time.monotonic() - began, hangs + 1
                outcomes[name] = f"fault: {fault}"
            slowest, slowest_processor = max(slowest, spent), max(slowest_processor, _processor_s() - spent_before)
            print(f"{name:>20}: {outcomes[name]}, {spent:.2f} s")
    finally:
        comparer.close()
    return {
        "answers": count,
        "misjudged": len(wrong),
        "workers": workers,
        "start_s": round(start_s, 2),
        "answers_per_minute": round(60 * count / seconds),
        "processor_ms_per_answer": round(1000 * processor_s / count, 2),
        "slowest_hostile_s": round(slowest, 2),
        "slowest_hostile_processor_s": round(slowest_processor, 2),
        "hangs": hangs,
    }


def _processor_s() -> float:
    """Of this process and its workers, ended ones too: other work on the machine changes it little."""
    used = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            used += spent.user + spent.system + spent.children_user + spent.children_system
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(2_000 if given.quick else 20_000, given.workers))))


if __name__ == "__main__":
    main()
