"""Tiny images laid out as those of SWE-smith and R2E-Gym, made here from the base image, and rows of these sets.

SWE-smith: the working project at /testbed on branch main, its environment behind /opt/miniconda3/bin/activate. R2E-Gym:
the project before a commit at /testbed (which knows later commits), its environment in /testbed/.venv, run_tests.sh,
and the tests of the later commit in /r2e_tests.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.real_task import download_wheels
from data.tarball import Member, pack
from envs.images.local import LIBRARY
from envs.sandbox.docker_engine import connect
from tests.conftest import REAL_CACHE

GOOD = "def total(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"
PROJECT = {
    "shop/__init__.py": "",
    "shop/cart.py": GOOD,
    "tests/__init__.py": "",
    "tests/test_cart.py": "from shop.cart import double, total\n\n\ndef test_total():\n    assert total(1, 2) == 3\n"
    "\n\ndef test_zero():\n    assert total(0, 0) == 0\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "tests/test_old.py": "def test_x():\n    pass\n",
}
BUG = """diff --git a/shop/cart.py b/shop/cart.py
index 1111111..2222222 100644
--- a/shop/cart.py
+++ b/shop/cart.py
@@ -1,5 +1,5 @@
 def total(a, b):
-    return a + b
+    return a - b
 
 
 def double(a):
