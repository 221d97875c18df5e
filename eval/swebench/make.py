"""A row in SWE-bench's own format made from a packed task, its test lists measured by the official package.

Promises: the eval script has the form of SWE-bench's (activate, the test files of `base_commit`, the hidden tests put
on, the tests between the marks); a test is in a list under the name that the package's own log parser gives it, also
where that cuts a name short; FAIL_TO_PASS and PASS_TO_PASS come from really running without and with the fix, under the
same limits and by the same steps as any grading. A fix that turns no test green makes no row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from data.pack import append_row, pack
from data.real_task import RealTask
from data.task import Task, TaskError
from envs.sandbox.contract import SandboxBackend
from envs.swe.git import quote
from envs.swe.real import prepared_real
from envs.swe.row import read_row
from envs.swe.validate import TestLists, with_lists
from eval.swebench.execute import EvalLimits, evaluate, spec
from eval.swebench.official import Harness
from eval.swebench.rows import HarnessRow

PARSERS: Mapping[str, str] = {"pytest": "parse_log_pytest", "unittest": "parse_log_django"}
"""The package's parser for each runner that our packing knows (Django's report is unittest's)."""
_PASS, _STAY = ("PASSED", "XFAIL"), ("PASSED", "XFAIL", "SKIPPED")
_OLD_FILE = re.compile(r"^--- a/(.+)$", re.MULTILINE)


def official_draft(packed: Task, *, repo: str, version: str, test_command: str, image: str = "") -> Task:
    """`packed` (from data.pack) with SWE-bench's columns; its lists are still to be measured.

    With `image` the repository stands in it, else the row keeps its bundle and runs where python3 suffices."""
    row = dict(packed.row)
    if row["log_parser"] not in PARSERS:
        raise TaskError(f"task {packed.task_id}: the official package's parser for {row['log_parser']!r} is not known")
    script = eval_script(row["repo_dir"], row["base_commit"], row["test_patch"], test_command)
    row |= {
        "repo": repo,
        "version": version,
        "hints_text": "",
        "created_at": "",
        "environment_setup_commit": row["base_commit"],
        "eval_script": script,
        "log_parser": PARSERS[row["log_parser"]],
        "image": image or read_row(packed, need_tests=False).image,
    }
    if image:
        del row["bundle"]
    else:
        row["portable"] = True
    return dataclasses.replace(packed, row=row)


def eval_script(repo_dir: str, base: str, test_patch: str, test_command: str) -> str:
    files = " ".join(quote(path) for path in dict.fromkeys(_OLD_FILE.findall(test_patch)))
    restore = f"git checkout {base} {files}\n" if files else ""
    mark = "EOF_TESTS"
    while mark in test_patch:
        mark += "_"
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        f"cd {quote(repo_dir)}",
        f"git config --global --add safe.directory {quote(repo_dir)}",
        "git status",
    ]
    start, end = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"
    tests = f"git apply -v - <<'{mark}'\n{test_patch}\n{mark}\n" if test_patch else ""
    return "\n".join(lines) + f"\n{restore}{tests}{start}\n{test_command}\n{end}\n{restore}"


async def measure(draft: Task, backend: SandboxBackend, harness: Harness, limits: EvalLimits | None = None) -> Task:
    """The finished row. Raises TaskError, SandboxError, EnvironmentFault, HarnessFault."""
    row = HarnessRow(draft, read_row(draft, need_tests=False), draft.row)
    limits = limits or EvalLimits()
    before, _ = await _statuses(row, backend, harness, b"", limits)
    after, log = await _statuses(row, backend, harness, row.swe.patch, limits)
    turned = sorted(name for name, said in after.items() if said in _PASS and before.get(name) not in _STAY)
    if not turned:
        raise TaskError(
            f"task {draft.task_id}: no test fails before the fix and passes after it ({len(after)} tests seen by "
            f"{draft.row['log_parser']}). End of the log with the fix:\n{log[-2000:]}"
        )
    kept = sorted(name for name, said in after.items() if said in _PASS and before.get(name) in _PASS)
    left_out = sorted(set(after) - {*turned, *kept})
    return with_lists(draft, TestLists(tuple(turned), tuple(kept), tuple(left_out)))


async def _statuses(
    row: HarnessRow, backend: SandboxBackend, harness: Harness, patch: bytes, limits: EvalLimits
) -> tuple[Mapping[str, str], str]:
    async with await backend.start(spec(row, limits)) as sandbox:
        run = await evaluate(sandbox, row, await harness.script(row), patch, limits)
    if run.why_not or run.timed_out:
        why = run.why_not or "the tests did not end in time"
        raise TaskError(f"task {row.instance_id}: its tests could not be run {'with' if patch else 'without'} the fix: "
                        f"{why[-1500:]}")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="sao-measure-") as folder:
        log = Path(folder, "test_output.txt")
        await asyncio.to_thread(run.save_log, log)
        prediction = {"instance_id": row.instance_id, "model_name_or_path": "measure", "model_patch": "measured"}
        return (await harness.judge(row, prediction, log)).statuses, run.log


async def make_real_row(real: RealTask, out: Path, cache: Path, backend: SandboxBackend, harness: Harness) -> Task:
    """One of the real tasks as a row of the rows file `out`: with Docker in an image of its own, made here; embedded
    with its bundle beside the rows. Raises what `measure` raises, and DownloadFailed."""
    async with prepared_real(real, cache, backend, own_image=True) as made:
        # Where the repository stands in an image, the packed row's bundle is not kept.
        with tempfile.TemporaryDirectory(prefix="sao-rows-") as folder:
            packed = pack(
                made.repository.folder,
                base=made.repository.base,
                fix=made.repository.fix,
                tests=real.tests,
                test_command=real.test_command,
                problem_statement=real.problem,
                out=(Path(folder) if made.image else out.parent) / out.name,
                instance_id=real.instance_id,
            )
    draft = official_draft(
        packed, repo=real.repo, version=real.base.version, test_command=real.test_command, image=made.image
    )
    task = await measure(draft, backend, harness)
    out.parent.mkdir(parents=True, exist_ok=True)
    append_row(out, task.row)
    return dataclasses.replace(task, source=str(out), base_dir=str(out.parent))
