"""From a test log to outcomes by test id, distrusting what the tested code may have printed.

Promises: a test counts as passed only if the runner's own lines say so and nothing in the log contradicts it;
a log whose end summary is missing, doubled or disagrees with the lines above yields no passes at all; every such
finding is named in `suspicious`. Code under test that replaces its runner in-process can still lie (the grader flags
patches that try); output alone cannot.

Log formats: unittest's verbose text (Python 3.8 to 3.14) and pytest's `-v` and `-rA` lines (with pytest-xdist too).
Some sets name the same tests otherwise: `unittest_shown` by what stands before ` ... `, `r2e_gym` without the file.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from data.task import TaskError


class Outcome(enum.StrEnum):
    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"
    XFAIL = "XFAIL"
    XPASS = "XPASS"


@dataclass
class ParsedLog:
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    suspicious: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    """Why the log alone does not say it. Without a second source no pass of it counts (`distrust`)."""

    def distrust(self, why: str) -> ParsedLog:
        """No pass of this log counts."""
        self.suspicious.append(why)
        for name, outcome in self.outcomes.items():
            if outcome in (Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED):
                self.outcomes[name] = Outcome.FAILED
        return self


Parser = Callable[[str, int | None, Collection[str]], ParsedLog]
"""Log text, exit code of the test command (None: unknown), test ids that the row names."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def parse_log(
    name: str, log: str, exit_code: int | None, known: Collection[str], *, watched: bool = False
) -> ParsedLog:
    """`log` without colours. `watched`: a second source decides where the log is unsure; without one no pass of such a
    log counts. Raises TaskError for an unknown parser."""
    parsed = find_parser(name)(_ANSI.sub("", log).replace("\r\n", "\n"), exit_code, known)
    if not watched:
        whys, parsed.unsure = parsed.unsure, []
        for why in whys:
            parsed.distrust(why)
    return parsed


# --- unittest -------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"(?P<name>[^\s()]+) \((?P<where>[\w.<>\-]+)\)(?: \.\.\. ?(?P<rest>.*)|(?P<doc>))$")
_SUB_HEADER = re.compile(r"  (?P<name>[^\s()]+) \((?P<where>[\w.<>\-]+)\) [\[(<].*")
_PROBLEM = re.compile(r"(?:FAIL|ERROR|UNEXPECTED SUCCESS): (?P<name>[^\s()]+)(?: \((?P<where>[\w.<>\-]+)\))?")
_RAN = re.compile(r"Ran (?P<count>\d+) tests? in [\d.]+s$", re.MULTILINE)
_RESULT = re.compile(r"(?P<word>OK|FAILED|NO TESTS RAN)(?: \(.*\))?$")
_FIXTURES = ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")
_WORDS = {
    "ok": Outcome.PASSED,
    "FAIL": Outcome.FAILED,
    "ERROR": Outcome.ERROR,
    "unexpected success": Outcome.XPASS,
    "expected failure": Outcome.XFAIL,
}
_SKIPPED = ("skipped '", 'skipped "')
_BAR, _RULE = "=" * 70, "-" * 70


@dataclass
class _Test:
    name: str
    header: str = ""
    """`test_a (pkg.Class)`, as the log has it."""
    shown: str = ""
    """What stands before its verdict where that is another line: its docstring's first."""
    verdicts: list[Outcome] = field(default_factory=list)
    sub_verdicts: list[Outcome] = field(default_factory=list)


def _test_id(name: str, where: str) -> str:
    """From 3.11 on the parentheses hold the whole id, before that module and class only."""
    return where if where.endswith("." + name) else f"{where}.{name}"


def _verdict(line: str) -> Outcome | None:
    """What the line ends with."""
    if line.endswith(("'", '"')):
        return Outcome.SKIPPED if any(-1 < line.find(word) < len(line) - len(word) for word in _SKIPPED) else None
    return next((outcome for word, outcome in _WORDS.items() if line.endswith(word)), None)


def parse_unittest(log: str, exit_code: int | None, known: Collection[str]) -> ParsedLog:
    return _unittest(log, exit_code)[0]


def parse_unittest_shown(log: str, exit_code: int | None, known: Collection[str]) -> ParsedLog:
    """Tests by what the log shows: `test_a (pkg.Class)`, or their docstring. Tests that look alike must all pass."""
    parsed, tests = _unittest(log, exit_code)
    shown: dict[str, Outcome] = {}
    for test in tests:
        for name in {test.header, test.shown} - {""}:
            if shown.get(name, Outcome.PASSED) is Outcome.PASSED:
                shown[name] = parsed.outcomes[test.name]
    return ParsedLog(shown, parsed.suspicious, parsed.unsure)


