"""`sao images` from the command line, against a registry made here."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from rich.console import Console

from data.task import Task
from envs.images import ImageFault
from envs.images.names import MADE_HERE
from envs.sandbox.docker_engine import connect
from sao.config import load_config
from sao.images import fetch_for_run, images_of
from tests.envs.fake_registry import FakeRegistry, Fault
from tests.envs.swe_support import tiny_task
from tests.sao.command import tried


def sao(*words: str) -> tuple[int, str]:
    return tried("images", *words)


pytestmark = pytest.mark.docker


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setenv("SAO_STATE", str(tmp_path / "state"))
    fake = FakeRegistry()
    try:
        yield fake
    finally:
        fake.close()
        with connect() as engine:
            for record in engine.api().images():
                if any(name.startswith(fake.address) for name in record.get("RepoTags") or []):
                    engine.api().remove_image(record["Id"], force=True)


def rows(tmp_path: Path, *images: str) -> Path:
    file = tmp_path / "rows.jsonl"
    tasks = [tiny_task(instance_id=f"t{i}", image=image, repo="a/b").row for i, image in enumerate(images)]
    file.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    return file


@pytest.fixture
def made_here() -> Iterator[str]:
    """A second name of the base image, labelled as one that was made here."""
    name = f"sao-real/test-{time.time_ns()}:latest"
    text = f"FROM sao-base\nLABEL {MADE_HERE}=x\n".encode()
    with connect() as engine:
        for event in engine.api().build(fileobj=io.BytesIO(text), tag=name, decode=True, rm=True):
            assert "error" not in event, event
        yield name
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.api().remove_image(name, force=True)


def test_what_was_made_here_is_listed_and_goes_when_asked(made_here: str) -> None:
    def kept() -> str:
        listed = {one["image"]: one["kept_because"] for one in json.loads(sao("ls", "--json")[1])["images"]}
        assert listed["sao-base:latest"] == "the base image of sandboxes"
        return listed.get(made_here, "gone")

    assert kept() == "made here (prune --made)"
    assert made_here not in sao("prune", "--everything", "--dry-run", "--plain")[1]
    short = made_here.removesuffix(":latest")
    with connect() as engine:
        box = engine.api().create_container(made_here, "true")["Id"]
        try:
            assert kept() == "1 containers use it"
            code, text = sao("prune", "--made", short, "--plain")
            assert (code, "0 images removed" in text, f"{short}: no image" in text) == (1, True, True)
        finally:
            engine.api().remove_container(box)
    code, text = sao("prune", "--made", "--dry-run", "--plain")
    assert (code, f"would remove {made_here}" in text, kept()) == (0, True, "made here (prune --made)")
    code, text = sao("prune", "--made", short, "--plain")
    assert (code, "1 images removed" in text, kept()) == (0, True, "gone")
    assert sao("prune", short)[0] == 2


def test_plan_pull_list_prune(tmp_path: Path, registry: FakeRegistry) -> None:
    one, two = registry.add("one"), registry.add("two")
    file = str(rows(tmp_path, one, two, one, ""))
    free = ("--set", "images.keep_free_gib=0")
    code, text = sao("plan", "--tasks", file, "--json", *free)
    plan = json.loads(text)
    assert (code, plan["verdict"], plan["images"], plan["missing"], plan["measured"]) == (0, "fits", 3, 2, 2)
    assert {need["image"]: need["tasks"] for need in plan["needs"]} == {one: 2, two: 1, "sao-base:latest": 1}

    registry.faults = [Fault("/v2/two/", 403, times=99)]
    code, text = sao("pull", "--tasks", file, "--plain", *free)
    assert code == 3
    assert "docker login" in text
    assert "2 of 3 images are on this machine" in text
    registry.faults.clear()
    seen = len(registry.seen)
    code, text = sao("pull", "--tasks", file, "--plain", *free)
    assert code == 0
    assert "3 of 3 images are on this machine" in text
    assert not any("/v2/one/" in line for line in registry.seen[seen:])

    code, text = sao("ls", "--json")
    mine = {image["image"]: image for image in json.loads(text)["images"]}
    assert mine[one]["kept_because"] == ""
    assert mine["sao-base:latest"]["kept_because"]
    assert sao("plan", "--tasks", file, "--plain", *free)[1].count("every image is on this machine") == 1

    code, text = sao("prune", "--everything", "--dry-run", "--plain", *free)
    assert "would remove" in text
    assert sao("ls", "--json")[1].count(registry.address) == 2
    code, text = sao("prune", "--everything", "--plain", *free)
    assert code == 0
    assert text.count("removed 127.0.0.1") == 2
    assert registry.address not in sao("ls", "--json")[1]


def test_a_plan_that_cannot_be_carried_out_says_so(tmp_path: Path, registry: FakeRegistry) -> None:
    file = str(rows(tmp_path, registry.add("one"), f"{registry.address}/gone:1"))
    code, text = sao("plan", "--tasks", file, "--plain")
    assert code == 1
    assert "no registry has image" in text
    code, text = sao("plan", "--tasks", str(rows(tmp_path, registry.add("one"))), "--set", "images.keep_free_gib=1e6")
    assert code == 1
    assert "not even room" in " ".join(text.split())


def test_named_images_are_pulled(tmp_path: Path, registry: FakeRegistry) -> None:
    code, text = sao("pull", registry.add("one"), "--plain", "--set", "images.keep_free_gib=0")
    assert code == 0
    assert "1 of 1 images are on this machine" in text


def before_a_run(tasks: list[Task], *overrides: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    config = load_config("demo", ["images.keep_free_gib=0", *overrides])
    asyncio.run(fetch_for_run(config, tasks, console))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_fetches_what_it_needs_before_it_starts(tmp_path: Path, registry: FakeRegistry) -> None:
    tasks = [tiny_task(image=registry.add("one"))]
    assert images_of([*tasks, tiny_task()]) == {tasks[0].row["image"]: 1, "sao-base:latest": 1}
    assert before_a_run(tasks, "sandbox.backend=embedded") == ""
    assert "1 of 1 images are on this machine" in before_a_run(tasks)
    assert before_a_run(tasks) == ""
    with pytest.raises(ImageFault, match=r"cannot be had.*sao images plan"):
        before_a_run([tiny_task(image=f"{registry.address}/gone:1")])
    assert before_a_run([tiny_task()]) == ""
