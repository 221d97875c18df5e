"""Images on the real engine, from a registry made here that misbehaves (tests/envs/fake_registry.py)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.images import (
    FetchingBackend,
    ImageDenied,
    ImageFault,
    ImageNotFound,
    ImageRefused,
    ImageSettings,
    ImageStore,
    NoSpace,
    RegistryBusy,
    RegistryTrouble,
    make_plan,
)
from envs.images.pull import PullProgress
from envs.images.registry import Registries
from envs.sandbox import BackendUnavailable, ImageMissing, SandboxError, SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import Engine
from envs.swe import SWEEnvironment
from tests.envs.fake_registry import INDEX, FakeRegistry, Fault
from tests.envs.swe_support import tiny_task

pytestmark = pytest.mark.docker
MIB = 1 << 20


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """What was pulled from it, and what was tagged after it, is removed from the engine afterwards."""
    fake = FakeRegistry()
    try:
        yield fake
    finally:
        fake.close()
        with Engine() as engine:
            api = engine.api()
            for record in api.images():
                names = [*(record.get("RepoTags") or []), *(record.get("RepoDigests") or [])]
                if any(name.startswith((fake.address, f"sao-test-{fake.port}")) for name in names):
                    api.remove_image(record["Id"], force=True)


def with_store(
    tmp_path: Path, work: Callable[[ImageStore], Awaitable[None]], *, listener: Any = None, **settings: Any
) -> None:
    async def main() -> None:
        quick = {"backoff_s": 0.02, "keep_free_bytes": 0, **settings}
        store = ImageStore(ImageSettings(**quick), state=tmp_path / "state", listener=listener)
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(main())


def files(mib: float = 0.01) -> dict[str, bytes]:
    return {"data": random.randbytes(int(mib * MIB))}


def test_an_image_is_pulled_once_however_many_ask(tmp_path: Path, registry: FakeRegistry) -> None:
    name = registry.add("one")
    seen: list[PullProgress] = []

    async def work(store: ImageStore) -> None:
        impatient = asyncio.create_task(store.ensure(name))
        await asyncio.sleep(0)
        others = [asyncio.create_task(store.ensure(name)) for _ in range(8)]
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*others)
        assert await store.has(name)
        assert registry.requests("GET /v2/one/manifests") <= 2  # one to measure, one of the engine
        before = len(registry.seen)
        await store.ensure(name)
        assert len(registry.seen) == before
        ours = [image for image in (await store.usage()).images if image.name == name]
        assert [image.kept for image in ours] == [""]

    with_store(tmp_path, work, listener=seen.append)
    assert seen
    assert seen[-1].done == seen[-1].total > 0


PASSING = {
    "429": [Fault("/manifests/", 429, times=7)],
    "429 in the hub's words": [
        Fault("GET /v2/x/manifests/", 429, body=b'{"errors":[{"code":"TOOMANYREQUESTS","message":"limit"}]}', times=3)
    ],
    "500": [Fault("/manifests/", 500, times=5)],
    "503 of a layer": [Fault("/blobs/", 503, times=2)],
    "cut manifest": [Fault("GET /v2/x/manifests/", cut_at=20, times=3)],
    "damaged manifest": [Fault("GET /v2/x/manifests/", spoil=True, times=3)],
    "damaged configuration or layer": [Fault("/blobs/", spoil=True, times=3)],
    "all at once": [
        Fault("/manifests/", 502, times=2),
        Fault("/manifests/", 429, {"Retry-After": "0"}, times=3),
        Fault("GET /v2/x/manifests/", cut_at=5, times=2),
        Fault("/blobs/", spoil=True, times=1),
    ],
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
def test_what_passes_with_time_is_waited_for(tmp_path: Path, registry: FakeRegistry, faults: list[Fault]) -> None:
    name = registry.add("x")
    registry.faults = [Fault(**vars(fault)) for fault in faults]

    async def work(store: ImageStore) -> None:
        await store.ensure(name)
        assert await store.has(name)

    with_store(tmp_path, work, tries=10)
    assert all(fault.times == 0 for fault in registry.faults)


@pytest.mark.slow
def test_a_layer_that_is_cut_off_is_fetched_again(tmp_path: Path, registry: FakeRegistry) -> None:
    """The engine's own pause before it does so is five seconds."""
    name = registry.add("x", "latest", files(1))
    registry.faults = [Fault("GET /v2/x/blobs/", cut_at=200_000, times=3)]
    with_store(tmp_path, lambda store: store.ensure(name))