def _unittest(log: str, exit_code: int | None) -> tuple[ParsedLog, list[_Test]]:
    lines = log.split("\n")
    end = _end_of_verbose(lines)
    tests = _verbose_tests(lines[:end])
    problems, fixture_problems = _problems(lines)
    parsed = ParsedLog()
    seen: Counter[str] = Counter()
    for test in tests:
        outcome, doubt = _settle(test, test.name in problems, fixture_problems)
        seen[test.name] += 1
        before = parsed.outcomes.get(test.name)
        if before is not None and before != outcome:
            doubt, outcome = "the log reports it twice, differently", Outcome.FAILED
        parsed.outcomes[test.name] = outcome
        if doubt:
            parsed.suspicious.append(f"{test.name}: {doubt}")
    for name in problems:
        parsed.outcomes.setdefault(name, Outcome.ERROR)
    return _check_unittest_summary(parsed, log, exit_code, len(tests)), tests


def _end_of_verbose(lines: list[str]) -> int:
    """Where the per-test lines end: at the first problem block, or at the rule before `Ran`."""
    for i, line in enumerate(lines[:-1]):
        if (line == _BAR and _PROBLEM.match(lines[i + 1])) or (line == _RULE and _RAN.match(lines[i + 1])):
            return i
    return len(lines)


def _verbose_tests(lines: list[str]) -> list[_Test]:
    tests: list[_Test] = []
    awaits_docstring = in_sub = False
    for line in lines:
        header = None if awaits_docstring else _HEADER.match(line)
        if header:
            tests.append(_Test(_test_id(header["name"], header["where"]), f"{header['name']} ({header['where']})"))
            awaits_docstring, in_sub = header["doc"] is not None, False
            line = header["rest"] or ""
        elif tests and (sub := _SUB_HEADER.match(line)) and _test_id(sub["name"], sub["where"]) == tests[-1].name:
            in_sub = True
        elif awaits_docstring:
            awaits_docstring, tests[-1].shown = False, line.partition(" ... ")[0]
        if tests and (verdict := _verdict(line)) is not None:
            (tests[-1].sub_verdicts if in_sub else tests[-1].verdicts).append(verdict)
    return [test for test in tests if test.name.rsplit(".", 1)[-1] not in _FIXTURES]


def _problems(lines: list[str]) -> tuple[set[str], int]:
    """Ids that the failure part names, and how many class or module fixtures it names."""
    names, fixtures = set(), 0
    for before, line in itertools.pairwise(lines):
        if before == _BAR and (found := _PROBLEM.match(line)):
            if found["name"] in _FIXTURES or not found["where"]:
                fixtures += 1
            else:
                names.add(_test_id(found["name"], found["where"]))
    return names, fixtures


def _settle(test: _Test, is_problem: bool, fixture_problems: int) -> tuple[Outcome, str]:
    verdicts, subs = test.verdicts, test.sub_verdicts
    if is_problem:
        said_ok = Outcome.PASSED in verdicts and not subs
        doubt = "a line says ok, the failure part says otherwise" if said_ok and len(set(verdicts)) == 1 else ""
        bad = [v for v in (*verdicts, *subs) if v in (Outcome.FAILED, Outcome.ERROR, Outcome.XPASS)]
        return (bad[-1] if bad else Outcome.FAILED), doubt
    if not verdicts:
        if subs and set(subs) <= {Outcome.SKIPPED}:
            return Outcome.SKIPPED, ""
        return Outcome.FAILED, "" if subs else "it has no verdict"
    # A class fixture that fails prints a bare ERROR after the last test's own verdict.
    if fixture_problems and len(verdicts) > 1 and verdicts[-1] is Outcome.ERROR:
        verdicts = [v for v in verdicts if v is not Outcome.ERROR]
    if len(set(verdicts)) != 1:
        return Outcome.FAILED, f"conflicting verdicts {', '.join(dict.fromkeys(verdicts))}"
    return verdicts[0], ""


