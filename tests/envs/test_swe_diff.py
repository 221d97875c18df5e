"""The driver's diff against everything an agent may do to its repository."""

from __future__ import annotations

import pytest

from data.task import Task
from envs.environment import Grade
from envs.sandbox.contract import Sandbox, SandboxLimits
from envs.swe import SweLimits
from tests.envs.swe_support import FILES, apply_patch_elsewhere, episode, shell, tiny_task

FIX = "sed -i 's/a - b/a + b/' shop/cart.py"


def changed(grade: Grade, files: dict[str, str] | None = None) -> dict[str, bytes | None]:
    """What the patch changes, by applying it with plain git elsewhere: path -> new bytes, None when deleted."""
    base = files or FILES
    after = apply_patch_elsewhere(base, grade.patch)
    before = {path: text.encode() for path, text in base.items()}
    paths = {*before, *after}
    return {path: after.get(path) for path in paths if before.get(path) != after.get(path)}


FIXED = {"shop/cart.py": b"def total(a, b):\n    return a + b\n"}

ATTACKS = {
    "plain": "true",
    "commits": "git -c user.name=a -c user.email=a@b commit -qam done",
    "new branch and reset": "git checkout -qb other && git -c user.name=a -c user.email=a@b commit -qam x && "
    "git reset -q --soft HEAD~0 && git branch -D main",
    "deletes .git": "rm -rf .git",
    "git is a file": "rm -rf .git && echo nonsense > .git",
    "orphan history": "git checkout -q --orphan new && git -c user.name=a -c user.email=a@b commit -qm root",
    "assume unchanged": "git update-index --assume-unchanged shop/cart.py; git update-index --skip-worktree notes.txt",
    "hides by exclude": "mkdir -p .git/info && echo '*' > .git/info/exclude && echo '* -diff' > .git/info/attributes",
    "configures filters": "git config filter.x.clean 'sed s/+/-/' && git config core.fsmonitor 'touch /tmp/pwned' && "
    "git config core.autocrlf true && git config diff.external false && mkdir -p .git/info && "
    "echo '* filter=x' > .git/info/attributes",
    "times put back": "touch -d '2020-01-01' shop/cart.py notes.txt",
    "moves the folder and back": "mv shop shop2 && mv shop2 shop",
    "breaks the index": "head -c 100 /dev/urandom > .git/index",
    "file without rights": "chmod 000 shop/cart.py && chmod 000 shop",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_diff_is_the_fix_whatever_was_done_to_git(name: str) -> None:
    grade = episode(shell(f"{FIX} && {ATTACKS[name]}"))
    assert changed(grade) == FIXED
    assert grade.reward == 1.0, grade.detail


def test_attribute_filters_neither_run_nor_change_the_diff() -> None:
    grade = episode(
        shell(
            f"{FIX} && echo '* text eol=crlf filter=evil ident' > .gitattributes && "
            "git config filter.evil.clean 'touch /tmp/pwned; cat' && printf 'a\\r\\nb$Id$\\n' > crlf.txt"
        )
    )
    assert grade.reward == 1.0, grade.detail
    assert changed(grade) == {
        **FIXED,
        ".gitattributes": b"* text eol=crlf filter=evil ident\n",
        "crlf.txt": b"a\r\nb$Id$\n",
    }


def test_odd_names_binary_files_links_and_modes() -> None:
    script = (
        f"{FIX}; "
        "printf '\\000\\001\\377bin' > data.bin; "
        "printf 'x' > \"$(printf 'new\\nline \\\"q\\\" \\\\ \\303\\274 \\377.txt')\"; "
        "printf 'y' > ' -rf'; printf z > 'git~1'; mkdir -p 'a b/c'; printf w > 'a b/c/d e'; "
        "ln -s ../etc/passwd link; ln -s 'shop' dirlink; chmod 755 notes.txt; printf 'no newline' > tail.txt; "
        "rm tests/test_old.py; mkfifo pipe; ln notes.txt hard.txt; printf '#!/bin/sh\\n' > run; chmod +x run"
    )
    grade = episode(shell(script))
    got = changed(grade)
    odd = b'new\nline \\"q\\" \\ \xc3\xbc \xff.txt'.decode("utf-8", "surrogateescape")
    assert got == {
        **FIXED,
        "data.bin": b"\0\1\xffbin",
        odd: b"x",
        " -rf": b"y",
        "git~1": b"z",
        "a b/c/d e": b"w",
        "link": b"../etc/passwd",
        "dirlink": b"shop",
        "tail.txt": b"no newline",
        "tests/test_old.py": None,
        "hard.txt": b"one\ntwo\n",
        "run": b"#!/bin/sh\n",
    }
    assert b"old mode 100644\nnew mode 100755" in grade.patch
    assert b"new file mode 100755" in grade.patch
    assert b"new file mode 120000" in grade.patch


def test_files_become_folders_and_back() -> None:
    grade = episode(
        shell(f"{FIX}; rm notes.txt; mkdir notes.txt; echo in > notes.txt/in; rm -r tests; echo flat > tests")
    )
    assert changed(grade) == {
        **FIXED,
        "notes.txt": None,
        "notes.txt/in": b"in\n",
        "tests": b"flat\n",
        "tests/__init__.py": None,
        "tests/test_old.py": None,
    }


def test_ignore_rules_are_the_base_commits() -> None:
    script = f"{FIX}; echo '*.py' > .gitignore; echo a > new.py; echo a > x.log; mkdir build; echo a > build/y; "
    script += "mkdir -p shop/__pycache__; echo a > shop/__pycache__/cart.cpython-311.pyc; git add -f x.log"
    grade = episode(shell(script))
    assert changed(grade) == {**FIXED, ".gitignore": b"*.py\n", "new.py": b"a\n"}
    assert grade.detail["ignored"] == ["build/y", "shop/__pycache__/cart.cpython-311.pyc", "x.log"]


def test_nested_repositories_are_no_part_of_the_diff() -> None:
    grade = episode(shell(f"{FIX}; mkdir sub; cd sub; git init -q .; echo a > b"))
    assert changed(grade) == {**FIXED, "sub/b": b"a\n"}


def test_no_change_is_graded_by_running() -> None:
    grade = episode(shell("true"))
    assert grade.patch == b""
    assert grade.reward == 0.0
    assert grade.detail["fail_to_pass"]["failed"]
    assert grade.detail["pass_to_pass"]["failed"] == []


def test_repository_gone_or_tools_broken_is_a_graded_zero() -> None:
    async def gone(sandbox: Sandbox) -> None:
        await sandbox.exec("rm -rf /testbed/* /testbed/.[!.]*; mv /testbed /tmp/x", cwd="/")

    grade = episode(gone)
    assert grade.reward == 0.0
    assert grade.detail["reason"]


@pytest.mark.parametrize("files", [None, {"large.txt": "line\n" * 150_000}], ids=["by content", "by stat record"])
def test_a_full_disk_does_not_hide_the_fix(files: dict[str, str] | None) -> None:
    task = tiny_task(files)
    fill = "cat /dev/zero > /tmp/fill 2>/dev/null; true"
    limits = SweLimits(sandbox=SandboxLimits(disk_bytes=8 << 20))
    grade = episode(shell(f"{FIX}; {fill}"), task, limits=limits)
    if grade.detail["reason"].startswith("the agent's files could not be staged"):
        assert grade.reward == 0.0  # told as what it is
    else:
        assert grade.reward == 1.0, grade.detail["reason"]


def test_larger_repositories_use_a_stat_record() -> None:
    files = {"large.txt": "line\n" * 150_000}
    script = (
        f"{FIX}; sleep 0.1; mv shop s; mv s shop; printf x >> large.txt; touch -d 2020-01-01 large.txt; rm notes.txt"
    )
    grade = episode(shell(script), tiny_task(files))
    assert grade.reward == 1.0, grade.detail["reason"]
    assert set(changed(grade, {**FILES, **files})) == {"shop/cart.py", "large.txt", "notes.txt"}


def test_too_large_a_change_is_a_graded_zero() -> None:
    grade = episode(shell("head -c 3000000 /dev/zero > big.bin"), limits=SweLimits(patch_bytes=1 << 20))
    assert grade.reward == 0.0
    assert "more than 1048576 bytes" in grade.detail["reason"]


def test_changes_above_the_output_cap_are_read_through_a_file() -> None:
    grade = episode(shell(f"{FIX}; head -c 3000000 /dev/urandom > big.bin"))
    assert grade.reward == 1.0, grade.detail["reason"]
    assert len(changed(grade)["big.bin"] or b"") == 3_000_000


def test_crlf_and_missing_newline_in_the_repository() -> None:
    files = {"win.txt": "a\r\nb\r\n", "tail.txt": "no newline"}
    task: Task = tiny_task(files)
    grade = episode(shell(f"{FIX}; printf 'a\\r\\nc\\r\\n' > win.txt; printf 'no newline!' > tail.txt"), task)
    assert grade.reward == 1.0
    assert changed(grade, {**FILES, **files}) == {**FIXED, "win.txt": b"a\r\nc\r\n", "tail.txt": b"no newline!"}
