"""What in a log, or in somebody's reading of it, does not fit together.

Promises: only what a test run cannot produce by itself is a finding: the marks of the harness stand once each, as the
shell traced them; result lines of judged tests stand where the runner prints them; counts agree; the shell that wrote
the marks lived to its end; every judged test is in one list. Everything that the official rule counts is a claim, not
PASSED alone. The checks know the reports of pytest and of unittest (Django's too); of other runners only marks, exit
code and lists are checked. Where the witness told the whole run, reports within reports (tests that run pytest inside
pytest) and silent ends are held against what it told, not against the log's form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from envs.swe.guard.findings import Finding, Hole
from envs.swe.guard.judged import Judged

START, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
COUNTS = ("PASSED", "XFAIL", "SKIPPED")
"""Outcomes that a rule may count for a test."""
_BAD_MARKS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STATUS = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\s+(\S.*)$")
_COUNTED = r"\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed)"
_PYTEST_END = re.compile(rf"^(?:=+ )?(?:(?:{_COUNTED}(?:, )?)+|no tests ran) in [\d.]+ ?s(?:econds)?\b.*$")
_SHORT = re.compile(r"^=+ short test summary info =+$")
_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.MULTILINE)
_KILLED = 128


@dataclass(frozen=True)
class Told:
    """A log as it was given to whoever judged it."""

    log: str
    script: str
    exit_code: int = 0
    lost_bytes: int = 0
    whole: bool = False
    """The witness told the run from beginning to end (`watch.Noted.whole`)."""


def log_findings(judged: Judged, told: Told, statuses: Mapping[str, str]) -> list[Finding]:
    """`statuses`: test id -> outcome, as the log was read."""
    log = _ANSI.sub("", told.log.replace("\r\n", "\n"))
    row = judged.row
    names = {*row.fail_to_pass, *row.pass_to_pass}
    claimed = {name: statuses[name] for name in names if statuses.get(name) in COUNTS}
    found = [*_marks(log, told.script, told.exit_code)]
    if told.lost_bytes:
        found.append(Finding(Hole.LOG, f"{told.lost_bytes} bytes are missing from its middle"))
    body = log.split(START, 1)[-1].split("\n", 1)[-1].split(END, 1)[0]
    kind = runner_of(told.script)
    if kind == "pytest":
        found += _pytest(body, told, claimed, names)
    elif kind == "unittest" and claimed:
        found += _unittest(body, claimed)
    return list(dict.fromkeys(found))


def claim_findings(row_fail_to_pass: Collection[str], statuses: Mapping[str, str]) -> list[Finding]:
    """A test that the fix turns green passes: it is neither skipped nor expected to fail."""
    odd = [name for name in row_fail_to_pass if statuses.get(name) in COUNTS[1:]]
    return [Finding(Hole.CLAIM, f"FAIL_TO_PASS {name} ended as {statuses[name]}") for name in odd[:3]]


def runner_of(script: str) -> str:
    """pytest, unittest or nothing that is known here."""
    command = script.split(START, 1)[-1].split(END, 1)[0]
    if re.search(r"(?:^|[\s/;&(])(?:pytest|py\.test)\b|\btox\b", command):
        return "pytest"
    return "unittest" if re.search(r"runtests\.py|-m unittest\b", command) else ""


def _marks(log: str, script: str, exit_code: int) -> Sequence[Finding]:
    found = []
    for mark in (START, END):
        if mark not in script:
            continue
        traced = len(re.findall(rf"^\++ : '{re.escape(mark)}'$", log, re.MULTILINE))
        if (traced, log.count(mark)) != (1, 1):
            found.append(Finding(Hole.MARKERS, f"{mark!r} stands {log.count(mark)} times in the log, expected once"))
    if EXIT in script:
        times = log.count(EXIT)
        if times != 2:  # the shell's trace of the echo, and the echo
            found.append(
                Finding(Hole.MARKERS, f"{EXIT!r} stands {times} times in the log, expected the trace and the line")
            )
        elif log.find(EXIT) < log.find(END):
            found.append(Finding(Hole.MARKERS, f"{EXIT!r} stands before the end of the test output"))
    found += [Finding(Hole.MARKERS, f"the log holds {mark!r}, which the eval script does not write")
              for mark in _BAD_MARKS if mark in log and mark not in script]  # fmt: skip
    if exit_code > _KILLED:
        found.append(Finding(Hole.MARKERS, f"the eval script was killed (exit code {exit_code}) before its own end"))
    return found


def _pytest(body: str, told: Told, claimed: Mapping[str, str], judged: Collection[str]) -> Sequence[Finding]:
    found = []
    lines = body.split("\n")
    ends = [number for number, line in enumerate(lines) if _PYTEST_END.match(line)]
    shorts = [number for number, line in enumerate(lines) if _SHORT.match(line)]
    runs = max(1, len(re.findall(r"(?:pytest|py\.test)\b", told.script.split(START, 1)[-1].split(END, 1)[0])))
    if claimed and not told.whole and not 1 <= len(ends) <= runs:
        found.append(Finding(Hole.LOG, f"{len(ends)} final lines of pytest for {runs} call(s) of it"))
    if told.whole and len(ends) > runs:
        # Reports within the report: only the last summary is the runner's own.
        ends, shorts = ends[-runs:], shorts[-runs:]
    first, last = min(shorts, default=0), max(ends, default=0)  # between a summary's header and a final line
    seen: dict[str, set[str]] = {}
    for number, line in enumerate(lines):
        if not (match := _STATUS.match(line)):
            continue
        status, whole = match[1], match[2].split(" - ", 1)[0].strip()
        name = whole if whole in judged else whole.split()[0]  # both ways in which the package's parsers read ids
        if name not in judged:
            continue
        seen.setdefault(name, set()).add(status)
        if shorts and ends and not first < number < last:
            found.append(Finding(Hole.LOG, f"a result line of {name} stands outside of pytest's summary"))
    found += [
        Finding(Hole.LOG, f"{name} is reported as {' and as '.join(sorted(each))}")
        for name, each in seen.items()
        if {"PASSED", "FAILED"} <= each and "[" not in name  # names cut at a blank may stand for several tests
    ]
    for word, counted in (("PASSED", ("passed", "xpassed")), ("XFAIL", ("xfailed",))):
        most = sum(_count(lines[number], each) for number in ends for each in counted)
        shown = sum(status == word for status in claimed.values())
        if ends and shown > most:
            what = f"pytest counts {most} {counted[0]}, the log shows {shown} judged tests {counted[0]}"
            found.append(Finding(Hole.LOG, what))
    return found[:10]


def _count(line: str, word: str) -> int:
    found = re.search(rf"(\d+) {word}\b", line)
    return int(found[1]) if found else 0


def _unittest(body: str, claimed: Collection[str]) -> Sequence[Finding]:
    counts = [int(number) for number in _RAN.findall(body)]
    if len(counts) != 1:
        return [Finding(Hole.LOG, f"{len(counts)} lines 'Ran N tests', expected one")]
    if len(claimed) > counts[0]:
        return [
            Finding(Hole.LOG, f"the runner ran {counts[0]} tests, the log shows {len(claimed)} judged tests passed")
        ]
    return []


def list_findings(judged: Judged, report: Mapping[str, object]) -> list[Finding]:
    """Judged tests that the package put into neither list count as failed (the package then leaves them out)."""
    status = report.get("tests_status")
    if not isinstance(status, Mapping):
        return []
    found = []
    for column, names in (("FAIL_TO_PASS", judged.row.fail_to_pass), ("PASS_TO_PASS", judged.row.pass_to_pass)):
        lists = status.get(column, {})
        known = {*lists.get("success", ()), *lists.get("failure", ())}
        if missing := [name for name in names if name not in known]:
            found.append(Finding(Hole.LISTS, f"{len(missing)} of {column} are neither passed nor failed: {missing[0]}"))
    return found