def test_a_registry_that_says_when_is_left_alone_until_then(tmp_path: Path, registry: FakeRegistry) -> None:
    names = [registry.add(f"x{i}") for i in range(3)]
    registry.faults = [Fault("x0/manifests/", 429, {"Retry-After": "1"}, times=4)]

    async def work(store: ImageStore) -> None:
        first = asyncio.create_task(store.ensure(names[0]))
        async with asyncio.timeout(10):
            while not store._not_before:  # noqa: ASYNC110 - a plain dictionary
                await asyncio.sleep(0.01)
        told = time.monotonic()
        await asyncio.gather(first, *map(store.ensure, names[1:]))
        pulls = [at for at, line in zip(registry.times, registry.seen, strict=True) if line == "GET /v2/"]
        assert len(pulls) == 4
        assert min(at for at in pulls if at > told) - told > 0.8

    with_store(tmp_path, work, parallel=3)


def test_a_wait_beyond_the_patience_is_told_at_once(tmp_path: Path, registry: FakeRegistry) -> None:
    name = registry.add("x")
    registry.faults = [Fault("/manifests/", 429, {"Retry-After": "21600"}, times=99)]

    async def work(store: ImageStore) -> None:
        with pytest.raises(RegistryBusy, match=r"asks to wait 21600 s.*docker login.*images.mirror") as caught:
            await store.ensure(name)
        assert caught.value.retry_after_s == 21600

    with_store(tmp_path, work)


LASTING = {
    "not there": (Fault("nothing matches"), ImageNotFound, "other"),
    "404": (Fault("/manifests/", 404, times=99), ImageNotFound, "x"),
    "401": (Fault("/manifests/", 401, times=99), ImageDenied, "x"),
    "403": (Fault("/manifests/", 403, times=99), ImageDenied, "x"),
}


@pytest.mark.parametrize(("fault", "kind", "repository"), LASTING.values(), ids=LASTING)
def test_what_will_not_pass_is_told_after_one_try(
    tmp_path: Path, registry: FakeRegistry, fault: Fault, kind: type[ImageFault], repository: str
) -> None:
    registry.add("x")
    registry.faults = [Fault(**vars(fault))]

    async def work(store: ImageStore) -> None:
        with pytest.raises(kind):
            await store.ensure(f"{registry.address}/{repository}:latest")
        assert registry.requests("GET /v2/ ") + registry.requests("GET /v2/") <= 4

    with_store(tmp_path, work)


def test_a_registry_that_is_down_or_silent_is_given_up(tmp_path: Path, registry: FakeRegistry) -> None:
    name = registry.add("x")
    registry.faults = [Fault("GET /v2/x/manifests/", hang_s=30, times=99)]

    async def silent(store: ImageStore) -> None:
        store.layers = nothing_known  # type: ignore[method-assign] # the look before would wait as long
        with pytest.raises(RegistryTrouble, match=r"no sign of progress for 0.3 s"):
            await store.ensure(name)

    async def nothing_known(*_: Any, **__: Any) -> None:
        return None

    with_store(tmp_path, silent, stall_s=0.3, tries=2)

    async def down(store: ImageStore) -> None:
        with pytest.raises(RegistryTrouble):
            await store.ensure("127.0.0.1:9/x")

    with_store(tmp_path, down, tries=2)


