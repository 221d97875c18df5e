"""Grades a patch: fresh sandbox, repository, patch, hidden tests, verdict.

Promises: the agent's patch is applied to a pristine base_commit, byte for byte; files that the test patch touches are
the test patch's, whatever the agent did to them, and hidden tests go back over anything in their places; a patch that
does not apply or tests that run out of time are a graded 0 with the reason; whatever fails on our side raises.
Resolved: every FAIL_TO_PASS PASSED, every PASS_TO_PASS PASSED, XFAIL or SKIPPED; a test that is missing from the log
failed. Rows with `expected` outcomes are resolved by exactly these, failures among them. Files whose tests are judged
stand as the row has them. What the guard (envs.swe.guard) finds decisive is not paid.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data.task import TaskError
from envs.aside import INLINE, TooHard, aside
from envs.environment import EnvironmentFault, Grade
from envs.sandbox.contract import BY_COMMANDS, ExecResult, Sandbox
from envs.swe.diff import Bench, Diff, make_diff, pack_files
from envs.swe.git import RAW_ATTRIBUTES, quote, run_script
from envs.swe.guard import (
    Finding,
    Hole,
    Judged,
    Noted,
    Told,
    Watch,
    can_watch,
    changed_files,
    decisive,
    examine,
    in_the_run,
    installs,
    look,
    may_watch,
    starts_others,
)
from envs.swe.guard.expected import SCRIPT, as_the_patch_makes_them, taken_out
from envs.swe.guard.patch import patch_findings
from envs.swe.guard.run import Names
from envs.swe.package_parsers import NAMES as PACKAGES
from envs.swe.package_parsers import Asked, check_parser, judged_of, read_log
from envs.swe.parsers import Outcome, ParsedLog, parse_log, r2e_names
from envs.swe.row import SweRow
from envs.swe.settle import put_hidden_back
from envs.swe.stage import plain_new_files
from envs.swe.worktree import Changes, Content, Snapshot

_APPLY_TIMEOUT_S = 300.0
_DOES_NOT_APPLY, _TEST_PATCH_BROKEN, _APPLY_BROKEN = 21, 22, 23
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"

_PASS = (Outcome.PASSED,)
_STAY = (Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED)
_ENDED = (Outcome.PASSED, Outcome.FAILED, Outcome.ERROR)
_OUTCOMES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "skipped": Outcome.SKIPPED,
    "xfailed": Outcome.XFAIL,
    "xpassed": Outcome.XPASS,
}
"""In the witness's words."""
_MOST_SUSPICIOUS, _LONGEST_FLAG = 100, 1000
_MOST_TESTS = 50_000
"""Of a log, beside those that the row names."""

# $D repository, $B base commit, $W scratch folder. Everything happens in indexes of our own; the work tree only
# receives finished blobs, so neither attributes nor earlier state of the work tree can change what is written.
_APPLY = f"""
exec 3>&1 >"$W/log" 2>&1
fail() {{ tail -c 2000 "$W/log" >&3; exit "$1"; }}
cd "$D" || fail {_APPLY_BROKEN}
A=.git/info/attributes
mkdir -p .git/info; [ ! -f $A ] || cp $A "$W/attributes"
printf '%s' {quote(RAW_ATTRIBUTES)} >$A
drop() {{
  [ -s "$1" ] || return 0
  xargs -0 rm -rf -- <"$1"
  xargs -0 dirname -z -- <"$1" | sort -zu | xargs -0 rmdir -p --ignore-fail-on-non-empty -- 2>/dev/null
}}
names() {{ git diff-index --cached --no-renames --diff-filter="$1" --name-only -z "$B" -- || fail {_APPLY_BROKEN}; }}
write() {{ git checkout-index -f -q -z --stdin || fail {_APPLY_BROKEN}; }}
overlay() {{
  export GIT_INDEX_FILE="$W/$1.index"
  git read-tree "$B" || fail {_APPLY_BROKEN}
  git apply --cached --whitespace=nowarn "$W/$1.patch" || fail "$2"
}}
if [ -s "$W/agent.patch" ]; then
  overlay agent {_DOES_NOT_APPLY}
  if [ "$DELETES" = 1 ]; then names D >"$W/gone"; drop "$W/gone"; fi
  names d >"$W/list"; write <"$W/list"
fi
if [ -s "$W/kept" ]; then
  export GIT_INDEX_FILE="$W/kept.index"
  git read-tree "$B" || fail {_APPLY_BROKEN}
  xargs -0 rm -rf -- <"$W/kept"; write <"$W/kept"
fi
if [ -s "$W/test.patch" ]; then
  overlay test {_TEST_PATCH_BROKEN}
  if [ "$SELF_APPLIED" = 1 ]; then
    names A >"$W/gone"; drop "$W/gone"
    names a >"$W/old"; git read-tree "$B"; write <"$W/old"
  else
    if [ "$DELETES" = 1 ]; then names D >"$W/gone"; drop "$W/gone"; fi
    names d >"$W/list"; write <"$W/list"
  fi
fi
rm -f $A; [ ! -f "$W/attributes" ] || cp "$W/attributes" $A
"""


