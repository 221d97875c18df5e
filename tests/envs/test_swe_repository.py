"""Hygiene: bundles and image repositories that know the future; packing and validating a user's repository."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from data.loaders import load_tasks
from data.task import Task, TaskError
from envs.environment import EnvironmentFault, Grade
from envs.sandbox.contract import SandboxBackend, SandboxLimits, SandboxSpec
from envs.swe import SWEEnvironment, grade_patch, hygiene, read_row, validate
from envs.swe.packing import pack_task
from envs.swe.repository import provide
from tests.envs.swe_support import F2P, FILES, GOLD, OLD, P2P, TEST_PATCH, episode, run, shell, tiny_task

ENV = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{role}_{key}": "t@example.invalid" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
}
SECRET = "the fix of tomorrow"


def git(repo: Path, *arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=repo, env=ENV, input=stdin, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def build(folder: Path, form: str = "sha1") -> str:
    """The tiny project with history before and after base; returns base. Every hiding place holds the future."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", f"--object-format={form}")
    (folder / "old.txt").write_text("past")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "past")
    for path, text in {**FILES, ".gitattributes": "*.bat text eol=crlf\n", "run.bat": "a\nb\n"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    base = git(folder, "rev-parse", "HEAD")
    (folder / "future.txt").write_text(SECRET)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", SECRET)
    git(folder, "tag", "-a", "v9", "-m", SECRET)
    git(folder, "branch", "feature")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "update-ref", "refs/notes/x", "HEAD")
    git(folder, "remote", "add", "origin", "https://example.invalid/x.git")
    (folder / "future.txt").write_text(SECRET + " stashed")
    git(folder, "stash", "-q")
    (folder / "future.txt").write_text(SECRET + " dangling")
    git(folder, "hash-object", "-w", "future.txt")
    git(folder, "update-ref", "refs/replace/" + base, base)
    git(folder, "update-ref", "-d", "refs/replace/" + base)
    return base


CHECK_CLEAN = f"""
cd /testbed
git log --all --format=%s; git reflog 2>/dev/null; git stash list; git tag; git remote; git for-each-ref
for o in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $o; done |
  grep -a '{SECRET}'
git fsck --unreachable --no-reflogs 2>&1; git status --porcelain
"""


def task_of(base: str, bundle: Path | None) -> Task:
    return Task("tiny-2", "swe", "train", tiny_task(base_commit=base).row | {
        "files": None, "bundle": bundle.name if bundle else None, "base_commit": base,
    }, base_dir=str(bundle.parent) if bundle else "")  # fmt: skip


def test_a_bundle_that_knows_the_future_is_cleaned(tmp_path: Path) -> None:
    base = build(tmp_path / "r")
    git(tmp_path / "r", "bundle", "create", "-q", str(tmp_path / "b.bundle"), "--all")
    task = task_of(base, tmp_path / "b.bundle")

    async def work(backend: SandboxBackend) -> None:
        environment = SWEEnvironment(task, backend)
        try:
            await environment.reset()
            assert environment.sandbox is not None
            seen = (await environment.sandbox.exec(CHECK_CLEAN)).text
            assert seen.split("\n")[:2] == ["base", "past"]
            assert SECRET not in seen
            assert seen.split("\n")[2:] == [f"{base} commit\trefs/heads/main", ""]
            assert (await environment.sandbox.exec("git rev-parse --abbrev-ref HEAD; cat old.txt run.bat")).text == (
                "main\npasta\r\nb\r\n"
            )
        finally:
            await environment.close()

    run(work)
    assert run(lambda backend: validate(task, backend)).problems == ()


