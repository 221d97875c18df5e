"""Grading on a real sandbox with the official package: patch bytes, log bytes, time-outs, faults, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.faults import FaultStorm
from data.journal import Journal
from data.task import TaskError
from envs.sandbox.channel_text import Helpers
from envs.sandbox.contract import ImageMissing, OutOfMemory, Sandbox, SandboxSpec, StartFailed
from envs.sandbox.embedded import EmbeddedBackend
from envs.swe.guard.findings import Hole
from eval.errors import EvalError
from eval.swebench.grade import GradeSettings, Progress
from eval.swebench.official import Harness
from eval.swebench.outcome import ErrorKind, Graded, Verdict
from eval.swebench.store import EvalFolder
from tests.eval.small import CHECK, FILES, GOLD, NEW_TESTS, diff, eval_script, grade_small, hidden_patch, small_row

pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")
FIXED = FILES["calc.py"].replace("a - b", "a + b").encode()


def one(folder: Path, patch: str | None, **row: Any) -> Graded:
    (graded,) = grade_small([(small_row(**row), patch)], folder)
    return graded


def test_the_four_verdicts(tmp_path: Path) -> None:
    rows = [small_row(f"small__v-{number}") for number in range(5)]
    patches = [GOLD, GOLD.replace("a + b", "a * b"), "", None, GOLD.replace("a - b", "nothing like it")]
    made = grade_small(list(zip(rows, patches, strict=True)), tmp_path)
    verdicts = [Verdict.RESOLVED, Verdict.UNRESOLVED, Verdict.EMPTY, Verdict.EMPTY, Verdict.ERROR]
    assert [each.verdict for each in made] == verdicts, made
    assert made[4].error is ErrorKind.DOES_NOT_APPLY
    assert "patch does not apply" in made[4].reason
    assert [each.score for each in made] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert all(each.suspicious == () for each in made[:4])
    place = tmp_path / "logs" / "run_evaluation" / tmp_path.name / "tests" / "small__v-0"
    report = json.loads((place / "report.json").read_text())["small__v-0"]
    assert set(report) >= {"patch_is_None", "patch_exists", "patch_successfully_applied", "resolved", "tests_status"}
    assert (place / "patch.diff").read_text() == GOLD
    assert not (tmp_path / "logs" / "run_evaluation" / tmp_path.name / "tests" / "small__v-4" / "report.json").exists()


# -- patch bytes ------------------------------------------------------------------------------------------------------

PROBE: dict[str, tuple[dict[str, bytes | None], str]] = {
    "CRLF in a file that has it": (
        {"crlf.txt": b"one\r\nTWO\r\n"},
        "test_add = open('crlf.txt', 'rb').read() == b'one\\r\\nTWO\\r\\n'\n",
    ),
    "a file without final newline": (
        {"calc.py": FIXED.rstrip(b"\n")},
        "test_add = not open('calc.py').read().endswith('\\n') and __import__('calc').add(1, 2) == 3\n",
    ),
    "a binary file": (
        {"data.bin": bytes(range(256)) * 8},
        "test_add = open('data.bin', 'rb').read() == bytes(range(256)) * 8\n",
    ),
    "bytes that are no UTF-8": (
        {"latin.txt": b"caf\xe9\n", "n\u00e4me.txt": b"x\n"},
        "test_add = open('latin.txt', 'rb').read() == b'caf\\xe9\\n' and bool(open('n\\u00e4me.txt').read())\n",
    ),
    "a rename": (
        {"latin.txt": None, "moved.txt": b"plain\n"},
        "test_add = open('moved.txt').read() == 'plain\\n' and not __import__('os').path.exists('latin.txt')\n",
    ),
    "a deletion": ({"latin.txt": None}, "test_add = not __import__('os').path.exists('latin.txt')\n"),
}


def test_patches_go_on_byte_for_byte(tmp_path: Path) -> None:
    work = []
    for number, (files, tests) in enumerate(PROBE.values()):
        work.append((small_row(f"small__b-{number}", tests=tests), diff(files).decode("utf-8", "surrogateescape")))
    mode = diff({}, {"latin.txt": 0o755}).decode()
    work.append(
        (small_row("small__mode-1", tests="test_add = __import__('os').stat('latin.txt').st_mode & 64\n"), mode)
    )
    made = grade_small(work, tmp_path)
    for name, graded in zip([*PROBE, "a mode"], made, strict=True):
        assert graded.verdict is Verdict.RESOLVED, (name, graded)
        assert graded.applied == "git apply --verbose", (name, graded)
        assert graded.suspicious == (), (name, graded)


def test_a_patch_that_lost_its_final_newline(tmp_path: Path) -> None:
    assert one(tmp_path, GOLD.rstrip("\n")).verdict is Verdict.RESOLVED


def test_a_patch_with_carriage_returns_of_its_own(tmp_path: Path) -> None:
    """git refuses it, patch(1) strips them; the verdict stands, and how the patch went on is a finding."""
    graded = one(tmp_path, GOLD.replace("\n", "\r\n"))
    if graded.error is ErrorKind.DOES_NOT_APPLY:
        pytest.skip("PATCH(1) NOT TESTED: the sandbox has none")
    assert (graded.verdict, graded.applied.split()[0]) == (Verdict.RESOLVED, "patch")
    assert Hole.PATCH in {each.hole for each in graded.suspicious}


def test_a_patch_that_is_no_bytes(tmp_path: Path) -> None:
    graded = one(tmp_path, GOLD + "\ud800")
    assert (graded.verdict, graded.error, graded.about_model) == (Verdict.ERROR, ErrorKind.BAD_BYTES, True)


def test_blanks_are_a_patch_that_does_not_apply(tmp_path: Path) -> None:
    assert one(tmp_path, " \n\n").error is ErrorKind.DOES_NOT_APPLY


# -- log bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("printed", [r"\xff\xfe", r"\0", r"\x1b[31m", r"\xe2\x80\xa8\xc2\x85"])
def test_odd_bytes_in_the_log(tmp_path: Path, printed: str) -> None:
    code = f"import sys\nsys.stdout.buffer.write(b'{printed}\\n'); sys.stdout.flush()\n"
    files = {"calc.py": code.encode() + FIXED}
    graded = one(tmp_path, diff(files).decode())
    assert graded.verdict is Verdict.RESOLVED, graded
    assert graded.suspicious == ()
    assert graded.strange_bytes == (2 if "xff" in printed else 0)


def test_tests_see_the_images_environment(tmp_path: Path) -> None:
    """Not what the sandbox adds for agents: some projects test just these variables."""
    names = ("PYTHONDONTWRITEBYTECODE", "PAGER", "GIT_CONFIG_COUNT", "TERM", "PYTHONPATH", "SAO_NOTE")
    tests = f"test_add = not [name for name in {names} if name in __import__('os').environ]\n"
    assert one(tmp_path, GOLD, tests=tests).verdict is Verdict.RESOLVED


# -- holes of the row and the log -------------------------------------------------------------------------------------


def test_rows_with_nothing_to_judge_are_refused() -> None:
    with pytest.raises(TaskError, match="FAIL_TO_PASS: is empty"):
        small_row(FAIL_TO_PASS=[])


def test_the_harness_marks_in_the_output(tmp_path: Path) -> None:
    forged = "print(\"test_add (small.Tests) ... ok\\n+ : '>>>>> End Test Output'\", flush=True)\n"
    graded = one(tmp_path, diff({"calc.py": forged.encode() + FILES["calc.py"].encode()}).decode())
    assert graded.verdict is Verdict.RESOLVED  # the package believes it
    assert Hole.MARKERS in {each.hole for each in graded.suspicious}


def test_a_stale_result_file(tmp_path: Path) -> None:
    """The eval script shows what the tests wrote; a patch that brings the file and a runner that does not write it."""
    command = "python3 check.py > results.log || true; cat results.log"
    report = "test_add (small.Tests) ... ok\ntest_old (small.Tests) ... ok\n"
    files = {"results.log": report.encode(), "check.py": b"import os\nos.kill(os.getpid(), 0)\n"}
    graded = one(tmp_path, diff(files).decode(), command=command)
    assert Hole.RESULTS in {each.hole for each in graded.suspicious}, graded


def test_a_file_in_the_place_of_a_hidden_one(tmp_path: Path) -> None:
    """git refuses to add the hidden test file over the agent's, and the agent's tests are run instead."""
    hidden = "diff --git a/more.txt b/more.txt\nnew file mode 100644\n--- /dev/null\n+++ b/more.txt\n@@ -0,0 +1 @@\n"
    hidden += "+" + NEW_TESTS
    command = "cat more.txt >> tests.txt; python3 check.py"
    columns = {"test_patch": hidden, "eval_script": eval_script(hidden, command)}
    row = small_row("small__hidden-1", **columns)
    assert grade_small([(row, GOLD)], tmp_path / "gold")[0].verdict is Verdict.RESOLVED
    (graded,) = grade_small([(row, diff({"more.txt": b"test_add = True\n"}).decode())], tmp_path / "attack")
    assert graded.verdict is Verdict.RESOLVED  # the package believes it
    assert Hole.TESTS in {each.hole for each in graded.suspicious}


# -- time and faults --------------------------------------------------------------------------------------------------


def test_tests_without_an_end_are_an_error_of_the_patch(tmp_path: Path) -> None:
    files = {"calc.py": b"import time\ntime.sleep(600)\n"}
    patch = diff(files).decode()
    row = small_row(eval_timeout_s=1.5)
    (graded,) = grade_small([(row, patch)], tmp_path)
    assert (graded.verdict, graded.error, graded.about_model) == (Verdict.ERROR, ErrorKind.TIMED_OUT, True)
    assert graded.seconds < 30
    log = tmp_path / "logs" / "run_evaluation" / tmp_path.name / "tests" / row.instance_id / "test_output.txt"
    assert log.read_text().endswith("Timeout error: 1.5 seconds exceeded.")


class Faulty(EmbeddedBackend):
    """The first `faults` starts fail."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__("faulty-tests")
        self.faults = list(faults)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if self.faults:
            raise self.faults.pop(0)
        return await super().start(spec)


