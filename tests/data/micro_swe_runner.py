"""Runs generated repositories for tests: in process by their text alone, and really, by git and unittest."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
import unittest
from collections.abc import Mapping
from pathlib import Path

# One interpreter for many repositories: it forks per folder, so that `import unittest` is paid once.
_DRIVER = """
import os, sys, unittest
for line in sys.stdin.read().splitlines():
    folder, *modules = line.split(" ")
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        log = open("log.txt", "w")
        suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
        unittest.TextTestRunner(stream=log, verbosity=2).run(suite)
        log.close()
        os._exit(0)
    os.waitpid(child, 0)
"""


def run_in_process(files: Mapping[str, str], module: str) -> dict[str, bool]:
    """Outcome of every test of the test module `module` (dotted) when only `files` (path -> text) exist."""
    loaded: dict[str, types.ModuleType] = {}

    def load(dotted: str) -> types.ModuleType:
        if dotted not in loaded:
            path = dotted.replace(".", "/")
            found = types.ModuleType(dotted)
            found.__dict__["__builtins__"] = scope
            loaded[dotted] = found
            text = files.get(f"{path}.py", files.get(f"{path}/__init__.py", ""))
            exec(compile(text, f"{path}.py", "exec"), found.__dict__)
        return loaded[dotted]

    def importer(
        name: str, space: object = None, local: object = None, wanted: tuple[str, ...] = (), level: int = 0
    ) -> types.ModuleType:
        if not any(path.startswith(name.replace(".", "/")) for path in files):
            return builtins.__import__(name, None, None, wanted, level)
        found = load(name)
        for inner in wanted:
            if f"{name.replace('.', '/')}/{inner}.py" in files:
                setattr(found, inner, load(f"{name}.{inner}"))
        return found

    scope = {**builtins.__dict__, "__import__": importer}
    suite = unittest.defaultTestLoader.loadTestsFromModule(load(module))
    result = unittest.TestResult()
    tests = [test for group in suite for test in group]  # type: ignore[union-attr]
    for test in tests:
        test.run(result)
    bad = {test.id() for test, _ in (*result.failures, *result.errors)}
    return {test.id(): test.id() not in bad for test in tests}


def run_really(folders: Mapping[Path, list[str]]) -> dict[Path, dict[str, bool]]:
    """Run the named test modules in each folder with a real interpreter; outcomes from unittest's own log."""
    lines = "\n".join(" ".join([str(folder), *modules]) for folder, modules in folders.items())
    subprocess.run([sys.executable, "-B", "-c", _DRIVER], input=lines, text=True, check=True, timeout=60)
    outcomes = {}
    for folder in folders:
        outcomes[folder] = parse_log((folder / "log.txt").read_text())
        (folder / "log.txt").unlink()
    return outcomes


def parse_log(log: str) -> dict[str, bool]:
    """`test_total (tests.test_cart.TestCart.test_total) ... ok` lines of unittest -v."""
    found = {}
    for line in log.splitlines():
        head, dots, outcome = line.partition(" ... ")
        if dots and head.endswith(")"):
            found[head.split("(")[1][:-1]] = outcome == "ok"
    return found
