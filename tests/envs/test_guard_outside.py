"""What became of the image's programs and of earlier steps' processes while a patch was judged."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from typing import Any

import pytest

from envs.environment import Grade
from envs.sandbox.altered import looked_at
from envs.sandbox.contract import Sandbox
from envs.swe import grade_patch, read_row
from envs.swe.guard.expected import taken_out
from envs.swe.guard.outside import look, rules, sorted_out
from envs.swe.guard.watch import starts_others
from tests.envs.sandbox_support import BACKENDS, in_sandbox, make
from tests.envs.swe_support import FILES, GOLD, TEST_PATCH, tiny_task

BUILD = "echo built\n"
INSTALLS = {**FILES, "build.sh": BUILD}
SCRIPT = "cd /testbed && sh ./build.sh && python3 -m unittest -v tests.test_cart tests.test_old 2>&1\n"


def graded(kind: str, build: str, **row: Any) -> Grade:
    """The fix, and in the install step, which is no Python, `build` beside it."""
    changed = difflib.unified_diff(
        BUILD.splitlines(True), [*build.splitlines(True)], "a/build.sh", "b/build.sh", lineterm="\n"
    )
    patch = GOLD + "diff --git a/build.sh b/build.sh\n" + "".join(changed)
    task = tiny_task({"build.sh": BUILD}, **{"eval_script": SCRIPT, **row})

    async def go() -> Grade:
        backend = make(kind)
        try:
            return await grade_patch(read_row(task), backend, patch.encode())
        finally:
            await backend.close()

    return asyncio.run(go())


STEPS: Mapping[str, tuple[str, str]] = {
    "git, put back": ("cp -p /usr/bin/git /tmp/g; echo >>/usr/bin/git; cat /tmp/g >/usr/bin/git", "/usr/bin/git"),
    "the library": ("echo '# more' >>/usr/lib/python3.11/difflib.py", "/usr/lib/python3.11/difflib.py"),
    "times as they were": (
        "cp -p /usr/lib/python3.11/heapq.py /tmp/h; echo >>/usr/lib/python3.11/heapq.py; "
        "touch -r /tmp/h /usr/lib/python3.11/heapq.py",
        "/usr/lib/python3.11/heapq.py",
    ),
    "compiled code": (
        "cd /usr/lib/python3.11; python3 -m py_compile heapq.py; cat __pycache__/heapq.*.pyc "
        ">__pycache__/bisect.cpython-311.pyc",
        "/usr/lib/python3.11/__pycache__/bisect.cpython-311.pyc",
    ),
    "a python before the image's": (
        "mkdir -p /usr/local/bin; ln -s /usr/bin/python3 /usr/local/bin/python3",
        "python3",
    ),
    "run by each Python": (
        "d=/usr/local/lib/python3.11/dist-packages; mkdir -p $d; echo 'import steady' >$d/hook.pth; : >$d/steady.py",
        "hook.pth",
    ),
}


@pytest.mark.docker
def test_a_changed_program_is_a_finding_and_not_paid() -> None:
    """All at once: each costs a sandbox."""
    grade = graded("docker", BUILD + "".join(f"({step})\n" for step, _ in STEPS.values()))
    told = "\n".join(each for each in grade.detail["decisive"] if each.startswith("programs of the image"))
    missing = [name for name, (_, path) in STEPS.items() if path not in told and name != "compiled code"]
    assert (grade.reward, missing) == (0.0, []), grade.detail


@pytest.mark.docker
def test_compiled_code_counts_by_its_source() -> None:
    code, path = STEPS["compiled code"]
    grade = graded("docker", f"{BUILD}{code}\n")
    assert [each for each in grade.detail["decisive"] if path in each], grade.detail
    fresh = (
        "rm -f /usr/lib/python3.11/__pycache__/bisect.*; env -u PYTHONDONTWRITEBYTECODE python3 -c 'import bisect'\n"
    )
    honest = graded("docker", f"{BUILD}{fresh}")
    assert (honest.reward, honest.detail["decisive"]) == (1.0, []), honest.detail


@pytest.mark.docker
def test_what_installing_writes_is_none() -> None:
    step = (
        "d=/usr/local/lib/python3.11/dist-packages; mkdir -p $d/shop $d/shop-1.dist-info /usr/local/bin\n"
        "echo /testbed >$d/easy-install.pth; echo 'x = 1' >$d/shop/__init__.py; echo x >$d/shop-1.dist-info/RECORD\n"
        "echo 'import __editable___shop_1_finder; __editable___shop_1_finder.install()' >$d/__editable__.shop-1.pth\n"
        'printf \'import sys\\nMAPPING = {"pytest": "/x"}\\n\\ndef install():\\n    sys.path.sort()\\n\' '
        ">$d/__editable___shop_1_finder.py\n"
        "printf '#!/bin/sh\\n' >/usr/local/bin/shop; chmod +x /usr/local/bin/shop\n"
    )
    grade = graded("docker", BUILD + step)
    assert (grade.reward, grade.detail["suspicious"]) == (1.0, [])


def test_the_home_is_looked_at_where_all_else_is_read_only() -> None:
    step = "d=/root/.local/lib/python3.11/site-packages; mkdir -p $d; echo 'x = 1' >$d/usercustomize.py\n"
    grade = graded("embedded", BUILD + step)
    assert grade.reward == 0.0
    assert [each for each in grade.detail["decisive"] if "usercustomize.py is run by every Python" in each]


WATCHER = """
cat >/tmp/watcher.sh <<'END'
i=0
while [ $i -lt 2000 ]; do
    i=$((i+1))
    [ ! -e /tmp/began ] || echo 'broken = (' >/testbed/tests/test_old.py
    sleep 0.01
