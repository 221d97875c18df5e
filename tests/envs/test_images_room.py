"""Room for images on the real engine: plans, removal, full disks, and sandboxes that fetch what they need."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envs.images import (
    FetchingBackend,
    ImageNotFound,
    ImageSettings,
    ImageStore,
    NoSpace,
    make_plan,
)
from envs.images.registry import Registries
from envs.sandbox import SandboxError, SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.swe import SWEEnvironment
from tests.envs.fake_registry import FakeRegistry, Fault
from tests.envs.image_store import MIB, files, with_store
from tests.envs.swe_support import tiny_task

pytestmark = pytest.mark.docker


def test_a_plan_counts_shared_layers_once(tmp_path: Path, registry: FakeRegistry) -> None:
    shared, own = files(1), [files(0.5) for _ in range(3)]
    names = [registry.add("a", str(i), shared, each) for i, each in enumerate(own)]
    registry.faults = [Fault("/manifests/2", 503, times=99)]

    async def work(store: ImageStore) -> None:
        await store.ensure(names[0])
        before = len(registry.seen)
        plan = await make_plan(store, dict.fromkeys(names, 2), at_once=4)
        assert [need.state for need in plan.needs] == ["present", "missing", "missing"]
        assert plan.measured == 1
        measured = plan.needs[1].download_bytes or 0
        assert measured == pytest.approx(0.5 * MIB, rel=0.01)
        assert plan.download_bytes == 2 * measured  # the one that was not measured is taken to be like the other
        assert "503" in plan.needs[2].problem
        assert plan.verdict == "fits"
        assert not any("blobs" in line and "GET" in line for line in registry.seen[before:][:2])
        await store.ensure(names[1])  # its digest was looked at before
        registry.faults.clear()
        assert (await make_plan(store, dict.fromkeys(names, 2))).needs[2].download_bytes == pytest.approx(
            0.5 * MIB, rel=0.01
        )

    with_store(tmp_path, work)


def aged(store: ImageStore, names: list[str]) -> None:
    """Make `names` used long ago, the first the longest."""
    assert store._opened is not None
    for age, name in enumerate(names):
        os.utime(store._opened[0]._file("pulled", name), (1e9 + age, 1e9 + age))


def test_the_least_recently_used_unused_images_make_room(tmp_path: Path, registry: FakeRegistry) -> None:
    names = [registry.add("old", str(i), files(1)) for i in range(5)]
    new = registry.add("new", "latest", files(1))

    async def work(store: ImageStore) -> None:
        for name in names:
            await store.ensure(name)
        aged(store, [names[0], names[3], names[1], names[4], names[2]])
        api = store.engine.api()
        api.tag(names[3], f"sao-test-{registry.port}/mine", "latest")  # somebody's own name for it
        container = api.create_container(names[1], command=["x"])["Id"]
        try:
            ledger, _, _ = await store.open()
            with ledger.lease(names[4]):
                why = {image.name: image.kept for image in (await store.usage()).images}
                assert why[names[0]] == why[names[2]] == ""
                assert why[names[3]].startswith("also named")
                assert why[names[1]] == "1 containers use it"
                assert why[names[4]] == "about to be used"
                assert why["sao-base:latest"]
                # room for one more after one has gone
                used = (await store.usage()).layers_bytes
                limits = ImageSettings(budget_bytes=used + MIB // 4, keep_free_bytes=0)
                tight = ImageStore(limits, state=tmp_path / "state")
                await tight.ensure(new)
                held = [name for name in [*names, new] if await store.has(name)]
                assert names[0] not in held
                assert {names[1], names[3], names[4], new} <= set(held)
                # and none for 200 MiB more, whatever goes
                tight.settings = ImageSettings(budget_bytes=1, keep_free_bytes=0)
                last = registry.add("last", "latest", files(1))
                with pytest.raises(NoSpace, match=r"no image is left that may be removed.*images.budget_gib"):
                    await tight.ensure(last)
                assert {names[1], names[3], names[4]} <= {i.name for i in (await store.usage()).images}
                await tight.close()
        finally:
            api.remove_container(container, force=True)

    with_store(tmp_path, work)


def test_prune_shows_first_and_removes_only_ours(tmp_path: Path, registry: FakeRegistry) -> None:
    ours, theirs = [registry.add("a", str(i), files(1)) for i in range(2)], registry.add("b")

    async def work(store: ImageStore) -> None:
        for name in ours:
            await store.ensure(name)
        await store.engine.call(lambda api: api.pull(theirs))
        shown, _ = await store.prune(everything=True, dry_run=True)
        assert {image.name for image in shown} == set(ours)
        assert (await store.prune())[0] == []  # nothing is over a limit
        removed, after = await store.prune(everything=True)
        assert {image.name for image in removed} == set(ours)
        assert theirs in {image.name for image in after.images}
        assert not {image.name for image in after.images} & set(ours)
        await store.ensure(ours[0])
        # pulled anew by somebody else under the same name: no longer ours
        registry.add("a", "0", files(1))
        await store.engine.call(lambda api: api.pull(ours[0]))
        assert (await store.prune(everything=True))[0] == []

    with_store(tmp_path, work)


def test_a_full_disk_is_told_and_nothing_is_pulled(tmp_path: Path, registry: FakeRegistry) -> None:
    name = registry.add("x")

    async def work(store: ImageStore) -> None:
        plan = await make_plan(store, {name: 1})
        assert plan.verdict == "too large"
        with pytest.raises(NoSpace, match=r"images\.keep_free_gib"):
            await store.ensure(name)
        assert not await store.has(name)

    with_store(tmp_path, work, keep_free_bytes=1 << 50)


def test_a_sandbox_fetches_its_image_and_what_cannot_be_fetched_is_an_infrastructure_error(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    shell = subprocess.run(["sh", "-c", "command -v busybox"], capture_output=True, text=True).stdout.strip()
    if not shell:
        pytest.skip("NOT RUN: no static busybox here to make a small image of (apt-get install busybox-static)")
    tool = Path(shell).read_bytes()
    name = registry.add("box", "latest", {"bin/busybox": tool, "bin/sh": tool})
    registry.faults = [Fault("/manifests/", 503, times=4)]

    async def work(store: ImageStore) -> None:
        backend = FetchingBackend(DockerBackend("images-test"), store)
        try:
            async with await backend.start(SandboxSpec(image=name)) as sandbox:
                assert (await sandbox.exec("echo hello")).text == "hello\n"
                why = {image.name: image.kept for image in (await store.usage()).images}
                assert why[name] == "1 containers use it"
            gone = tiny_task(image=f"{registry.address}/nowhere:1", portable=True)
            environment = SWEEnvironment(gone, backend)
            with pytest.raises(ImageNotFound) as caught:
                await environment.reset()
            assert isinstance(caught.value, SandboxError)
        finally:
            await backend.close()

    with_store(tmp_path, work)


def test_on_docker_hub_only_a_sample_is_measured_because_it_counts_as_a_pull(
    tmp_path: Path, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker Hub is not to be reached from here: its place is taken by the registry made here."""
    monkeypatch.setattr(Registries, "_base", lambda self, host: f"http://{registry.address}")
    registry.headers = {"ratelimit-limit": "100;w=21600", "ratelimit-remaining": "3;w=21600"}
    names = [f"sao-test-{registry.port}/x{i}:1" for i in range(7)]
    for name in names:
        registry.add(name.removesuffix(":1"), "1", files(0.2))

    async def work(store: ImageStore) -> None:
        plan = await make_plan(store, dict.fromkeys(names, 1), sample=2)
        assert (plan.measured, plan.pulls_left, plan.verdict) == (2, 3, "fits")
        assert registry.requests("GET") - registry.requests("blobs") == 2
        assert plan.download_bytes == pytest.approx(7 * 0.2 * MIB, rel=0.05)
        again = await make_plan(store, dict.fromkeys(names, 1), sample=0)
        assert again.measured == 2  # known by digest from before
        assert registry.requests("GET") - registry.requests("blobs") == 2

    with_store(tmp_path, work)