@dataclass(frozen=True)
class TestRun:
    """One run of a row's tests on one patch. `reason` is set when no tests ran to the end."""

    __test__ = False  # not a test class for pytest

    parsed: ParsedLog
    log: str
    exit_code: int
    seconds: float
    reason: str = ""
    noted: Noted = field(default_factory=Noted, repr=False)
    sure: bool = False
    """Where the witness said nothing, the runner did not finish by itself."""
    base: Collection[str] = field(default=(), repr=False)
    """Paths of base_commit."""


@dataclass(frozen=True)
class Evaluation:
    """One run of a row's test command: the driver's folder in the sandbox, what lies in it, and who watches."""

    folder: str
    files: Mapping[str, bytes]
    watch: Watch | None
    judged: Judged

    @classmethod
    def of(cls, row: SweRow, base: Collection[bytes] = (), tests: Mapping[bytes, Content] | None = None) -> Evaluation:
        """`base`: paths of base_commit; `tests`: the hidden tests, where their bytes are known."""
        check_parser(row.log_parser)
        folder = f"/tmp/.driver-{secrets.token_hex(8)}"
        files = {"eval.sh": row.eval_script.encode()}
        judged = Judged(row, frozenset(path.decode("utf-8", "surrogateescape") for path in base))
        sure = can_watch(row.log_parser, row.eval_script)
        if not (sure or may_watch(row.log_parser, row.eval_script)):
            return cls(folder, files, None, judged)
        bytes_of = {path.decode("utf-8", "surrogateescape"): each.object_id("") for path, each in (tests or {}).items()}
        folders = [f"{path}/" for path in row.hidden_targets if not path.endswith(".py")]
        named = [path for path in (*judged.settled, *bytes_of) if path.endswith(".py")]
        expected = {path: bytes_of.get(path, "") for path in (*named, *folders)}
        earlier = installs(row.eval_script) or not sure
        ends = not starts_others(row.eval_script)
        watch = Watch(folder, row.repo_dir, sure, expected, ends=ends, installs=earlier)
        return cls(folder, {**files, **watch.files}, watch, judged)

    async def run(self, sandbox: Sandbox, row: SweRow, *, timeout_s: float) -> TestRun:
        """Patch, tests and `files` are in the sandbox."""
        await put_hidden_back(sandbox, row)
        interpreter = "bash" if re.match(r"#!.*\bbash\b", row.eval_script) else "sh"
        command = f"{interpreter} {self.folder}/eval.sh 2>&1"
        if self.watch:
            command = f"{self.watch.prefix} {command} {self.watch.suffix}"
        started = time.monotonic()
        try:
            result = await sandbox.exec(command, timeout_s=timeout_s, cwd=row.repo_dir, last=True)
            seconds = time.monotonic() - started
            # The package's patterns are not linear, and its modules are not for this process.
            size = len(result.output) + (INLINE if row.log_parser in PACKAGES else 0)
            reading = aside(size + 1, _read_run, row, result, self.watch, seconds, timeout_s)
            whole = installs(row.eval_script) or not can_watch(row.log_parser, row.eval_script)
            run, altered = await asyncio.gather(reading, look(sandbox, row.repo_dir, whole=whole))
        except TooHard as error:
            return TestRun(ParsedLog(), "", result.exit_code, seconds, f"the test log cannot be read: {error}")
        except BY_COMMANDS as error:
            seconds = time.monotonic() - started
            return TestRun(ParsedLog(), "", -1, seconds, f"the tests ended their sandbox: {error}")
        noted = dataclasses.replace(run.noted, altered=altered)
        return dataclasses.replace(run, base=self.judged.base, noted=noted)


