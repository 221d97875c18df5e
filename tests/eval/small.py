"""A SWE-bench row that runs wherever git and python3 are: the repository is in it, its runner writes Django's report.

So the whole path (apply, eval script, official verdict, findings) is tested on the embedded sandbox too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.gitobjects import commit_id
from data.task import Task
from envs.sandbox.contract import SandboxBackend
from envs.sandbox.embedded import EmbeddedBackend
from eval.swebench.grade import Grader, GradeSettings, Observer
from eval.swebench.official import Harness
from eval.swebench.outcome import Graded
from eval.swebench.predictions import Prediction
from eval.swebench.rows import HarnessRow, harness_row
from eval.swebench.store import EvalFolder

CHECK = """\
import sys, time
from pathlib import Path
sys.path.insert(0, ".")
ran = 0
for line in Path("tests.txt").read_text().splitlines():
    name, code = line.split(" = ", 1)
    ran += 1
    try:
        good = eval(code, {"__import__": __import__})
    except Exception as error:
        print(repr(error))
        good = False
    print(f"{name} (small.Tests) ... " + ("ok" if good else "FAIL"), flush=True)
print("-" * 70 + f"\\nRan {ran} tests in 0.001s\\n")
"""
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "check.py": CHECK,
    "tests.txt": "test_old = True\n",
    "crlf.txt": "one\r\ntwo\r\n",
    "latin.txt": "plain\n",
}
GOLD = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
NEW_TESTS = "test_add = __import__('calc').add(1, 2) == 3\n"
F2P, P2P = "test_add (small.Tests)", "test_old (small.Tests)"


def hidden_patch(lines: str) -> str:
    added = "".join(f"+{line}\n" for line in lines.splitlines())
    head = "diff --git a/tests.txt b/tests.txt\n--- a/tests.txt\n+++ b/tests.txt\n"
    return f"{head}@@ -1 +1,{1 + len(lines.splitlines())} @@\n test_old = True\n{added}"


def eval_script(patch: str, command: str = "python3 check.py", base: str = "") -> str:
    base = base or commit_id(FILES)
    return (
        f"#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit checkout {base} tests.txt\n"
        f"git apply -v - <<'EOF_1'\n{patch}\nEOF_1\n: '>>>>> Start Test Output'\n{command}\n"
        f": '>>>>> End Test Output'\ngit checkout {base} tests.txt\n"
    )


def small_task(instance_id: str = "small__one-1", *, tests: str = NEW_TESTS, command: str = "python3 check.py",
               **columns: Any) -> Task:  # fmt: skip
    patch = hidden_patch(tests)
    names = [f"{line.split(' = ')[0]} (small.Tests)" for line in tests.splitlines()]
    row: dict[str, Any] = {
        "instance_id": instance_id,
        "repo": "small/one",
        "version": "1",
        "base_commit": commit_id(FILES),
        "problem_statement": "add() subtracts",
        "patch": GOLD,
        "test_patch": patch,
        "FAIL_TO_PASS": names,
        "PASS_TO_PASS": [P2P],
        "image": "sao-base:latest",
        "eval_script": eval_script(patch, command),
        "log_parser": "parse_log_django",
        "eval_type": "pass_and_fail",
        "files": FILES,
        "portable": True,
    }
    return Task(instance_id, "swe", "test", {**row, **columns}, "small")


def small_row(instance_id: str = "small__one-1", **more: Any) -> HarnessRow:
    return harness_row(small_task(instance_id, **more))


def diff(files: Mapping[str, bytes | None], modes: Mapping[str, int] | None = None, *options: str) -> bytes:
    """git's patch from the small repository to one with these files (None deletes)."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def git(*words: str) -> bytes:
            command = ["git", "-c", "core.autocrlf=false", *words]
            return subprocess.run(command, cwd=root, env=env, check=True, capture_output=True).stdout

        git("init", "-q")
        for name, text in FILES.items():
            (root / name).write_bytes(text.encode())
        git("add", "-A")
        base = git("write-tree").decode().strip()
        for name, data in files.items():
            path = root / name
            path.unlink(missing_ok=True)
            if data is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for name, mode in (modes or {}).items():
            (root / name).chmod(mode)
        git("add", "-A", "-f")
        return git("diff-index", "--cached", "-p", "--binary", "-M", *options, base)


def grade_small(
    work: Sequence[tuple[HarnessRow, str | None]],
    folder: Path,
    *,
    backend: Callable[[], SandboxBackend] = lambda: EmbeddedBackend("small-tests"),
    settings: GradeSettings | None = None,
    observer: Observer | None = None,
    harness: Callable[[], Harness] = Harness,
) -> list[Graded]:
    async def go() -> list[Graded]:
        live = backend()
        try:
            async with harness() as official:
                with EvalFolder(folder) as store:
                    grader = Grader(live, official, store, settings or GradeSettings(workers=2))
                    pairs = [(row, Prediction(row.instance_id, "tests", patch)) for row, patch in work]
                    return await grader.run(pairs, observer)
        finally:
            await live.close()

    return asyncio.run(go())
