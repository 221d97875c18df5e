"""What in a log, in the package's reading of it, or in the runner's own note does not fit together.

Promises: only what a test run cannot produce by itself is a finding: the marks of the harness stand once each, as the
shell traced them; result lines of judged tests stand where the runner prints them; counts agree; the shell that wrote
the marks lived to its end; every judged test is in one list. The checks know the reports of pytest and of unittest
(Django's too); of other runners only marks, exit code and lists are checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from eval.swebench.execute import EvalRun
from eval.swebench.findings import Finding, Hole
from eval.swebench.rows import HarnessRow

START, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
_BAD_MARKS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STATUS = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\s+(\S.*)$")
_COUNTED = r"\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed)"
_PYTEST_END = re.compile(rf"^(?:=+ )?(?:(?:{_COUNTED}(?:, )?)+|no tests ran) in [\d.]+ ?s(?:econds)?\b.*$")
_SHORT = re.compile(r"^=+ short test summary info =+$")
_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.MULTILINE)
_KILLED = 128


@dataclass(frozen=True)
class Noted:
    """What the witness saw: upper bounds over all of the runner's sessions."""

    passed: int
    bad: frozenset[str]
    honest: bool
    """No probe (a call that fails) was counted as passed."""


def log_findings(
    row: HarnessRow, run: EvalRun, script: str, report: Mapping[str, object], statuses: Mapping[str, str]
) -> list[Finding]:
    """`report`, `statuses`: the package's verdict and its reading of the log."""
    log = _ANSI.sub("", run.log.replace("\r\n", "\n"))
    claimed = {name for name in (*row.swe.fail_to_pass, *row.swe.pass_to_pass) if statuses.get(name) == "PASSED"}
    found = [*_marks(log, script, run.exit_code)]
    if run.lost_bytes:
        found.append(Finding(Hole.LOG, f"{run.lost_bytes} bytes are missing from its middle"))
    body = log.split(START, 1)[-1].split("\n", 1)[-1].split(END, 1)[0]
    kind = runner_of(script)
    if kind == "pytest":
        found += _pytest(body, script, claimed, {*row.swe.fail_to_pass, *row.swe.pass_to_pass})
    elif kind == "unittest" and claimed:
        found += _unittest(body, claimed)
    found += list_findings(row, report)
    if run.watched and claimed:
        found += _note(run.note, claimed)
    return list(dict.fromkeys(found))


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


def _pytest(body: str, script: str, claimed: Collection[str], judged: Collection[str]) -> Sequence[Finding]:
    found = []
    lines = body.split("\n")
    ends = [number for number, line in enumerate(lines) if _PYTEST_END.match(line)]
    shorts = [number for number, line in enumerate(lines) if _SHORT.match(line)]
    runs = max(1, len(re.findall(r"(?:pytest|py\.test)\b", script.split(START, 1)[-1].split(END, 1)[0])))
    if claimed and not 1 <= len(ends) <= runs:
        found.append(Finding(Hole.LOG, f"{len(ends)} final lines of pytest for {runs} call(s) of it"))
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
        if shorts and not first < number < last:
            found.append(Finding(Hole.LOG, f"a result line of {name} stands outside of pytest's summary"))
    found += [
        Finding(Hole.LOG, f"{name} is reported as {' and as '.join(sorted(each))}")
        for name, each in seen.items()
        if {"PASSED", "FAILED"} <= each
    ]
    passed = sum(_count(lines[number], "passed") + _count(lines[number], "xpassed") for number in ends)
    if ends and len(claimed) > passed:
        found.append(
            Finding(Hole.LOG, f"pytest counts {passed} passed, the log shows {len(claimed)} judged tests passed")
        )
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


def list_findings(row: HarnessRow, report: Mapping[str, object]) -> list[Finding]:
    """Judged tests that the package put into neither list count as failed (the package then leaves them out)."""
    status = report.get("tests_status")
    if not isinstance(status, Mapping):
        return []
    found = []
    for column, names in (("FAIL_TO_PASS", row.swe.fail_to_pass), ("PASS_TO_PASS", row.swe.pass_to_pass)):
        lists = status.get(column, {})
        known = {*lists.get("success", ()), *lists.get("failure", ())}
        if missing := [name for name in names if name not in known]:
            found.append(Finding(Hole.LISTS, f"{len(missing)} of {column} are neither passed nor failed: {missing[0]}"))
    return found


def read_note(note: bytes) -> Noted | None:
    """None: there is no note that can be read, or none of a runner that came to its end."""
    passed, bad, honest = 0, set(), True
    try:
        entries = [json.loads(line) for line in note.split(b"\n") if line.strip()]
        ended = [entry for entry in entries if "began" not in entry]
        for entry in ended:
            passed += int(entry["ran"] if entry["passed"] is None else entry["passed"])
            bad |= {str(name) for name in entry["bad"]}
            honest = honest and entry.get("probe") is not False
    except (ValueError, KeyError, TypeError):
        return None
    return Noted(passed, frozenset(bad), honest) if ended else None


def _note(note: bytes, claimed: Collection[str]) -> Sequence[Finding]:
    noted = read_note(note)
    if noted is None:
        return [Finding(Hole.RUNNER, "the log shows results, but the test runner did not come to its own end")]
    found = []
    if not noted.honest:
        found.append(Finding(Hole.RUNNER, "it counts a call that fails as passed"))
    if len(claimed) > noted.passed:
        found.append(
            Finding(Hole.RUNNER, f"it counts {noted.passed}, the log shows {len(claimed)} judged tests passed")
        )
    bad = {
        *noted.bad,
        *(f"{name.rsplit('.', 1)[-1]} ({name.rsplit('.', 1)[0]})" for name in noted.bad if "::" not in name),
    }
    if both := sorted(name for name in claimed if name in bad):
        found.append(Finding(Hole.RUNNER, f"{both[0]} failed in the runner, the log says passed"))
    return found