def test_a_stalled_pull_does_not_hold_up_the_end(tmp_path: Path, registry: FakeRegistry) -> None:
    name = registry.add("x")
    registry.faults = [Fault("/v2/", hang_s=60, times=99)]
    code = (
        "import asyncio, sys; from pathlib import Path; from envs.images import ImageStore\n"
        "async def main():\n"
        "    store = ImageStore(state=Path(sys.argv[2]))\n"
        "    async def nothing(*_, **__): return None\n"
        "    store.layers = nothing\n"
        "    task = asyncio.create_task(store.ensure(sys.argv[1]))\n"
        "    await asyncio.sleep(1); assert not task.done(); task.cancel(); await store.close(); print('closed')\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, name, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_an_image_for_other_machines_only_is_refused(tmp_path: Path, registry: FakeRegistry) -> None:
    import json

    registry.add("x", "arm", arch="arm64")
    kind, manifest = registry.manifests["x", "arm"]
    digest = registry.put_manifest("x", "arm", kind, manifest)
    entry = {"digest": digest, "size": len(manifest), "mediaType": kind}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{**entry, "platform": {"os": "linux", "architecture": "s390x"}}],
    }
    registry.put_manifest("x", "many", INDEX, json.dumps(index).encode())

    async def work(store: ImageStore) -> None:
        with pytest.raises(ImageRefused, match="no matching manifest"):
            await store.ensure(f"{registry.address}/x:many")
        plan = await make_plan(store, {f"{registry.address}/x:many": 1})
        assert plan.verdict == "not to be had"
        assert "linux/amd64" in plan.needs[0].problem

    with_store(tmp_path, work)


def test_a_registry_with_tokens(tmp_path: Path, registry: FakeRegistry) -> None:
    registry.token = "t0ken"
    name = registry.add("x")

    async def work(store: ImageStore) -> None:
        assert (await make_plan(store, {name: 1})).measured == 1
        await store.ensure(name)

    with_store(tmp_path, work)
    assert registry.requests("/token")


def test_pulls_at_once_are_limited(tmp_path: Path, registry: FakeRegistry) -> None:
    names = [registry.add(f"x{i}") for i in range(6)]
    registry.faults = [Fault("/manifests/latest", hang_s=0.1, times=99)]

    async def work(store: ImageStore) -> None:
        await asyncio.gather(*map(store.ensure, names))

    with_store(tmp_path, work, parallel=2)
    # The registry counts a request a moment longer than its client waits for it, hence one more.
    assert 2 <= registry.most_busy <= 3


def test_a_mirror_is_asked_first_and_the_image_keeps_its_name(tmp_path: Path, registry: FakeRegistry) -> None:
    registry.add(f"hub/sao-test-{registry.port}/tool", "1")
    name = f"sao-test-{registry.port}/tool:1"

    async def work(store: ImageStore) -> None:
        plan = await make_plan(store, {name: 4})
        assert (plan.verdict, plan.measured, plan.pulls_left) == ("fits", 1, None)
        await store.ensure(name)
        names = {image.name for image in (await store.usage()).images}
        assert name in names
        assert not any(registry.address in other for other in names)

    with_store(tmp_path, work, mirror=f"{registry.address}/hub")


def test_what_a_mirror_lacks_is_asked_of_docker_hub(
    tmp_path: Path, registry: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Which has no such image, or cannot be reached from here."""

    async def work(store: ImageStore) -> None:
        with pytest.raises(ImageFault) as caught:
            await store.ensure(f"sao-test-{registry.port}/tool:1")
        assert registry.address not in str(caught.value)

    with_store(tmp_path, work, mirror=registry.address, tries=1)
    assert registry.requests(f"sao-test-{registry.port}/tool/manifests/1")
    assert "the mirror did not give" in caplog.text


def test_an_image_that_is_made_here_is_not_asked_of_a_registry(tmp_path: Path) -> None:
    async def work(store: ImageStore) -> None:
        with pytest.raises(ImageMissing, match=r"scripts/base-image.sh"):
            await store.ensure("sao-base:no-such-version")
        plan = await make_plan(store, {"sao-base:no-such-version": 3, "sao-base": 1, "sao-base:latest": 1})
        assert [(need.name, need.tasks, need.state) for need in plan.needs] == [
            ("sao-base:no-such-version", 3, "make"),
            ("sao-base:latest", 2, "present"),
        ]
        assert plan.verdict == "not to be had"

    with_store(tmp_path, work)


def test_no_engine_is_a_typed_error(tmp_path: Path) -> None:
    async def main() -> None:
        store = ImageStore(engine=Engine(f"unix://{tmp_path}/none.sock"), state=tmp_path)
        with pytest.raises(BackendUnavailable, match=r"none\.sock"):
            await store.ensure("python")
        await store.close()

    asyncio.run(main())


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
