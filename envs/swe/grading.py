"""Grades a patch: fresh sandbox, repository, patch, hidden tests, verdict.

Promises: the agent's patch is applied to a pristine base_commit, byte for byte; files that the test patch touches are
the test patch's, whatever the agent did to them, and hidden tests go back over anything in their places; a patch that
does not apply or tests that run out of time are a graded 0 with the reason; whatever fails on our side raises.
Resolved: every FAIL_TO_PASS PASSED or XFAIL, every PASS_TO_PASS PASSED, XFAIL or SKIPPED; a test that is missing from
the log failed. Rows with `expected` outcomes are resolved by exactly these, failures among them.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from data.task import TaskError
from envs.aside import TooHard, aside
from envs.environment import EnvironmentFault, Grade
from envs.sandbox.contract import BY_COMMANDS, ExecResult, Sandbox
from envs.swe.diff import Bench, Diff, make_diff, pack_files
from envs.swe.git import RAW_ATTRIBUTES, quote, run_script
from envs.swe.parsers import Outcome, ParsedLog, find_parser, parse_log
from envs.swe.row import SweRow
from envs.swe.settle import put_hidden_back
from envs.swe.stage import plain_new_files
from envs.swe.witness import SOURCE, can_watch, compare, compare_loosely, fetch_note, may_watch
from envs.swe.worktree import Changes, Snapshot

_APPLY_TIMEOUT_S = 300.0
_DOES_NOT_APPLY, _TEST_PATCH_BROKEN, _APPLY_BROKEN = 21, 22, 23
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"

_PASS = (Outcome.PASSED, Outcome.XFAIL)
_STAY = (Outcome.PASSED, Outcome.XFAIL, Outcome.SKIPPED)
_ENDED = (Outcome.PASSED, Outcome.FAILED, Outcome.ERROR)

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


@dataclass(frozen=True)
class Evaluation:
    """One run of a row's test command: the driver's folder in the sandbox and what lies in it."""

    folder: str
    files: Mapping[str, bytes]
    note: str
    """Where the witness writes; empty where the command cannot be watched."""

    @classmethod
    def of(cls, row: SweRow) -> Evaluation:
        find_parser(row.log_parser)
        folder = f"/tmp/.driver-{secrets.token_hex(8)}"
        files = {"eval.sh": row.eval_script.encode()}
        if not (can_watch(row.log_parser, row.eval_script) or may_watch(row.log_parser, row.eval_script)):
            return cls(folder, files, "")
        return cls(folder, {**files, "start/sitecustomize.py": SOURCE.encode()}, f"{folder}/{secrets.token_hex(8)}")

    async def run(self, sandbox: Sandbox, row: SweRow, *, timeout_s: float) -> TestRun:
        """Patch, tests and `files` are in the sandbox."""
        await put_hidden_back(sandbox, row)
        interpreter = "bash" if re.match(r"#!.*\bbash\b", row.eval_script) else "sh"
        command = f"{interpreter} {self.folder}/eval.sh 2>&1"
        if self.note:
            start = f"PYTHONPATH={self.folder}/start${{PYTHONPATH:+:$PYTHONPATH}}"
            command = f"{start} SAO_NOTE={self.note} {command}"
        started = time.monotonic()
        try:
            result = await sandbox.exec(command, timeout_s=timeout_s, cwd=row.repo_dir, last=True)
            seconds = time.monotonic() - started
            note = await fetch_note(sandbox, self.note) if self.note and not result.timed_out else None
            size = len(result.output) + len(note or b"")
            return await aside(size, _read_run, row, result, seconds, timeout_s, note)
        except TooHard as error:
            return TestRun(ParsedLog(), "", result.exit_code, seconds, f"the test log cannot be read: {error}")
        except BY_COMMANDS as error:
            seconds = time.monotonic() - started
            return TestRun(ParsedLog(), "", -1, seconds, f"the tests ended their sandbox: {error}")


def self_applied(row: SweRow) -> bool:
    """The test command applies the test patch itself."""
    return "git apply" in row.eval_script


async def run_tests(sandbox: Sandbox, row: SweRow, patch: bytes, *, timeout_s: float) -> TestRun:
    """`sandbox` is fresh and holds the row's repository. Raises SandboxError, EnvironmentFault, TaskError."""
    evaluation = Evaluation.of(row)
    folder = evaluation.folder
    patches = {"agent.patch": whole(patch), "test.patch": whole(row.test_patch)}
    await sandbox.put_tar(folder, pack_files({**patches, **evaluation.files}))
    deletes = int(any(b"deleted file" in text or b"rename from" in text for text in (patch, row.test_patch)))
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} W={folder} SELF_APPLIED={int(self_applied(row))} "
    applied = await run_script(sandbox, f"{variables}DELETES={deletes}\n{_APPLY}", timeout_s=_APPLY_TIMEOUT_S)
    if applied.timed_out or applied.exit_code not in (0, _DOES_NOT_APPLY):
        what = "test_patch does not apply to base_commit" if applied.exit_code == _TEST_PATCH_BROKEN else "cannot apply"
        raise EnvironmentFault(f"task {row.task_id}: {what}: {applied.text.strip()[-1500:]}")
    if applied.exit_code == _DOES_NOT_APPLY:
        reason = f"the patch does not apply: {applied.text.strip()[-1000:]}"
        return TestRun(ParsedLog(), "", applied.exit_code, 0.0, reason)
    return await evaluation.run(sandbox, row, timeout_s=timeout_s)