"""
OTHER_BUG = BUG.replace("@@ -1,5 +1,5 @@", "@@ -2,5 +2,5 @@").replace(
    " def total(a, b):\n-    return a + b\n+    return a - b\n \n \n def double(a):\n",
    "     return a + b\n \n \n def double(a):\n-    return 2 * a\n+    return a\n",
)
SMITH_ROW: Mapping[str, Any] = {
    "instance_id": "shop__cart.0123abcd.func_basic__1",
    "repo": "swesmith/shop__cart.0123abcd",
    "patch": BUG,
    "FAIL_TO_PASS": ["tests/test_cart.py::test_total"],
    "PASS_TO_PASS": ["tests/test_cart.py::test_zero", "tests/test_cart.py::test_double", "tests/test_old.py::test_x"],
    "problem_statement": "total() subtracts.",
}
_R2E_TESTS = {
    "__init__.py": "",
    "test_1.py": "import pytest\nfrom shop.cart import total\n\n\nclass TestCart:\n    def test_total(self):\n"
    "        assert total(1, 2) == 3\n\n    @pytest.mark.parametrize('n', ['a - b', 'c'])\n"
    "    def test_names(self, n):\n        assert n\n\n"
    "    def test_known_to_fail(self):\n        assert total('x', 'y') == 'yx'\n\n"
    "    @pytest.mark.xfail(reason='FAILED')\n    def test_later(self):\n        assert False\n",
}
R2E_EXPECTED = {
    "TestCart.test_total": "PASSED",
    "TestCart.test_names[a": "PASSED",  # cut by the set itself
    "TestCart.test_names[c]": "PASSED",
    "\x1b[1mTestCart.test_known_to_fail\x1b[0m - assert 'xy' == 'yx'": "FAILED",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
R2E_COMMIT = {
    "old_commit_hash": f"{COMMIT}^",
    "new_commit_hash": COMMIT,
    "file_diffs": [
        {
            "header": {"file": {"path": "shop/cart.py"}, "misc_line": None},
            "index_line": {"old_commit_hash": "1", "new_commit_hash": "2", "mode": "100644"},
            "minus_file": {"path": "a/shop/cart.py"},
            "plus_file": {"path": "b/shop/cart.py"},
            "hunks": [
                {
                    "descriptor": {
                        "old_range": {"start": 1, "length": 3},
                        "new_range": {"start": 1, "length": 3},
                        "section": "",
                    },
                    "line_group": {
                        "all_lines": [
                            {"content": "def total(a, b):", "type": "context"},
                            {"content": "    return a - b", "type": "deleted"},
                            {"content": "    return a + b", "type": "added"},
                            {"content": "", "type": "context"},
                            {"content": "", "type": "context"},
                        ]
                    },
                }
            ],
        },
        {"header": {"file": {"path": "tests/test_cart.py"}}, "hunks": [{"a test": "which is not looked at"}]},
    ],
}
R2E_ROW: Mapping[str, Any] = {
    "repo_name": "shop",
    "commit_hash": COMMIT,
    "parsed_commit_content": json.dumps(R2E_COMMIT),
    "expected_output_json": json.dumps(R2E_EXPECTED),
    "problem_statement": "Look at this.\n[ISSUE]\n**total() subtracts**\n[/ISSUE]\n",
}
# As good as readable: what a run of the tests on the working project leaves.
_LEFT_BY_TESTS = {
    "testbed/shop/__pycache__/cart.cpython-311.pyc": GOOD,
    "testbed/.pytest_cache/v/cache/nodeids": "['tests/test_cart.py::test_total', 'a + b']",
}
_ACTIVATE = 'conda() { :; }\n[ -z "${1:-}" ] || PATH=/opt/miniconda3/envs/$1/bin:$PATH\nexport PATH\n'
_PYTHON = '#!/bin/sh\nexec /usr/bin/python3 "$@"\n'


def smith_image(name: str, folder: Path) -> str:
    git(folder, PROJECT, "the working project")
    environment = {
        "opt/miniconda3/bin/activate": _ACTIVATE,
        "opt/miniconda3/envs/testbed/bin/python": _PYTHON,
        "opt/miniconda3/envs/testbed/bin/pytest": '#!/bin/sh\nexec python -m pytest "$@"\n',
        # What an installation leaves: a copy of the working code.
        "testbed/build/lib/shop/cart.py": GOOD,
        "testbed/build/lib/shop/other.py": "def product(a, b):\n    return a * b\n",
        "testbed/build/lib/tests/test_cart.py": PROJECT["tests/test_cart.py"],
        **_LEFT_BY_TESTS,
    }
    return build(name, [*members(environment), *tree(folder, "testbed")])


def r2e_image(name: str, folder: Path) -> str:
    before = {path: text for path, text in PROJECT.items() if path != "tests/test_cart.py"}
    old = git(folder, before | {"shop/cart.py": GOOD.replace("a + b", "a - b")}, "before")
    git(folder, {"shop/cart.py": GOOD}, "the fix")
    subprocess.run(["git", "checkout", "-q", old], cwd=folder, check=True)
    environment = {
        "testbed/.venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3\n",
        "testbed/.venv/bin/python": _PYTHON,
        "testbed/.venv/notes.txt": "installed\n",
        "testbed/install.sh": "uv venv\n",
        **_LEFT_BY_TESTS,
        "testbed/run_tests.sh": "PYTHONWARNINGS=ignore .venv/bin/python -W ignore -m pytest -rA r2e_tests",
        "testbed/parsed_commit.json": json.dumps(R2E_COMMIT),
        "expected_test_output.json": json.dumps(R2E_EXPECTED),
        **{f"r2e_tests/{path}": text for path, text in _R2E_TESTS.items()},
    }
    variables = "ENV VIRTUAL_ENV=/testbed/.venv\nENV PATH=/testbed/.venv/bin:$PATH\n"
    return build(name, [*members(environment), *tree(folder, "testbed")], variables)


def git(folder: Path, files: Mapping[str, str], message: str) -> str:
    """Commit `files` to the repository in `folder`, and tell the commit."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    who = {
        f"GIT_{role}_{what}": "someone@example.invalid"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", message)):
        subprocess.run(["git", *words], cwd=folder, check=True, env=env)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def members(files: Mapping[str, str]) -> Iterator[Member]:
    for path, text in files.items():
        yield Member(path.encode(), text.encode(), 0o755 if "/bin/" in path else 0o644)


def tree(folder: Path, place: str) -> Iterator[Member]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield Member(f"{place}/{path.relative_to(folder)}".encode(), path.read_bytes(), path.stat().st_mode & 0o777)


def build(name: str, files: list[Member], variables: str = "") -> str:
    """The base image with pytest and these files. Raises DownloadFailed."""
    for wheel in download_wheels(("pytest==9.2.0",), REAL_CACHE):
        with zipfile.ZipFile(wheel) as archive:
            files += [Member(f"{LIBRARY}/{each}".encode(), archive.read(each)) for each in archive.namelist()]
    lines = f"FROM sao-base\nADD layer.tar /\nWORKDIR /testbed\n{variables}LABEL sao.test=set-images\n"
    context = pack([Member(b"Dockerfile", lines.encode()), Member(b"layer.tar", pack(files))])
    with connect() as engine:
        for event in engine.api().build(
            fileobj=io.BytesIO(context), custom_context=True, tag=name, decode=True, rm=True
        ):
            assert "error" not in event, event
    return name