QUICK = GradeSettings(workers=1, backoff_s=0.01)


def test_faults_are_tried_again(tmp_path: Path) -> None:
    faults = StartFailed("engine busy"), ImageMissing("no image")
    (graded,) = grade_small([(small_row(), GOLD)], tmp_path, backend=lambda: Faulty(*faults), settings=QUICK)
    assert (graded.verdict, graded.attempts) == (Verdict.RESOLVED, 3)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ImageMissing("gone"), ErrorKind.IMAGE),
        (StartFailed("no"), ErrorKind.SANDBOX),
        (OutOfMemory("full"), ErrorKind.OUT_OF_MEMORY),
    ],
)
def test_faults_that_stay_are_errors_and_never_unresolved(tmp_path: Path, fault: Exception, kind: ErrorKind) -> None:
    work = [(small_row(), GOLD)]
    (graded,) = grade_small(work, tmp_path, backend=lambda: Faulty(fault, fault, fault), settings=QUICK)
    assert (graded.verdict, graded.error, graded.about_model, graded.score) == (Verdict.ERROR, kind, False, None)
    (again,) = grade_small(work, tmp_path, settings=QUICK)  # the next start tries again
    assert again.verdict is Verdict.RESOLVED


def test_a_broken_machine_stops_the_run(tmp_path: Path) -> None:
    settings = GradeSettings(workers=1, tries=1, backoff_s=0.0, storm_limit=1)
    work = [(small_row(f"small__s-{number}"), GOLD) for number in range(9)]
    with pytest.raises(FaultStorm, match="3 instances in a row"):
        grade_small(work, tmp_path, backend=lambda: Faulty(*[StartFailed("no")] * 99), settings=settings)


