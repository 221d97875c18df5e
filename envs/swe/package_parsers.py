"""Logs of runners that no parser of ours knows (sympy's own, other languages), read by SWE-bench's package.

The package's own reading of a log decides (`grading.get_logs_eval`: marks, parser, exit code of the test command), so
training and evaluation read it alike. It runs in a process that can be ended (envs.aside), never in the driver's: its
patterns are not linear. No witness knows these runners: docs/swebench.md, "Other runners", says what is paid.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data.task import TaskError
from envs.swe.parsers import PARSERS, Outcome, ParsedLog

_JAVASCRIPT = (
    *("bpmn_js", "calypso", "carbon", "chart_js", "eslint", "grommet", "highlightjs", "immutable_js", "jest"),
    *("jest_json", "karma", "lighthouse", "marked", "next", "openlayers", "p5js", "prismjs", "quarto_cli"),
    *("react_pdf", "tap", "vitest"),
)
_OTHERS = (
    *("sympy", "doctest", "googletest", "jq", "micropython_test", "redis", "gotest", "ant", "gradle_custom", "maven"),
    *("phpunit", "cucumber", "jekyll", "minitest", "rspec_transformed_json", "ruby_unit", "cargo"),
)
NAMES = frozenset(f"parse_log_{name}" for name in (*_JAVASCRIPT, *_OTHERS))
"""The package's parsers for which there is none of ours; a test holds them against its registry."""
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"


def check_parser(name: str) -> None:
    """Raises TaskError where nothing on this machine reads such logs."""
    if name in PARSERS:
        return
    if name not in NAMES:
        raise TaskError(
            f"log_parser {name!r} is not known here. Known: {', '.join(PARSERS)}; and by SWE-bench's package: "
            f"{', '.join(sorted(NAMES))}"
        )
    if importlib.util.find_spec("swebench") is None:
        raise TaskError(
            f"log_parser {name!r} is SWE-bench's own, and the package swebench is not installed: "
            "EXTRAS=dev,eval scripts/install.sh"
        )


@dataclass(frozen=True)
class Asked:
    """What the package wants to know of a row to read its log."""

    log_parser: str
    instance_id: str
    version: str
    eval_type: str
    """pass_and_fail, or fail_only: runners that name failures alone."""
    names: tuple[str, ...]
    """The judged tests."""


def read_log(asked: Asked, log: str) -> ParsedLog:
    """Seconds of import in the first call of a process, and no limit on the work: call it aside.

    Of a fail_only row a judged test that is not named passed, if the log shows that the suite ran. What the parser
    cannot read yields no passes, with the reason."""
    from envs.swe.swebench_modules import load

    grading, _ = load("grading", "log_parsers")
    if _START not in log:  # rows of one's own, whose script is the test command alone
        log = f"{_START}\n{log}\n{_END}\n"
    spec = _Spec(asked.log_parser, asked.instance_id, asked.version)
    with tempfile.TemporaryDirectory(prefix="log-") as folder:
        path = Path(folder) / "test_output.txt"
        path.write_text(log, encoding="utf-8", errors="backslashreplace", newline="")
        try:
            statuses, ran = grading.get_logs_eval(spec, str(path))
        except Exception as error:  # whatever a parser stumbles over: what was printed, or a column of the row
            why = f"SWE-bench's {asked.log_parser} cannot read the log: {type(error).__name__}: {error}"
            return ParsedLog(suspicious=[why[:500]])
    parsed = ParsedLog({str(name): Outcome(str(what)) for name, what in statuses.items()})
    if not ran:
        parsed.suspicious.append("the log shows no test run, or its exit code says otherwise than its lines")
    elif asked.eval_type == "fail_only":
        for name in asked.names:
            parsed.outcomes.setdefault(name, Outcome.PASSED)
    return parsed


def judged_of(names: Collection[str], parsed: ParsedLog) -> dict[str, Outcome]:
    """By exact name: these runners' names hold blanks, and no set cuts them."""
    return {name: parsed.outcomes[name] for name in names if name in parsed.outcomes}


@dataclass(frozen=True)
class _Spec:
    """The part of the package's TestSpec that its parsers look at."""

    log_parser: str
    instance_id: str
    version: str
