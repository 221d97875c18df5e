"""Images on the real engine, from a registry made here that misbehaves (tests/envs/fake_registry.py)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envs.images import (
    ImageDenied,
    ImageFault,
    ImageNotFound,
    ImageRefused,
    ImageStore,
    RegistryBusy,
    RegistryTrouble,
    make_plan,
)
from envs.images.pull import PullProgress
from envs.sandbox import BackendUnavailable, ImageMissing
from envs.sandbox.docker_engine import Engine
from tests.envs.fake_registry import INDEX, FakeRegistry, Fault
from tests.envs.image_store import files, with_store

pytestmark = pytest.mark.docker


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
