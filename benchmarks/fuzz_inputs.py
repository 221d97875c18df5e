"""Broken inputs through every command that reads a file or a setting: one clear refusal, never a traceback or a hang.

    python -m benchmarks.fuzz_inputs [--count 400] [--seed 0] [--only TEXT] [--run FOLDER] [--list]

Each case (`benchmarks.broken_inputs`) runs the command in a process that has everything imported; one that does not
answer within `--seconds` is ended and counted as a hang. No Docker engine is reachable, so what is read whole ends
there (code 3). What must hold: exit code 0 to 3 (0: what only looks broken, such as a BOM), at most 4,200 characters of
refusal, and after a refusal (code 2) nothing new in the folder. `--count 0` runs all. The last line is JSON: cases,
traceback, hang, written, long, unclear, other (counts), codes, slowest_s.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.broken_inputs import Case, all_cases

MEMORY = 12 << 30
"""Bytes of address space a worker may take: an endless file is a MemoryError, not the machine's end."""
LONGEST = 4200
"""Characters of a refusal that a person reads."""


def judge(case: Case, code: int, said: str, new: list[str]) -> str:
    """What is wrong with how the command took it; empty: nothing."""
    if code not in (0, 1, 2, 3):
        return f"code {code}"
    if code == 0:
        return ""
    if new and code == 2:  # a run folder that waits for an engine is there to be continued
        return f"written: {', '.join(new)[:200]}"
    if len(said) > LONGEST:
        return f"long: {len(said)} characters"
    if code == 2 and case.names and not any(name in said for name in case.names):
        return "unclear: it does not name the file"
    return "" if said.strip() else "unclear: it says nothing"


def tried(case: Case, folder: Path) -> dict[str, Any]:
    """In this process. `problem` is empty where all holds."""
    from typer.testing import CliRunner

    from sao.cli import app
    from sao.errors import exit_code_and_text

    words = case.lay(folder)
    before = set(tree(folder))
    began = time.monotonic()
    here = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, words)
    finally:
        os.chdir(here)
    code, said = done.exit_code, done.output
    problem = ""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        known = exit_code_and_text(done.exception)
        if known is None:
            last = traceback.extract_tb(done.exception.__traceback__)[-3:]
            at = " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(last))
            problem = f"traceback: {type(done.exception).__name__}: {str(done.exception)[:150]!a} at {at}"
        else:
            code, said = known
    problem = problem or judge(case, code, said, [name for name in tree(folder) if name not in before])
    return {"code": code, "problem": problem, "said": said[-600:], "s": round(time.monotonic() - began, 2)}


def tree(folder: Path) -> list[str]:
    """Names of all files; a lock says that somebody looked, no more."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sorted(str(file.relative_to(folder)) for file in found if file.suffix != ".lock" and file.name != "lock")


def serve(run: str | None) -> None:
    """A worker: numbers of cases in, results out."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = all_cases(Path(run) if run else None)
    for name in ("sao.cli", "sao.evaluate", "sao.swebench", "sao.train", "trainer.sft", "datasets"):
        importlib.import_module(name)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SAO_RUNS"] = f"{folder}/runs"
            try:
                result = tried(cases[int(line)], Path(folder))
            except BaseException as error:  # the case's own folder, or what the runner lets out
                result = {"code": 1, "problem": f"traceback: {type(error).__name__}: {error}"[:300], "said": "", "s": 0}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


class Worker:
    def __init__(self, run: str | None, seconds: float) -> None:
        self._run, self._seconds = run, seconds
        self._process: subprocess.Popen[str] | None = None

    def ask(self, number: int) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._seconds)
        line = process.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        self.stop()
        how = f"ended with code {process.returncode}" if ready else f"hang: no answer in {self._seconds:g} s"
        return {"code": None, "problem": how, "said": "", "s": self._seconds}

    def _start(self) -> subprocess.Popen[str]:
        words = [
            sys.executable,
            "-m",
            "benchmarks.fuzz_inputs",
            "--serve",
            *(["--run", self._run] if self._run else []),
        ]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DOCKER_HOST": "unix:///nowhere.sock", "NO_COLOR": "1"}
        made = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert made.stdout is not None
        made.stdout.readline()  # its imports are no part of a case
        return made

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="cases, drawn by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose title holds this text")
    parser.add_argument("--run", help="a whole run folder of sao train, whose files are broken too")
    parser.add_argument("--seconds", type=float, default=120.0, help="without an answer for so long: a hang")
    parser.add_argument("--list", action="store_true", help="print the cases' titles")
    parser.add_argument("--show", action="store_true", help="print every refusal")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    run = str(Path(given.run).resolve()) if given.run else None
    if given.serve:
        serve(run)
        return
    cases = all_cases(Path(run) if run else None)
    numbers = [number for number, case in enumerate(cases) if given.only in case.title]
    if given.list:
        print("\n".join(cases[number].title for number in numbers))
        return
    if given.count:
        numbers = sorted(random.Random(given.seed).sample(numbers, min(given.count, len(numbers))))
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    slowest = (0.0, "")
    worker = Worker(run, given.seconds)
    with contextlib.closing(_Closed(worker)):
        for number in numbers:
            result = worker.ask(number)
            title = cases[number].title
            codes[str(result["code"])] += 1
            slowest = max(slowest, (result["s"], title))
            if result["problem"]:
                kinds[result["problem"].split(":")[0]] += 1
                print(f"{title}\n    {result['problem']}", flush=True)
            if given.show:
                print(
                    f"{title}\n    [{result['code']}, {result['s']} s] {' '.join(result['said'].split())}", flush=True
                )
    found = {name: kinds.pop(name, 0) for name in ("traceback", "hang", "written", "long", "unclear")}
    report = {"cases": len(numbers), **found, "other": sum(kinds.values()), "codes": dict(codes)}
    print(json.dumps({**report, "slowest_s": slowest[0], "slowest": slowest[1]}))


class _Closed:
    def __init__(self, worker: Worker) -> None:
        self.close = worker.stop


if __name__ == "__main__":
    main()