async def diff_and_test(
    sandbox: Sandbox, row: SweRow, snapshot: Snapshot, changes: Changes, *, timeout_s: float, max_bytes: int
) -> tuple[Diff, TestRun]:
    """The agent's patch and the tests' verdict on it. `sandbox` is fresh and holds the row's repository.

    Where the test patch only adds text files, as most do, the changes are written from their contents together with
    the diff; else git applies the finished patch and then the test patch."""
    tests = None if self_applied(row) else plain_new_files(whole(row.test_patch), snapshot.base)
    evaluation = Evaluation.of(row)
    bench = Bench(evaluation.folder, evaluation.files if tests is not None else {}, tests)
    diff = await make_diff(sandbox, row, snapshot, changes, bench, max_bytes=max_bytes)
    if tests is None:
        return diff, await run_tests(sandbox, row, diff.patch, timeout_s=timeout_s)
    return diff, await evaluation.run(sandbox, row, timeout_s=timeout_s)


def whole(patch: bytes) -> bytes:
    """A patch that lost its final newline on the way is completed, else git calls it corrupt."""
    return patch if not patch or patch.endswith(b"\n") else patch + b"\n"


def _read_run(row: SweRow, result: ExecResult, seconds: float, timeout_s: float, note: bytes | None) -> TestRun:
    """`note`: the witness's, None where the command was not watched."""
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
    parsed = parse_log(row.log_parser, body, exit_code, {*row.fail_to_pass, *row.pass_to_pass})
    if result.truncated:
        parsed.distrust(f"the log is too long: {result.truncated} bytes are missing from its middle")
    for why in suspicious:
        parsed.distrust(why)
    if note is not None:
        (compare if can_watch(row.log_parser, row.eval_script) else compare_loosely)(parsed, note)
    return TestRun(_bounded(parsed, row), log, result.exit_code, seconds)


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
    """`judge`, away from the loop where there is much to read."""
    try:
        return await aside(len(patch) + 64 * len(run.parsed.outcomes), judge, row, run, patch)
    except TooHard as error:
        raise EnvironmentFault(f"task {row.task_id}: the patch cannot be judged: {error}") from error


def judge(row: SweRow, run: TestRun, patch: bytes, *, log_chars: int = 4000) -> Grade:
    """The verdict on a run. An empty FAIL_TO_PASS is refused: it would make every patch a success."""
    if not row.fail_to_pass:
        raise TaskError(f"task {row.task_id}: FAIL_TO_PASS is empty, nothing can be graded")
    suspicious = [*run.parsed.suspicious, *patch_flags(patch, row.hidden_targets)]
    replaced = [flag for flag in suspicious if flag.startswith(REPLACES)]
    fixed = _split(row.fail_to_pass, run.parsed.outcomes, _PASS)
    kept = _split(row.pass_to_pass, run.parsed.outcomes, _STAY)
    unlike = _unlike(row.expected, run.parsed.outcomes) if row.expected is not None else []
    failed = bool(unlike if row.expected is not None else fixed["failed"] or kept["failed"])
    resolved = not (run.reason or failed or replaced)
    reason = run.reason or (replaced[0] if replaced else "")
    if not resolved and not reason and row.expected is not None:
        reason = f"{len(unlike)} of {len(row.expected)} tests do not end as expected: {', '.join(unlike[:3])}"
    elif not resolved and not reason:
        reason = f"{len(fixed['failed'])} of {len(row.fail_to_pass)} tests still fail, {len(kept['failed'])} broke"
    detail: dict[str, Any] = {
        "resolved": resolved,
        "reason": reason,
        "fail_to_pass": fixed,
        "pass_to_pass": kept,
        "suspicious": suspicious,
        "exit_code": run.exit_code,
        "test_seconds": round(run.seconds, 4),
        "log_tail": run.log[-log_chars:],
    }
    return Grade(1.0 if resolved else 0.0, detail, patch)