def self_applied(row: SweRow) -> bool:
    """The test command applies the test patch itself."""
    return "git apply" in row.eval_script


async def run_tests(
    sandbox: Sandbox, row: SweRow, patch: bytes, *, timeout_s: float, base: Collection[bytes] = ()
) -> TestRun:
    """`sandbox` is fresh and holds the row's repository. Raises SandboxError, EnvironmentFault, TaskError."""
    evaluation = Evaluation.of(row, base)
    folder = evaluation.folder
    patches = {"agent.patch": whole(patch), "test.patch": whole(row.test_patch)}
    if kept := _kept(evaluation.judged, [path for each in changed_files(patch) for path in each.paths], base):
        patches["kept"] = b"".join(path + b"\0" for path in sorted(kept))
    await sandbox.put_tar(folder, pack_files({**patches, **evaluation.files}))
    deletes = int(any(b"deleted file" in text or b"rename from" in text for text in (patch, row.test_patch)))
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} W={folder} SELF_APPLIED={int(self_applied(row))} "
    asks = self_applied(row) and as_the_patch_makes_them(row.eval_script)
    script = f"{variables}DELETES={deletes}\n{SCRIPT if asks else ''}{_APPLY}"
    applied = await run_script(sandbox, script, timeout_s=_APPLY_TIMEOUT_S)
    expected, said = taken_out(applied.text)
    if applied.timed_out or applied.exit_code not in (0, _DOES_NOT_APPLY):
        what = "test_patch does not apply to base_commit" if applied.exit_code == _TEST_PATCH_BROKEN else "cannot apply"
        raise EnvironmentFault(f"task {row.task_id}: {what}: {said.strip()[-1500:]}")
    if applied.exit_code == _DOES_NOT_APPLY:
        reason = f"the patch does not apply: {said.strip()[-1000:]}"
        return TestRun(ParsedLog(), "", applied.exit_code, 0.0, reason)
    run = await evaluation.run(sandbox, row, timeout_s=timeout_s)
    return dataclasses.replace(run, noted=dataclasses.replace(run.noted, expected=expected))


async def diff_and_test(
    sandbox: Sandbox, row: SweRow, snapshot: Snapshot, changes: Changes, *, timeout_s: float, max_bytes: int
) -> tuple[Diff, TestRun]:
    """The agent's patch and the tests' verdict on it. `sandbox` is fresh and holds the row's repository.

    Where the test patch only adds text files, as most do, the changes are written from their contents together with
    the diff; else git applies the finished patch and then the test patch."""
    tests = None if self_applied(row) else plain_new_files(whole(row.test_patch), snapshot.base)
    evaluation = Evaluation.of(row, snapshot.base, tests)
    touched = [path.decode("utf-8", "surrogateescape") for path in (*changes.written, *changes.deleted)]
    kept = _kept(evaluation.judged, touched, snapshot.base)
    bench = Bench(evaluation.folder, evaluation.files if tests is not None else {}, tests, kept)
    diff = await make_diff(sandbox, row, snapshot, changes, bench, max_bytes=max_bytes)
    if tests is None:
        return diff, await run_tests(sandbox, row, diff.patch, timeout_s=timeout_s, base=snapshot.base)
    return diff, await evaluation.run(sandbox, row, timeout_s=timeout_s)


