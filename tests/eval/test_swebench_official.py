"""The official package in its own process: the verdicts that ours and the whole package give, and its summary."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from envs.swe.guard import Judged as Subject
from envs.swe.guard import Told, list_findings
from envs.swe.guard.log import log_findings
from eval.errors import EvalError
from eval.swebench import official
from eval.swebench.execute import LADDER
from eval.swebench.grade import GradeSettings
from eval.swebench.official import Harness, HarnessFault, Judged
from eval.swebench.predictions import Prediction
from eval.swebench.report import run_report
from eval.swebench.resolve import resolves
from tests.eval.small import F2P, GOLD, P2P, diff, grade_small, small_row
from tests.eval.toy import toy_task
from tests.shared_data import need_shared

pytest.importorskip("swebench", reason="SWE-BENCH NOT TESTED: the extra `eval` is not installed")


def test_all_real_reports_get_their_own_flag() -> None:
    """500 reports of SWE-bench Verified, 371 resolved."""
    counts = {True: 0, False: 0}
    with gzip.open(need_shared("swe", "verified500_reports_gemini3pro.jsonl.gz"), "rt") as file:
        for line in file:
            ((name, report),) = json.loads(line).items()
            assert resolves(report["tests_status"]) is report["resolved"], name
            lists = [[*part["success"], *part["failure"]] for part in list(report["tests_status"].values())[:2]]
            assert resolves(report["tests_status"], *lists) is report["resolved"], name
            counts[report["resolved"]] += 1
    assert counts == {True: 371, False: 129}


def test_what_resolves() -> None:
    def status(f2p: str, p2p: str) -> dict[str, dict[str, list[str]]]:
        def split(text: str) -> dict[str, list[str]]:
            return {"success": [c for c in text if c.isupper()], "failure": [c for c in text if c.islower()]}

        return {"FAIL_TO_PASS": split(f2p), "PASS_TO_PASS": split(p2p)}

    assert resolves(status("AB", "C"))
    assert resolves(status("A", ""))
    assert not resolves(status("Ab", "C"))
    assert not resolves(status("A", "Cd"))
    assert not resolves(status("", "C"))  # the package says resolved
    assert not resolves(status("A", "C"), ["A", "B"], ["C"])  # a test in neither list: the package leaves it out
    assert not resolves(None)
    assert not resolves({})


def ask(logs: list[str], folder: Path) -> list[Judged]:
    row = small_row()

    async def go() -> list[Judged]:
        async with Harness() as harness:
            made = []
            for number, log in enumerate(logs):
                path = folder / f"{number}.txt"
                path.write_text(log, newline="")
                made.append(await harness.judge(row, Prediction(row.instance_id, "m", GOLD).official(), path))
            return made

    return asyncio.run(go())


def test_where_no_guard_fires_our_verdict_is_the_packages(tmp_path: Path) -> None:
    """Logs put together at random from lines that tests, runners and forgers write."""
    draw = random.Random(6)
    lines = [
        f"{name} ... {word}" for name in (F2P, P2P, "test_x (a.B)") for word in ("ok", "FAIL", "ERROR", "skipped 'x'")
    ]
    lines += [
        "Ran 2 tests in 0.001s",
        "Ran 9 tests in 1s",
        f"FAIL: {F2P}",
        "ok",
        "words",
        "",
        "+ : '>>>>> End Test Output'",
    ]
    ends = ["+ : '>>>>> End Test Output'\n+ echo '>>>>> Test Exit Code: 0'\n>>>>> Test Exit Code: 0\n", ""]
    good = [f"{F2P} ... ok", f"{P2P} ... ok"]
    logs = []
    for number in range(400):
        inner = draw.choices(lines, k=draw.randint(0, 6)) + (good if number % 2 else [])
        draw.shuffle(inner)
        body = "\n".join([*inner, ""])
        logs.append(f"+ : '>>>>> Start Test Output'\n{body}{ends[draw.random() < 0.05]}")
    row = small_row()
    script = (
        ": '>>>>> Start Test Output'\npython3 check.py\n: '>>>>> End Test Output'\necho \">>>>> Test Exit Code: $X\"\n"
    )
    seen = {True: 0, False: 0}
    for log, judged in zip(logs, ask(logs, tmp_path), strict=True):
        found = [
            *log_findings(Subject(row.swe), Told(log, script), judged.statuses),
            *list_findings(Subject(row.swe), judged.report),
        ]
        ours = resolves(judged.report.get("tests_status"), row.swe.fail_to_pass, row.swe.pass_to_pass)
        if not found:
            assert ours is judged.report["resolved"], log
            seen[ours] += 1
    assert min(seen.values()) > 50, seen


def test_odd_test_ids(tmp_path: Path) -> None:
    """Blanks, ids cut off in the middle of a parameter (676 in Verified), words beyond ASCII."""
    ids = ["t.py::test[log(photon", "t.py::tést[ü]", "t.py::test[a]"]
    row = small_row(log_parser="parse_log_pytest_v2", FAIL_TO_PASS=ids[:2], PASS_TO_PASS=[ids[2], "t.py::test[b c]"])
    lines = [
        "PASSED t.py::test[log(photon cm)]",
        "PASSED t.py::tést[ü]",
        "PASSED t.py::test[a]",
        "PASSED t.py::test[b c]",
    ]
    log = tmp_path / "log"

    async def go(lines: list[str]) -> Judged:
        log.write_text("\n".join(["+ : '>>>>> Start Test Output'", *lines, "+ : '>>>>> End Test Output'"]) + "\n")
        async with Harness() as harness:
            return await harness.judge(row, Prediction(row.instance_id, "m", GOLD).official(), log)

    judged = asyncio.run(go(lines))
    assert judged.report["resolved"]
    assert resolves(judged.report["tests_status"], row.swe.fail_to_pass, row.swe.pass_to_pass)
    judged = asyncio.run(go([line.replace("PASSED t.py::test[log", "FAILED t.py::test[log") for line in lines]))
    assert not judged.report["resolved"]
    assert not resolves(judged.report["tests_status"], row.swe.fail_to_pass, row.swe.pass_to_pass)


def test_a_log_that_is_no_utf8_breaks_the_package_and_only_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff")
    row = small_row()

    async def go() -> None:
        async with Harness() as harness:
            with pytest.raises(HarnessFault, match="UnicodeDecodeError"):
                await harness.judge(row, Prediction(row.instance_id, "m", GOLD).official(), path)
            assert "Start Test Output" in await harness.script(row)  # the same process goes on
            assert harness.restarts == 0

    asyncio.run(go())


def test_the_short_way_in_is_the_package(tmp_path: Path) -> None:
    """Stepping around its heavy imports changes neither script nor report; our ladder of patch commands is its own."""
    row = dict(toy_task().row)
    log = tmp_path / "log"
    log.write_text("+ : '>>>>> Start Test Output'\nPASSED test_calc.py::test_add\nFAILED test_calc.py::test_sub - x\n"
                   "+ : '>>>>> End Test Output'\n")  # fmt: skip
    prediction = {"instance_id": row["instance_id"], "model_name_or_path": "m", "model_patch": "x"}
    code = (
        "import json, sys\nfrom swebench.harness.grading import get_eval_report\n"
        "from swebench.harness.utils import make_test_spec\n"
        "from swebench.harness.run_evaluation import GIT_APPLY_CMDS\n"
        "row, prediction, log = json.load(sys.stdin)\nspec = make_test_spec(row)\n"
        "print(json.dumps([spec.eval_script, get_eval_report(spec, prediction, log, True), GIT_APPLY_CMDS]))\n"
    )
    given = json.dumps([row, prediction, str(log)])
    whole = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    script, report, ladder = json.loads(whole.stdout)
    assert tuple(ladder) == LADDER
    requests = [{"op": "script", "row": row}, {"op": "report", "row": row, "prediction": prediction, "log": str(log)}]
    worker = Path(official.__file__).with_name("official_worker.py")
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    short = subprocess.run([sys.executable, str(worker)], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in short.stdout.splitlines()]
    assert answers[0] == {"script": script}
    assert answers[1]["report"] == report
    assert "short way failed" not in short.stderr


def test_our_summary_is_the_official_one(tmp_path: Path) -> None:
    """The package's own summary of the folder that we wrote, field by field."""
    rows = [small_row(f"small__r-{number}", eval_timeout_s=30.0 if number != 4 else 1.0) for number in range(7)]
    slow = diff({"calc.py": b"import time\ntime.sleep(60)\n"}).decode()
    broken = diff({"calc.py": b"raise ModuleNotFoundError('x')\n"}).decode()
    patches = [GOLD, GOLD.replace("a + b", "a * b"), "", GOLD.replace("a - b", "else"), slow, broken]
    given = {
        row.instance_id: Prediction(row.instance_id, "tests", patch) for row, patch in zip(rows, patches, strict=False)
    }
    given["other__set-1"] = Prediction("other__set-1", "tests", "x")
    work = [(row, given[row.instance_id].patch) for row in rows[:6]]
    folder = tmp_path / "run"
    graded = {each.instance_id: each for each in grade_small(work, folder, settings=GradeSettings(workers=3))}
    ours = run_report(rows, given, graded)
    total = ours["resolved_instances"] + ours["unresolved_instances"] + ours["error_instances"]
    assert total + ours["empty_patch_instances"] + len(ours["incomplete_ids"]) == ours["total_instances"] == 7
    code = (
        "import json, sys\nfrom swebench.harness.reporting import make_run_report\n"
        "predictions, rows = json.load(sys.stdin)\n"
        "path = make_run_report(predictions, rows, 'run')\nsys.stderr.write(open(path).read())\n"
    )
    officially = {name: each.official() for name, each in given.items()}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps([officially, [dict(row.row) for row in rows]]),
                          capture_output=True, text=True, cwd=folder, check=True)  # fmt: skip
    theirs = json.loads(done.stderr)
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["unknown_ids"] == ["other__set-1"]
    assert ours["errors_by_kind"] == {"patch_does_not_apply": 1, "tests_timed_out": 1}
    assert ours["coverage"] == 6 / 7


def test_the_version_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("5.0.1", "4.1.0", "6.0.0"):
        monkeypatch.setattr(official.importlib.metadata, "version", lambda name, version=version: version)
        with pytest.raises(EvalError, match=f"swebench {version} is installed, but verdicts are pinned"):
            Harness()

    def missing(name: str) -> str:
        raise official.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(official.importlib.metadata, "version", missing)
    with pytest.raises(EvalError, match=r"not installed: EXTRAS=dev,eval scripts/install.sh"):
        Harness()