def _split(names: Iterable[str], outcomes: Mapping[str, Outcome], good: tuple[Outcome, ...]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {"passed": [], "failed": []}
    for name in names:
        parts["passed" if outcomes.get(name) in good else "failed"].append(name)
    return parts


def _unlike(expected: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Tests that ended otherwise, are missing, or are not expected at all. Skipped tests are in no such list."""
    ended = {name: str(outcome) for name, outcome in outcomes.items() if outcome in _ENDED}
    return sorted(name for name in {*expected, *ended} if expected.get(name) != ended.get(name))


REPLACES = "the patch replaces the test runner"
_NEW_FILE = re.compile(rb"^diff --git ([^\n]*)\nnew file mode", re.MULTILINE)
_RUNNER_FILE = re.compile(
    rb"(?:[^/\n]+/)?(?:unittest|pytest|_pytest|pluggy)(?:/__init__)?\.py|"
    rb"(?:.*/)?(?:sitecustomize|usercustomize)\.py|.*\.pth"
)
_CONFIG_FILE = re.compile(
    rb"^\+\+\+ b/(?P<path>(?:[^\n]*/)?(?:conftest\.py|pytest\.ini|tox\.ini|setup\.cfg|pyproject\.toml))$", re.MULTILINE
)
_MOST_FLAGS = 20
_MOST_SUSPICIOUS, _LONGEST_FLAG = 100, 1000
_MOST_TESTS = 50_000
"""Of a log, beside those that the row names."""
_LONGEST_PATH = 4096
_WRITTEN = re.compile(rb"^\+\+\+ b/([^\n]*)$", re.MULTILINE)
_FORGERY = re.compile(
    rb"^\+.*(?:\.\.\. ok\b|Ran \d+ tests?|os\._exit|TextTestResult|TextTestRunner|addSuccess|"
    rb"\bPASSED\b|pytest_runtest|>>>>> (?:Start|End) Test Output)",
    re.MULTILINE,
)


def patch_flags(patch: bytes, hidden: Iterable[str] = ()) -> list[str]:
    """What in a patch could change how tests report. Files that shadow the runner are decisive, the rest is shown."""

    def found(pattern: re.Pattern[bytes]) -> Iterator[str]:
        for match in itertools.islice(pattern.finditer(patch), _MOST_FLAGS):
            yield match[match.lastindex or 0][:400].decode("utf-8", "replace")

    runners = (name for names in _NEW_FILE.findall(patch) for name in _new_names(names) if _RUNNER_FILE.fullmatch(name))
    first = itertools.islice(runners, _MOST_FLAGS)
    flags = list(dict.fromkeys(f"{REPLACES}: {path.decode('utf-8', 'replace')}" for path in first))
    flags += [f"the patch changes test configuration: {path}" for path in found(_CONFIG_FILE)]
    flags += [f"the patch writes like a test report: {line[:120]}" for line in found(_FORGERY)]
    flags += [
        f"the patch writes where hidden tests go (they were put back): {path}"
        for path in _reached(set(_WRITTEN.findall(patch)), hidden)
    ]
    return flags[:_MOST_FLAGS]


def _new_names(names: bytes) -> tuple[bytes, ...]:
    """What `a/X b/X` can name: its half, and what stands behind the last ` b/`. Longer paths no system takes."""
    half, last = names[2 : len(names) // 2], names.rpartition(b" b/")[2]
    return tuple(name for name in (half, last) if len(name) <= _LONGEST_PATH)


def _reached(written: Iterable[bytes], hidden: Iterable[str]) -> list[str]:
    """Those of `hidden` that are written, or that something is written below."""
    wanted = {path.encode(): path for path in hidden}
    longest = max(map(len, wanted), default=0)
    found = set()
    for path in written:
        ends = (at for at, byte in enumerate(path[: longest + 1]) if byte == 0x2F)
        found |= {path[:end] for end in (*ends, len(path)) if path[:end] in wanted}
    return [path for raw, path in wanted.items() if raw in found]