def test_a_bundle_episode_with_line_ending_attributes(tmp_path: Path) -> None:
    base = build(tmp_path / "r")
    git(tmp_path / "r", "bundle", "create", "-q", str(tmp_path / "b.bundle"), "main")
    task = task_of(base, tmp_path / "b.bundle")
    # run.bat was checked out with CRLF: rewriting it with the same bytes is no change
    fix = "sed -i 's/a - b/a + b/' shop/cart.py; cp run.bat x; mv x run.bat; touch notes.txt; git checkout -q -b other"
    grade = episode(shell(fix), task)
    assert grade.reward == 1.0
    assert b"run.bat" not in grade.patch
    assert grade.patch.count(b"diff --git") == 1
    moved = episode(
        shell("sed -i 's/a - b/a + b/' shop/cart.py; mv notes.txt n2.txt; mv shop s; mv s shop; rm old.txt"), task
    )
    assert moved.reward == 1.0
    assert moved.patch.count(b"diff --git") == 4
    lines = episode(shell("sed -i 's/a - b/a + b/' shop/cart.py; printf 'a\\r\\nc\\r\\n' > run.bat"), task)
    assert lines.reward == 1.0
    again: Grade = run(lambda backend: grade_patch(read_row(task), backend, lines.patch))
    assert again.reward == 1.0