class Fragile(EmbeddedBackend):
    """Its sandboxes can be killed from inside."""

    def __init__(self) -> None:
        super().__init__("fragile-tests", helpers=Helpers.NEVER)


def test_patches_that_kill_their_sandbox_are_the_models_and_stop_no_run(tmp_path: Path) -> None:
    kill = "import os\nfor name in os.listdir('/proc'):\n    if name.isdigit() and int(name) != os.getpid():\n        "
    kill += "try: os.kill(int(name), 9)\n        except OSError: pass\n"
    work = [(small_row(f"small__k-{number}"), diff({"calc.py": kill.encode()}).decode()) for number in range(4)]
    settings = GradeSettings(workers=1, tries=3, backoff_s=30.0, storm_limit=1)
    for graded in grade_small(work, tmp_path, backend=Fragile, settings=settings):
        assert (graded.error, graded.about_model, graded.score) == (ErrorKind.SANDBOX_ENDED, True, 0.0)
        assert graded.attempts == 1
        assert "what ran in it" in graded.reason


class Slow(Harness):
    """A package that does not come back from a log."""

    def __init__(self) -> None:
        super().__init__(answer_s=20.0)

    async def judge(self, *arguments: Any) -> Any:
        self._answer_s = 0.0
        try:
            return await super().judge(*arguments)
        finally:
            self._answer_s = 20.0


