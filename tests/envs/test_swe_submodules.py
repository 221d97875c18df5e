"""Changes in submodules: no patch holds them, so they are named, to the agent and in the trajectory."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.task import Task
from envs.environment import ToolCall
from envs.sandbox.contract import SandboxBackend, SandboxSpec
from envs.swe import SWEEnvironment, read_row
from envs.swe.repository import provide, record
from envs.swe.worktree import collect
from tests.envs.swe_support import run, shell, tiny_task
from tests.envs.test_swe_diff_hostile import built, image_task
from tests.envs.test_swe_repository import git, tar_of

LOST = {
    "new files": ("echo a >mod/new.py; mkdir mod/d; echo b >mod/d/e", ["mod/d/e", "mod/new.py"]),
    "an edit in place": ("echo c >>mod/core.py", ["mod/core.py"]),
    "a commit inside": (
        "cd mod && echo c >>core.py && git -c user.name=a -c user.email=a@b commit -qam x",
        ["mod/core.py"],
    ),
    "the files are removed": ("rm -rf mod", ["mod/core.py"]),
    "the submodule is taken out": ("git config -f .gitmodules --remove-section submodule.mod", ["mod"]),
    "what python leaves": ("mkdir mod/__pycache__; echo a >mod/__pycache__/core.cpython-313.pyc", []),
    "git's own files": ("git -C mod status -s; git -C mod branch other", []),
    "outside": ("echo a >new.py", []),
}


def with_submodule(folder: Path) -> tuple[Path, str]:
    """A repository that holds a populated submodule, as images do."""
    folder, _ = built(folder)
    module = folder / "mod"
    git(module, "init", "-q", "-b", "main")
    (module / "core.py").write_text("x = 1\n")
    git(module, "add", "-A")
    git(module, "commit", "-qm", "inner")
    (folder / ".gitmodules").write_text('[submodule "mod"]\n\tpath = mod\n\turl = ../mod.git\n')
    git(folder, "update-index", "--cacheinfo", f"160000,{git(module, 'rev-parse', 'HEAD')},mod")
    git(folder, "add", ".gitmodules")
    git(folder, "commit", "-qm", "a submodule")
    return folder, git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", LOST)
def test_changes_in_submodules_are_named(tmp_path: Path, name: str) -> None:
    script, expected = LOST[name]
    folder, base = with_submodule(tmp_path / "r")
    row, image = read_row(image_task(base)), tar_of(folder)

    async def work(backend: SandboxBackend) -> list[str]:
        async with await backend.start(SandboxSpec()) as agent:
            await agent.put_tar("/testbed", image)
            snapshot = await record(agent, row, await provide(agent, row))
            await shell(script)(agent)
            changes = await collect(agent, "/testbed", snapshot, max_bytes=1 << 24)
            assert not any(path.startswith(b"mod/") for path in changes.written)
            return [path.decode() for path in changes.lost]

    assert run(work) == expected


def test_an_agent_is_told_once_that_its_submodule_is_lost(tmp_path: Path) -> None:
    """A repository in a bundle has its submodule's folder empty, and is compared by content."""
    folder, base = with_submodule(tmp_path / "r")
    git(folder, "bundle", "create", "-q", str(tmp_path / "r.bundle"), "main")
    task = Task(
        "tiny-4",
        "swe",
        "train",
        {**tiny_task().row, "files": None, "bundle": str(tmp_path / "r.bundle"), "base_commit": base},
    )

    async def work(backend: SandboxBackend) -> None:
        environment = SWEEnvironment(task, backend)
        try:
            await environment.reset()
            await environment.step(ToolCall("bash", {"command": "mkdir -p mod && echo a >mod/fix.py"}))
            first = await environment.step(ToolCall("submit", {}))
            assert not first.done
            assert "mod/fix.py" in first.text
            assert (await environment.step(ToolCall("submit", {}))).done
            grade = await environment.grade()
        finally:
            await environment.close()
        assert (grade.reward, grade.detail["lost"]) == (0.0, ["mod/fix.py"])
        assert "1 changes in submodules are not in the patch: mod/fix.py" in grade.detail["reason"]

    run(work)
