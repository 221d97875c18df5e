"""A repository that stands in its image is made clean once, and every sandbox after that forks from the clean state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from envs.sandbox import SandboxSpec
from envs.sandbox.contract import Sandbox, SandboxBackend
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import connect
from envs.sandbox.pool import PoolSettings, SandboxPool
from envs.swe import SWEEnvironment, provided
from envs.swe.repository import provide
from envs.swe.row import SweRow
from envs.swe.worktree import Snapshot
from envs.tools import ToolSet
from tests.envs.swe_support import FILES, tiny_task

pytestmark = pytest.mark.docker
FIX = "sed -i 's/a - b/a + b/' shop/cart.py"


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[str, str]]:
    """(name, base commit): an image with the repository in it, one commit too far on."""
    name = f"sao-test-repository:{time.time_ns()}"

    async def main() -> str:
        backend = DockerBackend("provided-image")
        box = await backend.start(SandboxSpec())
        for path, text in FILES.items():
            await box.put(path, text.encode())
        commit = "git -c user.name=x -c user.email=x@x commit -qm"
        done = await box.exec(
            f"git init -q . && git add -A && {commit} base && git rev-parse HEAD && "
            f"echo secret >later && git add later && {commit} later && git tag later && git checkout -q HEAD~1"
        )
        assert done.exit_code == 0, done.text
        repository, _, tag = name.partition(":")
        await backend.engine.call(lambda api: api.commit(box.sandbox_id, repository=repository, tag=tag))
        await box.close()
        await backend.close()
        return done.text.strip()

    base = asyncio.run(main())
    yield name, base
    with connect() as engine:
        engine.api().remove_image(name, force=True)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Sandbox]:
    cleaned: list[Sandbox] = []

    async def counting(sandbox: Sandbox, row: SweRow) -> Snapshot:
        cleaned.append(sandbox)
        return await provide(sandbox, row)

    monkeypatch.setattr(provided, "provide", counting)
    return cleaned


@pytest.mark.parametrize("pooled", [False, True])
def test_cleaned_once_for_all_episodes(image: tuple[str, str], monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    cleaned = counted(monkeypatch)
    name, base = image
    task = tiny_task(files=None, image=name, base_commit=base)

    async def episode(backend: SandboxBackend, act: str) -> float:
        environment = SWEEnvironment(task, backend, ToolSet())
        try:
            await environment.reset()
            box = environment.sandbox
            assert box is not None
            seen = await box.exec("git log --all --oneline | wc -l; git cat-file -e later 2>/dev/null || ls")
            assert seen.text.split() == ["1", "notes.txt", "shop", "tests"], "newer history is left"
            assert (await box.exec(act)).exit_code == 0
            return (await environment.grade()).reward
        finally:
            await environment.close()

    async def main() -> None:
        backend: SandboxBackend = DockerBackend("provided")
        if pooled:
            backend = SandboxPool(backend, PoolSettings(ready=2, warm_after=2))
        try:
            rewards = [await episode(backend, act) for act in (FIX, "touch x", f"rm -rf .git; {FIX}")]
            assert rewards == [1.0, 0.0, 1.0]
            assert len(cleaned) == 1, "every sandbox but the first forks"
        finally:
            await backend.close()

    asyncio.run(main())
    with connect() as engine:
        assert engine.api().images(filters={"label": "sao.run=provided"}) == [], "the kept state outlives its run"


def test_a_dirty_repository_is_never_kept(image: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from envs.environment import EnvironmentFault

    cleaned = counted(monkeypatch)
    name, base = image
    task = tiny_task(files=None, image=name, base_commit=base[::-1])

    async def main() -> None:
        backend = DockerBackend("provided-dirty")
        for _ in range(2):
            environment = SWEEnvironment(task, backend, ToolSet())
            with pytest.raises(EnvironmentFault):
                await environment.reset()
            await environment.close()
        assert len(cleaned) == 2
        assert not backend.states._kept
        assert not [found for found in await backend.survey() if found.run == backend.run_id], (
            "a start that failed stays"
        )
        await backend.close()

    asyncio.run(main())