def _check_unittest_summary(parsed: ParsedLog, log: str, exit_code: int | None, started: int) -> ParsedLog:
    summaries = list(_RAN.finditer(log))
    if len(summaries) != 1:
        # Output that was sent elsewhere or cut; tests that run unittest print its reports within the report.
        parsed.unsure.append(f"{len(summaries)} lines 'Ran N tests' in the log, expected one")
        return parsed
    ran = int(summaries[0]["count"])
    if not started and ran:
        parsed.unsure.append(f"the summary counts {ran} tests, no line names one: run it with -v")
        return parsed
    rest = log[summaries[0].end() :].lstrip("\n").split("\n", 1)[0]
    result = _RESULT.match(rest)
    if result is None:
        return parsed.distrust("no OK or FAILED after 'Ran N tests'")
    skipped = sum(outcome is Outcome.SKIPPED for outcome in parsed.outcomes.values())
    if not started - skipped <= ran <= started:  # from 3.12 on, tests skipped as a whole are not counted
        return parsed.distrust(f"the summary counts {ran} tests, the lines above show {started}")
    bad = any(outcome in (Outcome.FAILED, Outcome.ERROR, Outcome.XPASS) for outcome in parsed.outcomes.values())
    if result["word"] == "OK" and bad:
        return parsed.distrust("the summary says OK, the lines above do not")
    if result["word"] == "OK" and exit_code not in (0, None):
        return parsed.distrust(f"the summary says OK, the exit code is {exit_code}")
    return parsed