def tar_of(folder: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(folder, arcname=".")
    return stream.getvalue()


AGENT_GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def test_an_image_repository_that_knows_the_future_is_cleaned(tmp_path: Path) -> None:
    """And its copies in other sandboxes with what the first one's cleaning made, proved there."""
    base = build(tmp_path / "r")
    git(tmp_path / "r", "clone", "-q", ".", "nested/clone")
    git(tmp_path / "r", "bundle", "create", "-q", "loose.bundle", "--all")
    row, image = read_row(task_of(base, None)), tar_of(tmp_path / "r")
    hygiene._kept.clear()
    made: list[str] = []

    async def work(backend: SandboxBackend) -> None:
        snapshots = []
        for _ in range(2):
            async with await backend.start(SandboxSpec()) as sandbox:
                await sandbox.put_tar("/testbed", image)
                snapshots.append(await provide(sandbox, row))
                seen = (await sandbox.exec(CHECK_CLEAN, env=AGENT_GIT)).text
                assert seen.startswith("base\npast\n")
                assert SECRET not in seen
                # the work tree is the image's own: what was built there stays
                assert "?? future.txt" in seen
                left = (await sandbox.exec("find . -name '*.bundle'; find . -name .git; ls /tmp -A")).text
                assert left == "./.git\n"
                made.append((await sandbox.exec("find .git -type f | sort | xargs sha256sum")).text)
        assert snapshots[0] == snapshots[1]
        assert {"repository ./nested/clone/.git", "bundle or pack ./loose.bundle", "refs/stash"} <= set(
            snapshots[0].removed
        )

    run(work)
    assert made[0] == made[1]
    assert len(hygiene._kept) == 1


def test_another_state_of_the_same_image_is_cleaned_anew(tmp_path: Path) -> None:
    base = build(tmp_path / "r")
    row, image = read_row(task_of(base, None)), tar_of(tmp_path / "r")

    async def work(backend: SandboxBackend) -> None:
        for plant in ("true", "git update-ref refs/x main", "git bundle create -q y main", "git clone -q . z"):
            async with await backend.start(SandboxSpec()) as sandbox:
                await sandbox.put_tar("/testbed", image)
                await sandbox.exec(plant, env=AGENT_GIT)
                await provide(sandbox, row)
                assert SECRET not in (await sandbox.exec(CHECK_CLEAN, env=AGENT_GIT)).text
                assert (await sandbox.exec("ls -d y z/.git 2>/dev/null")).text == ""
                before = len(hygiene._kept)
                await provide(sandbox, row)  # now clean: nothing to do, and remembered as that
                assert len(hygiene._kept) == before + 1

    run(work)


def test_a_report_above_the_output_cap_is_read_whole_and_the_cleaning_runs_once(tmp_path: Path) -> None:
    base = build(tmp_path / "r")
    git(tmp_path / "r", "checkout", "-qf", base)
    for number in range(300):
        (tmp_path / "r" / f"{'long name ' * 12}{number}").write_text("x")
    git(tmp_path / "r", "add", "-A")
    git(tmp_path / "r", "commit", "-qm", "many")
    row = read_row(task_of(git(tmp_path / "r", "rev-parse", "HEAD"), None))

    async def work(backend: SandboxBackend) -> None:
        spec = SandboxSpec(limits=SandboxLimits(output_bytes=4096))
        for _ in range(2):
            async with await backend.start(spec) as sandbox:
                await sandbox.put_tar("/testbed", tar_of(tmp_path / "r"))
                snapshot = await provide(sandbox, row)
                assert len(snapshot.base) > 300
                assert snapshot.removed
                assert SECRET not in (await sandbox.exec("git log --all --format=%s", env=AGENT_GIT)).text

    run(work)


@pytest.mark.parametrize("break_it", ["rm -rf .git", "rm -rf .git/objects/*"])
def test_hygiene_fails_closed(tmp_path: Path, break_it: str) -> None:
    base = build(tmp_path / "r")
    subprocess.run(break_it, shell=True, cwd=tmp_path / "r", check=True)
    row = read_row(task_of(base, None))

    async def work(backend: SandboxBackend) -> None:
        async with await backend.start(SandboxSpec()) as sandbox:
            await sandbox.put_tar("/testbed", tar_of(tmp_path / "r"))
            await provide(sandbox, row)

    with pytest.raises(EnvironmentFault, match="tiny-2: hygiene"):
        run(work)


def test_a_bundle_without_the_base_commit_is_a_fault(tmp_path: Path) -> None:
    build(tmp_path / "r")
    git(tmp_path / "r", "bundle", "create", "-q", str(tmp_path / "b.bundle"), "main")
    with pytest.raises(EnvironmentFault, match="base_commit is not in the bundle"):
        episode(shell("true"), task_of("1" * 40, tmp_path / "b.bundle"))
    (tmp_path / "b.bundle").write_bytes(b"no bundle")
    with pytest.raises(EnvironmentFault, match="the bundle cannot be read"):
        episode(shell("true"), task_of("1" * 40, tmp_path / "b.bundle"))


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_pack_measure_and_validate_a_users_repository(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "project"
    base = build(folder, form)
    git(folder, "checkout", "-qf", base)
    (folder / "vendor").mkdir()
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{base},vendor")  # a submodule: an empty folder there
    git(folder, "commit", "-qm", "with a submodule")
    base = git(folder, "rev-parse", "HEAD")
    git(folder, "apply", "-", stdin=GOLD)
    git(folder, "apply", "-", stdin=TEST_PATCH)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "fix")

    async def work(backend: SandboxBackend) -> None:
        task, lists = await pack_task(
            folder,
            base=base,
            fix="HEAD",
            tests=["tests"],
            test_command="python3 -m unittest -v tests.test_cart tests.test_old",
            problem_statement="total() subtracts",
            out=tmp_path / "out" / "rows.jsonl",
            backend=backend,
        )
        # "before" has the new tests but not the fix, as in SWE-bench
        assert lists.fail_to_pass == (F2P,)
        assert lists.pass_to_pass == (P2P, OLD)
        assert (await validate(task, backend, repeats=2)).usable

    run(work)
    grade = episode(
        shell("sed -i 's/a - b/a + b/' shop/cart.py; git -c user.name=a -c user.email=a@b commit -qam fix"),
        _packed(tmp_path / "out"),
    )
    assert grade.reward == 1.0, grade.detail["reason"]


def test_a_failure_to_measure_names_the_submodules(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    base = build(folder)
    git(folder, "checkout", "-qf", base)
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{base},vendor")
    git(folder, "commit", "-qm", "with a submodule")
    git(folder, "apply", "-", stdin=TEST_PATCH)
    (folder / "notes.txt").write_text("no fix\n")
    git(folder, "add", "notes.txt", "tests")
    git(folder, "commit", "-qm", "no fix")

    async def work(backend: SandboxBackend) -> None:
        await pack_task(
            folder,
            base="HEAD~1",
            fix="HEAD",
            tests=["tests"],
            test_command="python3 -m unittest -v tests.test_cart",
            problem_statement="total() subtracts",
            out=tmp_path / "out" / "rows.jsonl",
            backend=backend,
        )

    with pytest.raises(TaskError, match=r"no test fails before(.|\n)*submodules \(vendor\): their folders are empty"):
        run(work)


def _packed(folder: Path) -> Task:
    return load_tasks("swe", "train", folder / "rows.jsonl")[0]
