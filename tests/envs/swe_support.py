"""A tiny SWE task used by the SWE tests: one wrong operator, one hidden test file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from data.gitobjects import commit_id
from data.task import Task
from envs.environment import Grade, ToolCall
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.embedded import EmbeddedBackend
from envs.swe import SWEEnvironment, SweLimits
from envs.tools import ToolSet

T = TypeVar("T")

FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": "def total(a, b):\n    return a - b\n",
    "tests/__init__.py": "",
    "tests/test_old.py": "import unittest\n\nclass TestOld(unittest.TestCase):\n    def test_x(self):\n        pass\n",
    "notes.txt": "one\ntwo\n",
    ".gitignore": "*.log\nbuild/\n",
}
GOLD = """diff --git a/shop/cart.py b/shop/cart.py
--- a/shop/cart.py
+++ b/shop/cart.py
@@ -1,2 +1,2 @@
 def total(a, b):
-    return a - b
+    return a + b
"""
TEST_PATCH = """diff --git a/tests/test_cart.py b/tests/test_cart.py
new file mode 100644
--- /dev/null
+++ b/tests/test_cart.py
@@ -0,0 +1,10 @@
+import unittest
+from shop.cart import total
+
+
+class TestCart(unittest.TestCase):
+    def test_total(self):
+        self.assertEqual(total(1, 2), 3)
+
+    def test_zero(self):
+        self.assertEqual(total(0, 0), 0)
"""
F2P = "tests.test_cart.TestCart.test_total"
P2P = "tests.test_cart.TestCart.test_zero"
OLD = "tests.test_old.TestOld.test_x"
EVAL = "cd /testbed && python3 -m unittest -v tests.test_cart tests.test_old 2>&1\n"


def tiny_task(more_files: dict[str, str] | None = None, **row: Any) -> Task:
    files = {**FILES, **(more_files or {})}
    columns: dict[str, Any] = {
        "instance_id": "tiny-1",
        "base_commit": commit_id(files),
        "problem_statement": "total() subtracts.",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": [F2P],
        "PASS_TO_PASS": [P2P, OLD],
        "files": files,
        "log_parser": "unittest",
        "eval_script": EVAL,
    }
    return Task("tiny-1", "swe", "train", {**columns, **row}, source="tests")


def embedded() -> SandboxBackend:
    return EmbeddedBackend("swe-tests")


def run(work: Callable[[SandboxBackend], Awaitable[T]], backend: SandboxBackend | None = None) -> T:
    """Run `work` with a backend that is closed afterwards; asserts that no sandbox folder is left."""

    async def go() -> T:
        live = backend or embedded()
        try:
            return await work(live)
        finally:
            await live.close()

    return asyncio.run(go())


def episode(
    act: Callable[[Sandbox], Awaitable[Any]],
    task: Task | None = None,
    *,
    limits: SweLimits | None = None,
    backend: SandboxBackend | None = None,
) -> Grade:
    """Reset, let `act` do anything to the agent's sandbox, grade."""

    async def work(live: SandboxBackend) -> Grade:
        environment = SWEEnvironment(task or tiny_task(), live, ToolSet(), limits)
        try:
            await environment.reset()
            assert environment.sandbox is not None
            await act(environment.sandbox)
            return await environment.grade()
        finally:
            await environment.close()

    return run(work, backend)


def shell(script: str) -> Callable[[Sandbox], Awaitable[None]]:
    """The agent runs `script` in its repository; it must succeed."""

    async def act(sandbox: Sandbox) -> None:
        result = await sandbox.exec(script, cwd="/testbed", timeout_s=30)
        assert result.exit_code == 0, result.text

    return act


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def apply_patch_elsewhere(files: dict[str, str], patch: bytes) -> dict[str, bytes]:
    """What plain git on this machine makes of base files plus patch: path -> bytes (links as their target)."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, newline="")
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", "init", "-q"], cwd=root, check=True, env=env)
        if patch:
            # git refuses names that are odd on Windows only; the tests use one.
            command = ["git", "-c", "core.protectNTFS=false", "apply", "--whitespace=nowarn", "-"]
            subprocess.run(command, input=patch, cwd=root, check=True, env=env)
        return tree_of(root)


def tree_of(root: Path) -> dict[str, bytes]:
    """Path -> bytes (links as their target) of everything but .git."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if name.split("/")[0] != ".git" and (path.is_symlink() or path.is_file()):
            found[name] = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    return found
