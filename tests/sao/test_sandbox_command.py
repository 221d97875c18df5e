"""`sao sandbox ls` and `gc`: what is there, whose it is, and that only what nobody owns goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envs.sandbox import SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.sandbox.docker_engine import connect
from envs.sandbox.owner import Found, owner_id, standing
from sao.cli import app
from sao.sandbox import duration


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sandbox", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def dead_owner() -> str:
    """Of a process that ended."""
    ended = subprocess.Popen(["true"])
    owner = owner_id()
    _, start, place = owner.split("-")
    ended.wait()
    return f"{ended.pid}-{int(start) - 1}-{place}"


@pytest.fixture
def work_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Embedded sandboxes' folders of an owner, in a temporary folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(owner: str) -> Path:
        folder = tmp_path / f"sao-sandbox-{owner}-abc"
        (folder / "0" / "work").mkdir(parents=True)
        return folder

    return make


def test_only_what_a_dead_driver_left_goes(
    work_folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    dead, mine = work_folders(dead_owner()), work_folders(owner_id())
    code, text = run("ls", "--json")
    facts = json.loads(text)
    if "embedded" in facts["unavailable"]:
        pytest.skip(f"EMBEDDED TEST NOT RUN: {facts['unavailable']['embedded']}")
    seen = {each["name"]: each["standing"] for each in facts["found"]["embedded"] if each["kind"] == "folder"}
    assert (code, seen) == (1, {str(dead): "abandoned", str(mine): "in use"})
    assert "no Docker engine answers" in facts["unavailable"]["docker"]
    code, text = run("gc", "--dry-run")
    assert (code, dead.exists()) == (0, True)
    assert "would remove 1" in text
    code, text = run("gc")
    assert (code, dead.exists(), mine.exists()) == (0, False, True)
    assert str(dead) in text.replace("\n", "")
    code, text = run("ls", "--plain")
    assert all(word in text for word in ("folder", "in use", "1 sandboxes"))


@pytest.fixture
def left_behind() -> Iterator[dict[str, Any]]:
    """A container that a dead driver made and never started, with a kept state of its."""
    owner, run_id = dead_owner(), f"gc-{time.time_ns()}"
    labels = {"sao.owner": owner, "sao.run": run_id, "sao.deadline": str(int(time.time() + 3600))}
    with connect() as engine:
        api = engine.api()
        name = f"sao-{run_id}-0"
        made = api.create_container("sao-base:latest", ["true"], name=name, labels=labels)["Id"]
        api.commit(made, repository="sao-state", tag=run_id)
        yield {"name": name, "run": run_id, "state": f"sao-state:{run_id}"}
        for each in api.containers(all=True, filters={"label": f"sao.run={run_id}"}):
            api.remove_container(each["Id"], force=True)
        for image in api.images(filters={"label": f"sao.run={run_id}"}):
            api.remove_image(image["Id"], force=True)


@pytest.mark.docker
def test_on_an_engine(left_behind: dict[str, Any]) -> None:
    async def main() -> None:
        backend = DockerBackend("gc-living")
        async with await backend.start(SandboxSpec(deadline_s=300)) as box:
            code, text = await asyncio.to_thread(run, "ls", "--json")
            found = {each["name"]: each for each in json.loads(text)["found"]["docker"]}
            assert code == 1
            assert found[left_behind["name"]]["standing"] == found[left_behind["state"]]["standing"] == "abandoned"
            assert (found[box.sandbox_id]["standing"], found[box.sandbox_id]["run"]) == ("in use", "gc-living")
            text = (await asyncio.to_thread(run, "ls", "--plain"))[1]
            assert "abandoned" in text
            assert "sao sandbox gc" in text
            code, text = await asyncio.to_thread(run, "gc")
            flat = text.replace("\n", "")
            assert left_behind["name"] in flat
            assert left_behind["state"] in flat
            assert (await box.exec("echo hi")).output == b"hi\n", "a living sandbox was touched"
        await backend.close()

    asyncio.run(main())
    text = run("ls", "--json")[1]
    assert left_behind["run"] not in text


def test_standing() -> None:
    now, dead = time.time(), dead_owner()
    elsewhere = f"1-1-{'0' * 16}.1"
    cases = [
        (owner_id(), now + 10, "in use"),
        (owner_id(), None, "in use"),
        (owner_id(), now - 3600, "abandoned"),
        (owner_id(), now - 1, "in use"),
        (dead, now + 10, "abandoned"),
        (elsewhere, now + 10, "elsewhere"),
        (elsewhere, None, "elsewhere"),
        (elsewhere, now - 3600, "abandoned"),
        ("", now + 10, "elsewhere"),
    ]
    assert [standing(owner, ends_at) for owner, ends_at, _ in cases] == [expected for _, _, expected in cases]
    assert Found("container", "x", "elsewhere", elsewhere).pid is None
    assert Found("container", "x", "abandoned", dead).pid == int(dead.split("-")[0])


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (0, 45.4, 60, 725, 3600, 11_100, 3 * 86_400, -125)]
    assert shown == ["0 s", "45 s", "1 min", "12 min", "1 h 0 min", "3 h 5 min", "3 d", "overdue 2 min"]