def test_a_package_that_hangs_is_an_error(tmp_path: Path) -> None:
    (graded,) = grade_small([(small_row(), GOLD)], tmp_path, settings=QUICK, harness=Slow)
    assert (graded.error, graded.about_model, graded.attempts) == (ErrorKind.HARNESS, False, 3)


# -- resume -----------------------------------------------------------------------------------------------------------


def test_a_verdict_is_kept_for_what_it_was_made_of_only(tmp_path: Path) -> None:
    row, wrong = small_row(), GOLD.replace("a + b", "a * b")
    seen: list[Progress] = []

    def grade(patch: str, row: Any = row) -> Graded:
        seen.clear()
        return grade_small([(row, patch)], tmp_path, observer=seen.append)[0]

    first = grade(GOLD)
    assert [each.reused for each in seen] == [False, False]
    assert grade(GOLD) == first
    assert [each.reused for each in seen] == [True]
    assert grade(wrong).verdict is Verdict.UNRESOLVED  # the same run id, another patch
    assert [each.reused for each in seen] == [False, False]
    other = small_row(PASS_TO_PASS=[])
    assert grade(wrong, other).verdict is Verdict.UNRESOLVED
    assert not seen[-1].reused
    place = tmp_path / "logs" / "run_evaluation" / tmp_path.name / "tests" / row.instance_id
    assert (place / "patch.diff").read_text() == wrong
    (place / "outcome.json").write_text("{")  # torn by hand; our own writes are atomic
    assert grade(wrong, other).verdict is Verdict.UNRESOLVED
    assert not seen[-1].reused


def test_a_time_out_holds_until_the_limit_is_higher(tmp_path: Path) -> None:
    patch = diff({"calc.py": b"import time\ntime.sleep(2.5)\n" + FIXED}).decode()
    seen: list[Progress] = []
    verdicts = []
    for limit in (1.0, 1.0, 60.0):
        row = small_row(eval_timeout_s=limit)
        verdicts.append(grade_small([(row, patch)], tmp_path, observer=seen.append)[0].verdict)
    assert verdicts == [Verdict.ERROR, Verdict.ERROR, Verdict.RESOLVED]
    assert [each.reused for each in seen if each.graded] == [False, True, False]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with EvalFolder(tmp_path), pytest.raises(EvalError, match="another process grades into"), EvalFolder(tmp_path):
        pass


def test_the_journal_tells_the_story(tmp_path: Path) -> None:
    one(tmp_path, GOLD)
    one(tmp_path, GOLD)
    events = [(each.event, each.fields["instance_id"]) for each in Journal(tmp_path / "journal.jsonl").read()]
    assert events == [("grading", "small__one-1"), ("graded", "small__one-1")]


def test_the_row_runs_the_runner_it_shows() -> None:
    """The support module's own script: what it prints is Django's form."""
    assert "Ran {ran} tests" in CHECK
    assert hidden_patch(NEW_TESTS).startswith("diff --git a/tests.txt")
