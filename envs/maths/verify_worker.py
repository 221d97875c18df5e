"""The process in which math-verify runs, JSON lines in and out; `envs.maths.verify` starts it as a plain file.

The first process imports once and then only forks: its child answers {"gold", "answer"} lines with {"equal", "why"}.
A child that spends its processor seconds on one answer, or its memory, is ended by the kernel, also inside of one long
multiplication; the first process then says {"died": signal} and forks another, which costs milliseconds, not imports.
Nothing here evaluates text as Python: only math-verify's LaTeX grammar reads it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import resource
import signal
import sys
from types import SimpleNamespace
from typing import Any

JOBS = 2_000
"""Answers of one child; sympy's caches grow."""
MEMORY = 1 << 30
"""Bytes a child may take beyond what the imports took."""
_ENOUGH = 3
WARM = (
    *("3", "-17", "0.25", "1/2", r"\frac{1}{2}", r"-\dfrac{12}{35}", r"2\sqrt{3}+1", r"1+12\sqrt{30}", r"\sqrt[3]{5}"),
    *("2^{10}+1", "4+2^{20}", "3n-2", "-2+3 n", "2(x-1)^2", r"\pi r^2", r"\frac{a+b}{2}", "n!", r"\binom{n}{2}"),
    *("3, 4", r"\{12, 30\}", "(1, 2)", r"\left(12, 30\right)", "(1, 2, 3)", "[0, 1)", r"(-\infty, 2)\cup(3, 4]"),
    *(
        "f(x)=x+1",
        "P(x)=12x+30",
        "P(x)=30+12x",
        "x=5",
        r"x \ge 2",
        "0<x<1",
        r"\lfloor \sqrt{n} \rfloor",
        r"5 \text{ cm}",
    ),
    *(r"\log_2 5", r"\sin 1", r"e^{2}", r"\{1, 2, 3\}", "1, 2, 3, 4"),
)
"""Of every kind some."""
_NO_UNIT = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|left|right|pi|infty|binom|cup|[,;!{} ])|[^A-Za-z\\]")


def load() -> Any:
    """(gold, answer) -> (equal, why)."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # it warns of every call without its own time-outs, which need the main thread

    def config(units: bool) -> Any:
        rules = NormalizationConfig(
            basic_latex=True, units=units, malformed_operators=True, nits=True, boxed="all", equations=False
        )
        return LatexExtractionConfig(boxed_match_priority=0, normalization_config=rules)

    plain, without_units = config(False), config(True)
    choose = prediction_modes()

    def read(text: str, config: Any = plain) -> list[Any]:
        bare = text.strip().removesuffix(".").replace("$", "")
        for mode in choose.modes:
            choose.now = mode
            made = parse(
                f"$\\boxed{{{bare}}}$",
                extraction_config=[config],
                parsing_timeout=None,
                fallback_mode="no_fallback",
                extraction_mode="first_match",
            )
            if made:
                break
        return made

    read_gold = functools.lru_cache(maxsize=4096)(read)

    def compare(gold: str, answer: str) -> tuple[bool, str]:
        wanted = read_gold(gold)
        if not wanted:
            return False, "gold_unreadable"
        given = read(answer)
        if not given:
            return False, "unreadable"
        equal = bool(verify(wanted, given, timeout_seconds=None))  # gold first: the comparison is not symmetric
        has_words = bool(_NO_UNIT.sub("", answer))
        if not equal and has_words and not any(getattr(part, "free_symbols", ()) for part in wanted):
            # "5 cm" for 5. Never for a gold with variables: there the rule takes the m of 2 - 2m for metres.
            equal = bool(verify(wanted, read(answer, without_units), timeout_seconds=None))
        return equal, "equal" if equal else "different"

    return compare


def prediction_modes() -> Any:
    """ANTLR's two stages: the quick prediction (SLL), and the full one (LL) where that reads nothing. What the quick
    one reads, the full one reads the same way; it takes a third of the time."""
    from antlr4.atn import ParserATNSimulator
    from antlr4.atn.PredictionMode import PredictionMode

    choice = SimpleNamespace(modes=(PredictionMode.SLL, PredictionMode.LL), now=PredictionMode.SLL)
    simulator = ParserATNSimulator.ParserATNSimulator
    begin = simulator.__init__

    def begin_in_mode(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.predictionMode = choice.now

    simulator.__init__ = begin_in_mode
    return choice


def serve(compare: Any, cpu_s: float) -> int:
    """Answer requests until the input ends (0) or it was enough (_ENOUGH)."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    for kind, limit in ((resource.RLIMIT_AS, size + MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (limit, limit))
    for _ in range(JOBS):
        line = read_line()
        if not line:
            return 0
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            equal, why = compare(request["gold"], request["answer"])
        except (Exception, RecursionError) as error:
            equal, why = False, f"failed: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, json.dumps({"equal": equal, "why": why}).encode() + b"\n")
    return _ENOUGH


def read_line() -> bytes:
    """One line, no byte more: the next child reads from the same pipe. Empty at the input's end."""
    parts: list[bytes] = []
    while True:
        data = os.read(0, 1 << 16)
        parts.append(data)
        if not data or data.endswith(b"\n"):
            return b"".join(parts)


def main() -> None:
    cpu_s = float(sys.argv[1])
    try:
        compare = load()
        # The grammar learns by reading (and imports more late): what it knows before the fork, every child knows.
        for gold, answer in zip(WARM, (*WARM[1:], WARM[0]), strict=True):
            compare(gold, gold)
            compare(gold, answer)
    except ImportError as error:
        os.write(1, json.dumps({"error": str(error)}).encode() + b"\n")
        return
    os.write(1, json.dumps({"ready": True}).encode() + b"\n")
    while True:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = serve(compare, cpu_s)
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        if status != _ENOUGH:
            os.write(1, json.dumps({"died": -status}).encode() + b"\n")


if __name__ == "__main__":
    main()
