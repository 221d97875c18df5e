"""Every bug is real and only the right candidate mends it: in process for many, by git and unittest for each kind."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from data import micro_swe
from data.gitobjects import repository_tar
from data.micro_swe import SPLIT_SIZES
from data.micro_swe.templates import TEMPLATES
from data.task import Task
from tests.data.micro_swe_runner import parse_log, run_in_process, run_really

SPLITS = sorted(SPLIT_SIZES)


def hidden_test(task: Task) -> tuple[str, str]:
    """(path, text) of the file that the test patch makes."""
    path = re.search(r"^\+\+\+ b/(.*)$", task.row["test_patch"], re.M)
    assert path is not None
    lines = task.row["test_patch"].split("@@\n", 1)[1].splitlines()
    return path[1], "".join(line[1:] + "\n" for line in lines)


def outcomes(task: Task, replacement: str | None) -> dict[str, bool]:
    site = micro_swe.bug_site(task)
    files = json.loads(task.row["files"])
    path, text = hidden_test(task)
    if replacement is not None:
        files[site.path] = files[site.path].replace(site.old_line, replacement)
    files[path] = text
    return {
        **run_in_process(files, path.removesuffix(".py").replace("/", ".")),
        **run_in_process(files, "tests.test_smoke"),
    }


@pytest.mark.parametrize("split", SPLITS)
def test_only_the_right_candidate_passes(split: str) -> None:
    seen = set()
    for index in range(3000):  # the first 80, then only what has not been seen yet
        task = micro_swe.task(split, index)
        site = micro_swe.bug_site(task)
        if index >= 80 and site.template in seen:
            continue
        seen.add(site.template)
        for line in (None, *site.candidates):
            got = outcomes(task, line)
            assert set(got) == {*task.row["FAIL_TO_PASS"], *task.row["PASS_TO_PASS"]}
            assert all(got[test] for test in task.row["PASS_TO_PASS"]), (task.task_id, line, got)
            for test in task.row["FAIL_TO_PASS"]:
                assert got[test] is (line == site.fixed_line), (task.task_id, line, got)
    assert seen == {template.name for template in TEMPLATES[split]}


def two_of_each_kind(split: str) -> list[Task]:
    chosen: dict[str, list[Task]] = {}
    for index in range(1000, 1200):
        task = micro_swe.task(split, index)
        chosen.setdefault(micro_swe.bug_site(task).kind, []).append(task)
    assert len(chosen) == 9
    return [task for group in chosen.values() for task in group[:2]]


def unpack(task: Task, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(repository_tar(json.loads(task.row["files"])).archive)) as tar:
        tar.extractall(folder, filter="data")


def git(folder: Path, *args: str, text: str | None = None) -> str:
    done = subprocess.run(["git", *args], cwd=folder, input=text, text=True, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("split", SPLITS)
def test_patches_apply_and_grade_for_real(split: str, tmp_path: Path) -> None:
    folders: dict[Path, tuple[Task, bool]] = {}
    for task in two_of_each_kind(split):
        for gold in (False, True):
            folder = tmp_path / f"{task.task_id.rpartition('/')[2]}-{'gold' if gold else 'empty'}"
            unpack(task, folder)
            patch = task.row["test_patch"] + (task.row["patch"] if gold else "")
            git(folder, "apply", "--check", "--whitespace=error", "-", text=patch)
            git(folder, "apply", "-", text=patch)
            folders[folder] = (task, gold)
    logs = run_really({f: re.findall(r"tests\.\w+", task.row["eval_script"]) for f, (task, _) in folders.items()})
    for folder, (task, gold) in folders.items():
        assert all(logs[folder][test] for test in task.row["PASS_TO_PASS"])
        assert all(logs[folder][test] is gold for test in task.row["FAIL_TO_PASS"])
        assert git(folder, "rev-parse", "HEAD") == task.row["base_commit"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_eval_script_as_it_stands(tmp_path: Path) -> None:
    """The very script of the row, run by sh, at another place than /testbed; outcomes come from merged output."""
    task = micro_swe.task("train", 7)
    unpack(task, tmp_path)
    git(tmp_path, "apply", "-", text=task.row["patch"])
    # git's own diff is exactly the gold patch, but for the function that git names behind the hunk's span.
    assert re.sub(r"(@@ .* @@).*", r"\1", git(tmp_path, "diff", "--full-index")) == task.row["patch"].strip()
    git(tmp_path, "apply", "-", text=task.row["test_patch"])
    script = task.row["eval_script"].replace(task.row["repo_dir"], str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = {*task.row["FAIL_TO_PASS"], *task.row["PASS_TO_PASS"]}
    assert parse_log(done.stdout) == dict.fromkeys(wanted, True)
    assert [line for line in git(tmp_path, "status", "--porcelain").splitlines() if "pyc" in line] == []