def _kept(judged: Judged, touched: Iterable[str], base: Collection[bytes]) -> frozenset[bytes]:
    """Files of judged tests that a patch touches, or puts something in the way of, and that nothing else resets."""
    names = [path.encode("utf-8", "surrogateescape") for path in judged.settled - judged.reset]
    changed = {path.encode("utf-8", "surrogateescape") for path in touched}
    return frozenset(
        path
        for path in names
        if path in base
        and (path in changed or any(each.startswith(path + b"/") or path.startswith(each + b"/") for each in changed))
    )


def whole(patch: bytes) -> bytes:
    """A patch that lost its final newline on the way is completed, else git calls it corrupt."""
    return patch if not patch or patch.endswith(b"\n") else patch + b"\n"


def _read_run(row: SweRow, result: ExecResult, watch: Watch | None, seconds: float, timeout_s: float) -> TestRun:
    noted, sure = Noted(), watch is not None and watch.sure
    if watch is not None:
        output, noted = watch.split(result.output)
        result = dataclasses.replace(result, output=output)
    log = result.text
    if result.timed_out:
        reason = f"the tests did not end within {timeout_s:g} s"
        return TestRun(ParsedLog(), log, result.exit_code, seconds, reason)
    body = log
    exit_code: int | None = result.exit_code
    suspicious = []
    if _START in row.eval_script:
        # The marks reach the log through `set -x`; the script goes on after the tests, so its exit code says nothing.
        starts, ends = (len(re.findall(rf"^\++ : '{re.escape(mark)}'$", log, re.MULTILINE)) for mark in (_START, _END))
        if (starts, ends) != (1, 1) or log.count(_START) != 1 or log.count(_END) != 1:
            suspicious.append(
                f"the log has {log.count(_START)} start and {log.count(_END)} end marks, expected one each"
            )
        body = log.split(_START, 1)[-1].split("\n", 1)[-1].rsplit("\n+ : '" + _END, 1)[0]
        exit_code = None
    known = {*row.fail_to_pass, *row.pass_to_pass}
    if row.log_parser in PACKAGES:
        parsed = read_log(Asked(row.log_parser, row.task_id, row.version, row.eval_type, tuple(known)), log)
    else:
        parsed = parse_log(row.log_parser, body, exit_code, known, watched=noted.whole)
    if result.truncated:
        parsed.distrust(f"the log is too long: {result.truncated} bytes are missing from its middle")
    for why in suspicious:
        parsed.distrust(why)
    if parsed.unsure:
        _settle(row, parsed, noted)
    _hold(parsed, noted, sure)
    return TestRun(_bounded(parsed, row), log, result.exit_code, seconds, noted=noted, sure=sure)


def _bounded(parsed: ParsedLog, row: SweRow) -> ParsedLog:
    """Forged lines can name millions of tests: what the row names is kept, and enough of the rest."""
    named = {*row.fail_to_pass, *row.pass_to_pass, *(row.expected or ())}
    rest = itertools.islice((name for name in parsed.outcomes if name not in named), _MOST_TESTS)
    kept = {name: parsed.outcomes[name] for name in (*named, *rest) if name in parsed.outcomes}
    return ParsedLog(
        kept if len(kept) < len(parsed.outcomes) else parsed.outcomes,
        [why[:_LONGEST_FLAG] for why in parsed.suspicious[:_MOST_SUSPICIOUS]],
    )


async def judge_aside(row: SweRow, run: TestRun, patch: bytes) -> Grade:
    """`judge`, away from the loop where there is much to read: Python in a patch is parsed."""
    try:
        return await aside(8 * len(patch) + 64 * len(run.parsed.outcomes), judge, row, run, patch)
    except TooHard as error:
        raise EnvironmentFault(f"task {row.task_id}: the patch cannot be judged: {error}") from error


def _settle(row: SweRow, parsed: ParsedLog, noted: Noted) -> None:
    """A log that says too little, or holds reports within reports: the runner's own word decides, where it is whole."""
    whys, parsed.unsure = parsed.unsure, []
    if noted.whole and not parsed.suspicious:
        told = {name: _OUTCOMES[what] for name, what in noted.outcomes.items() if what in _OUTCOMES}
        parsed.outcomes = r2e_names(told) if row.log_parser == "r2e_gym" else told
        return
    for why in whys:
        parsed.distrust(why)