done
END
setsid sh /tmp/watcher.sh >/dev/null 2>&1 </dev/null &
exit 0
"""


@pytest.mark.parametrize("kind", BACKENDS)
def test_what_an_install_step_left_running_is_ended_before_any_test_is_loaded(kind: str) -> None:
    """It waits for the first test, and then would break the second file: which passes, since nobody is left to."""
    late = TEST_PATCH.replace("+import unittest\n", "+import os, time, unittest\n").replace(
        "+        self.assertEqual(total(0, 0), 0)\n",
        "+        open('/tmp/began', 'w').close()\n+        time.sleep(0.3)\n+        import tests.test_old\n"
        "+        self.assertNotIn('broken', open(tests.test_old.__file__).read())\n",
    )
    late = late.replace("+0,0 +1,10 @@", "+0,0 +1,10 @@").replace("@@ -0,0 +1,10 @@", "@@ -0,0 +1,13 @@")
    grade = graded(kind, BUILD + WATCHER, test_patch=late)
    assert grade.detail["fail_to_pass"]["failed"] == grade.detail["pass_to_pass"]["failed"] == [], grade.detail
    assert grade.reward == 0.0
    assert [each for each in grade.detail["decisive"] if "still ran when the tests began" in each]


@pytest.mark.parametrize(
    ("script", "own"),
    [
        ("Xvfb :99 &\npytest", True),
        ("service postgresql start && pytest", True),
        ("redis-server --daemonize yes\npytest", True),
        ("pip install -e . && pytest 2>&1 | tee log", False),
        ("a && b >&2\ncat <<'EOF'\n x & y\nEOF", False),
    ],
)
def test_scripts_that_start_what_their_tests_need(script: str, own: bool) -> None:
    assert starts_others(script) is own


@pytest.mark.parametrize("kind", BACKENDS)
def test_files_that_changed_since_the_start(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        folder = "/root/.local/lib/python3.11"
        made = (
            f"mkdir -p {folder}/deep/test {folder}/.x; cd {folder}; : >a.py; : >deep/b.py; : >deep/test/c.py; : >.x/d"
        )
        await box.exec(made)
        asked = ["-test", "R/root/.local/lib/python3*", "T/root/.local/lib/*/.x", "T/nowhere"]
        found = await box.altered(asked)
        assert (await box.exec("echo alive")).text == "alive\n"
        if kind == "shell":
            assert found is None
        else:
            names = ("a.py", "deep/b.py", ".x/d", ".x/d")
            assert sorted(found or ()) == sorted(f"{folder}/{name}" for name in names)

    in_sandbox(kind, test)


@pytest.mark.docker
def test_an_honest_run_of_commands_alters_nothing() -> None:
    async def test(box: Sandbox) -> None:
        await box.exec("git init -q x; python3 -m unittest -h; git --version; : >/tmp/x; : >/testbed/y")
        assert await look(box, "/testbed", whole=True) == {}

    in_sandbox("docker", test)


def test_an_engines_list_by_the_same_rules() -> None:
    changed = ["/usr", "/usr/bin", "/usr/bin/git", "/usr/lib/python3.11", "/usr/lib/python3.11/os.py", "/etc/hosts"]
    changed += ["/usr/lib/python3.11/test", "/usr/lib/python3.11/test/x.py", "/usr/lib/python3.11/json/tool.py"]
    asked = ["-test", "T/usr/bin", "R/usr/lib/python3*"]
    expected = ("/usr/bin/git", "/usr/lib/python3.11/json/tool.py", "/usr/lib/python3.11/os.py")
    assert looked_at(changed, asked) == expected
    assert looked_at(changed, ["T/usr/lib/python3*"]) == expected[2:]


def test_what_a_path_is() -> None:
    env = "/opt/miniconda3/envs/testbed"
    site = f"{env}/lib/python3.9/site-packages"
    found = sorted_out(
        [
            "/usr/bin/anything",
            f"{env}/bin/git",
            f"{env}/bin/django-admin",
            f"{env}/lib/libpython3.9.so.1.0",
            f"{env}/lib/python3.9/os.py",
            f"{env}/lib/python3.9/__pycache__/os.cpython-39.pyc",
            f"{site}/django/x.py",
            f"{site}/_pytest/main.py",
            f"{site}/_pytest/__pycache__/main.cpython-39.pyc",
            f"{site}/sitecustomize.py",
            f"{site}/easy-install.pth",
            f"{site}/__editable___x_finder.py",
            f"{site}/numpy/libs/a.so",
            "/etc/ld.so.preload",
            "/usr/lib/locale/locale-archive",
            "/etc/locale.gen",
        ]
    )
    assert found.programs == tuple(
        sorted(["/usr/bin/anything", f"{env}/bin/git", f"{env}/lib/libpython3.9.so.1.0", "/etc/ld.so.preload"])
    )
    assert (found.library, found.framework) == ((f"{env}/lib/python3.9/os.py",), (f"{site}/_pytest/main.py",))
    assert (found.starters, found.pths) == ((f"{site}/sitecustomize.py",), (f"{site}/easy-install.pth",))
    assert len(found.compiled) == 2
    assert "R/usr/lib/python3*" in rules("/testbed", whole=True)
    assert "R/usr/lib/python3*/unittest" in rules("/testbed", whole=False)


def test_expected_bytes_are_read_off_what_git_says() -> None:
    one, two = "a" * 40, "b" * 40
    said = f":100644 100644 {two} {one} M\ttests/a.py\n:000000 100644 {'0' * 40} {two} A\ttests/b.py\n"
    said += f":000000 100644 {'0' * 40} {two} A\ttests/c.txt\ntests/a.py: eol: unspecified\ntests/b.py: eol: crlf\n"
    assert taken_out(f"{said}end of expected\nrest") == ({"tests/a.py": one}, "rest")
    assert taken_out("only words") == ({}, "only words")