# --- pytest ---------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r"=+ (?:FAILURES|ERRORS|PASSES|XPASSES|XFAILURES|warnings summary.*|short test summary info) =+$")
_SHORT = re.compile(r"=+ short test summary info =+$")
_FINAL = re.compile(r"(?:=+ )?(?P<counts>(?:\d+ [a-z]+(?:, )?)+) in [\d.]+s(?: \([\d:, a-z]+\))?(?: =+)?$")
# A line is taken apart in steps that each look at it once: one pattern for all of it would try every split of it.
_WORD = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?= \(| +\[|$)")
_PERCENT = re.compile(r"\[ *\d+%\]$")
_XDIST_WORD = re.compile(r"\[gw\d+\] (?:\[ *\d+%\] )?(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?=\S+?::.)")
_SHORT_LINE = re.compile(r"(?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<rest>.+)$")
_COUNTED = {"passed": Outcome.PASSED, "failed": Outcome.FAILED, "xfailed": Outcome.XFAIL, "xpassed": Outcome.XPASS}


def parse_pytest(log: str, exit_code: int | None, known: Collection[str]) -> ParsedLog:
    lines = log.split("\n")
    parsed = ParsedLog()
    finals = [i for i, line in enumerate(lines) if _FINAL.match(line)]
    shorts = [i for i, line in enumerate(lines) if _SHORT.match(line)]
    section = next((i for i, line in enumerate(lines) if _SECTION.match(line)), finals[0] if finals else len(lines))
    found: list[tuple[str, Outcome]] = []
    for line in lines[:section]:
        if said := _said(line):
            found.append(said)
    names = _Names(known)
    last = finals[-1] if finals else len(lines)
    for line in lines[shorts[-1] + 1 : last] if shorts else []:
        if (match := _SHORT_LINE.match(line)) and (name := names.short_id(match["word"], match["rest"])):
            found.append((name, Outcome(match["word"])))
    for name, outcome in found:
        before = parsed.outcomes.get(name, outcome)
        # A test that passes and whose teardown fails is reported PASSED and ERROR: that is no forgery, but a failure.
        if before is not outcome and Outcome.ERROR not in (before, outcome):
            parsed.suspicious.append(f"{name}: reported as {before} and as {outcome}")
            outcome = Outcome.FAILED
        parsed.outcomes[name] = Outcome.ERROR if Outcome.ERROR in (before, outcome) else outcome
    if len(finals) != 1 or len(shorts) > 1:
        # Tests that run pytest print its reports within the report; `-qq` prints no end at all.
        parsed.unsure.append(f"{len(finals)} final lines 'N passed in ...' in the log, expected one")
        return parsed
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", _FINAL.match(lines[last])["counts"])}  # type: ignore[index]
    if counts.get("passed") and Outcome.PASSED not in {what for _, what in found}:
        parsed.unsure.append(f"the summary counts {counts['passed']} passed, no line names one: run it with -v or -rA")
        return parsed
    for word, outcome in _COUNTED.items():
        if word not in ("passed", "xfailed"):
            continue
        shown = len({name for name, what in found if what is outcome})
        if shown > counts.get(word, 0):
            return parsed.distrust(f"the summary counts {counts.get(word, 0)} {word}, the lines above show {shown}")
    if ("failed" in counts or "error" in counts or "errors" in counts) != (exit_code == 1) and exit_code in (0, 1):
        return parsed.distrust(f"the summary says {lines[last].strip('= ')}, the exit code is {exit_code}")
    return parsed


def _said(line: str) -> tuple[str, Outcome] | None:
    """What a `-v` line says: `id WORD`, perhaps a reason in parentheses and the percentage; or xdist's `[gw0] WORD id`.
    The first word counts behind which only that follows."""
    if head := _XDIST_WORD.match(line):
        return line[head.end() :].rstrip(" "), Outcome(head[1])
    begin = line.find("::", 1)
    if begin < 0 or line[0].isspace():
        return None
    ends = {len(line)}
    if line.endswith("%]") and (percent := _PERCENT.match(line, line.rindex("["))):
        bare = line[: percent.start()]
        if bare.endswith(" "):
            ends.add(len(bare.rstrip(" ")))
    for word in _WORD.finditer(line, begin + 2):
        if word.end() in ends or (line.startswith(" (", word.end()) and any(line[end - 1] == ")" for end in ends)):
            return line[: word.start()], Outcome(word[1])
    return None


class _Names:
    """The test ids that a row names, to be found at the beginning of a line."""

    def __init__(self, known: Collection[str]) -> None:
        self.known = frozenset(known)
        self.longest = max(map(len, self.known), default=0)

    def short_id(self, word: str, rest: str) -> str | None:
        """Id of a `-rA` line. PASSED lines end with it; the others go on with ` - message`, and ids may hold ` - `
        too."""
        if word == "PASSED":
            return rest
        if rest.startswith("["):  # SKIPPED [1] file:line: reason names no test
            return None
        if rest in self.known:
            return rest
        cuts = [cut.start() for cut in re.finditer(" - ", rest[: self.longest + len(" - ")])]
        if name := next((rest[:cut] for cut in reversed(cuts) if rest[:cut] in self.known), None):
            return name
        open_ = at = 0
        while (cut := rest.find(" - ", at)) >= 0:
            open_ += rest.count("[", at, cut) - rest.count("]", at, cut)
            if open_ == 0:
                return rest[:cut]
            at = cut + 1
        return rest


def parse_r2e_gym(log: str, exit_code: int | None, known: Collection[str]) -> ParsedLog:
    """pytest's short summary (or one that R2E-Gym's own unittest runners print alike)."""
    parsed = parse_pytest(log, exit_code, ())
    return ParsedLog(r2e_names(parsed.outcomes), parsed.suspicious, parsed.unsure)


def r2e_names(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Tests named as R2E-Gym does: `Class.test` without the file, cut at ` - `. Of tests with one name the worst
    counts."""
    worst = (Outcome.ERROR, Outcome.FAILED, Outcome.XPASS, Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED)
    found: dict[str, Outcome] = {}
    for test, outcome in outcomes.items():
        name = ".".join(test.split("::")[1:]).split(" - ")[0]
        found[name] = min(outcome, found.get(name, outcome), key=worst.index)
    return found


# --- registry -------------------------------------------------------------------------------------------------------

_PYTEST_NAMES = (
    *("astroid", "astropy", "flask", "marshmallow", "matplotlib", "pvlib", "pydicom", "pylint", "pyvista", "requests"),
    *("scikit", "seaborn", "sphinx", "sqlfluff", "xarray"),
)
"""Projects whose parser in SWE-bench's package reads pytest's summary."""
PARSERS: Mapping[str, Parser] = {
    "unittest": parse_unittest,
    "pytest": parse_pytest,
    "parse_log_pytest": parse_pytest,
    "parse_log_pytest_v2": parse_pytest,
    "parse_log_pytest_options": parse_pytest,
    "unittest_shown": parse_unittest_shown,
    "parse_log_django": parse_unittest_shown,
    "r2e_gym": parse_r2e_gym,
    **{f"parse_log_{project}": parse_pytest for project in _PYTEST_NAMES},
}


def find_parser(name: str) -> Parser:
    try:
        return PARSERS[name]
    except KeyError:
        raise TaskError(
            f"log_parser {name!r} is not known here. Known: {', '.join(PARSERS)}. "
            "SWE-bench's own rows are judged by its package (sao eval)"
        ) from None