def _hold(parsed: ParsedLog, noted: Noted, sure: bool) -> None:
    """No pass counts that the runner itself does not stand for."""
    if (sure or noted.of("began")) and not noted.whole:
        parsed.distrust("the test runner did not finish by itself")
    elif any(end.get("probe") is False for end in noted.ends):
        parsed.distrust("the test runner counts a call that fails as passed")
    for name, what in noted.outcomes.items():
        if what in ("failed", "xpassed") and parsed.outcomes.get(name) in _STAY:
            parsed.outcomes[name] = Outcome.FAILED
            parsed.suspicious.append(f"{name}: the log says passed, the runner says {what}")


def judge(row: SweRow, run: TestRun, patch: bytes, *, log_chars: int = 4000) -> Grade:
    """The verdict on a run. An empty FAIL_TO_PASS is refused: it would make every patch a success."""
    if not row.fail_to_pass:
        raise TaskError(f"task {row.task_id}: FAIL_TO_PASS is empty, nothing can be graded")
    judged = Judged(row, run.base)
    names = (*row.fail_to_pass, *row.pass_to_pass, *(row.expected or ()))
    told = None
    if row.log_parser in PACKAGES:
        outcomes = judged_of(names, run.parsed)
        told = Told(run.log, row.eval_script, run.exit_code)  # its parsers hold no line against another
    else:
        outcomes = _by_id(names, run.parsed.outcomes)
    found = [Finding(Hole.LOG, why, decisive=False) for why in run.parsed.suspicious]
    found += in_the_run(patch_findings(judged, patch), judged, run.noted)
    if not run.reason:
        found += examine(judged, patch, outcomes, told=told, noted=run.noted, sure=run.sure)
    refused = decisive(found)
    fixed = _split(row.fail_to_pass, outcomes, _PASS)
    kept = _split(row.pass_to_pass, outcomes, _STAY)
    unlike = _unlike(row.expected, run.parsed.outcomes) if row.expected is not None else []
    failed = bool(unlike if row.expected is not None else fixed["failed"] or kept["failed"])
    resolved = not (run.reason or failed or refused)
    reason = run.reason or (str(refused[0]) if refused else "")
    if not resolved and not reason and row.expected is not None:
        reason = f"{len(unlike)} of {len(row.expected)} tests do not end as expected: {', '.join(unlike[:3])}"
    elif not resolved and not reason:
        reason = f"{len(fixed['failed'])} of {len(row.fail_to_pass)} tests still fail, {len(kept['failed'])} broke"
        reason += f" ({run.parsed.suspicious[0]})" if run.parsed.suspicious else ""
    suspicious = [str(each) for each in dict.fromkeys(found)]
    detail: dict[str, Any] = {
        "resolved": resolved,
        "reason": reason,
        "fail_to_pass": fixed,
        "pass_to_pass": kept,
        "suspicious": suspicious,
        "decisive": [str(each) for each in refused],
        "exit_code": run.exit_code,
        "test_seconds": round(run.seconds, 4),
        "log_tail": run.log[-log_chars:],
    }
    return Grade(1.0 if resolved else 0.0, detail, patch)


def _by_id(names: Iterable[str], outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Outcomes of the judged tests by the row's ids. Official parsers cut these at a blank: there the last counts."""
    known = Names({name: str(outcome) for name, outcome in outcomes.items()})
    found = {name: known.find(name) for name in names}
    return {name: outcomes[hits[-1]] for name, hits in found.items() if hits}


def _split(names: Iterable[str], outcomes: Mapping[str, Outcome], good: tuple[Outcome, ...]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {"passed": [], "failed": []}
    for name in names:
        parts["passed" if outcomes.get(name) in good else "failed"].append(name)
    return parts


def _unlike(expected: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Tests that ended otherwise, are missing, or are not expected at all. Skipped tests are in no such list."""
    ended = {name: str(outcome) for name, outcome in outcomes.items() if outcome in _ENDED}
    return sorted(name for name in {*expected, *ended} if expected.get(name) != ended.get(name))
