"""Our side of a transfer: one sender process a server, its deadline, its faults, what the server is told.

The senders here are small scripts that speak our protocol and misbehave; that the real one and vLLM's engines
understand each other is tested in test_vllm_many.py (wire replaced) and test_vllm_signatures.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from agent.engines.vllm.faults import ServedWeightsWrong, ServerFault, WeightUpdateFailed
from agent.engines.vllm.loading import Deadlines
from agent.engines.vllm.policy import ServingSettings, VllmPolicy
from agent.engines.vllm.transfer import TransferLoader, TransferSettings, address_towards, sender_environment
from tests.agent.processes import gone
from tests.agent.test_vllm_client import check, run, turn
from tests.agent.vllm_fake import FakeServer, write_weights

SENDER = """
import hashlib, json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
spec = json.loads(sys.argv[1])
(here / "pids").open("a").write(f"{os.getpid()}\\n")
for line in sys.stdin:
    asked = json.loads(line)
    (here / "asked").open("a").write(line)
    how = (here / "how").read_text() if (here / "how").exists() else ""
    if how == f"{asked['do']} hangs":
        time.sleep(600)
    if how == f"{asked['do']} dies":
        print("CUDA error: out of memory", file=sys.stderr); sys.exit(9)
    if how == f"{asked['do']} fails":
        answer = {"error": "HTTPError: 500 Server Error"}
    elif asked["do"] == "join":
        answer = {"joined": spec["backend"]}
    else:
        file = pathlib.Path(asked["folder"]) / "model.safetensors"
        data = file.read_bytes() + (b"x" if how == "other bytes" else b"")
        (here / "mark").write_bytes(data)
        answer = {"hashes": {file.name: hashlib.sha256(data).hexdigest()}, "tensors": 1, "bytes": len(data)}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.engines.vllm.transfer._GRACE_S", 1.0)


class Sent(FakeServer):
    """Its weights are what the sender sent; after it our worker packs the heads."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def _reload(self, request: web.Request) -> web.Response:
        self.calls.append((await request.json())["method"])
        self.mark = float((self.folder / "mark").read_bytes())
        return web.json_response({"results": [None]})


def settings_of(tmp_path: Path) -> TransferSettings:
    (tmp_path / "sender.py").write_text(SENDER)
    return TransferSettings("nccl", Path(sys.executable), tmp_path / "logs", script=tmp_path / "sender.py")


@contextlib.asynccontextmanager
async def sending(tmp_path: Path) -> AsyncIterator[tuple[VllmPolicy, Sent]]:
    fake = Sent(tmp_path)
    await fake.start()
    transfer = settings_of(tmp_path)
    policy = await VllmPolicy.connect(
        [fake.url],
        write_weights(tmp_path / "v0", -0.5),
        tmp_path / "work",
        lineage="line",
        loader=lambda number: TransferLoader(transfer, number),
        settings=ServingSettings(
            health_every_s=0.05, health_timeout_s=1.0, patience_s=5.0, deadlines=Deadlines(5.0, 1.0, 5.0)
        ),
    )
    try:
        yield policy, fake
    finally:
        await policy.close()
        await fake.kill()
        assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def asked(tmp_path: Path) -> list[str]:
    return [json.loads(line)["do"] for line in (tmp_path / "asked").read_text().splitlines()]


def test_one_sender_serves_all_updates_and_the_group_is_made_before_the_pause(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path) as (policy, fake):
            await policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1)
            check(await turn(policy), 1, version=1)
            assert asked(tmp_path) == ["join", "send", "send"]
            once = ["pause", "label", "sao_pack_heads", "reset", "resume"]
            assert fake.calls == [*once, *once]

    run(test)


def test_a_server_that_was_started_again_gets_a_new_sender_and_the_present_weights(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path) as (policy, fake):
            await policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1)
            await fake.kill()
            await asyncio.sleep(0.2)
            await fake.start()
            check(await turn(policy), 1, version=1)
            assert asked(tmp_path) == ["join", "send", "send", "join", "send"]
            assert len((tmp_path / "pids").read_text().split()) == 2

    run(test)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("send fails", WeightUpdateFailed, "500 Server Error"),
        ("send dies", WeightUpdateFailed, "out of memory"),
        ("send hangs", WeightUpdateFailed, "not ended within 1 s"),
        ("other bytes", ServedWeightsWrong, "other files than were published"),
    ],
)
def test_a_transfer_that_breaks_off_on_a_living_server_stops_the_run(
    tmp_path: Path, how: str, error: type[Exception], says: str
) -> None:
    """Half of its weights may be new ones; the words say what to do."""

    async def test() -> None:
        async with sending(tmp_path) as (policy, fake):
            (tmp_path / "how").write_text(how)
            with pytest.raises(error, match=says):
                await policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1)
            with pytest.raises(error):
                await turn(policy)
            assert fake.calls[-1] == "resume"

    run(test)


def test_a_transfer_to_a_server_that_died_is_the_servers_fault(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path) as (policy, fake):
            (tmp_path / "how").write_text("send hangs")
            updating = asyncio.create_task(policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1))
            await asyncio.sleep(0.5)
            await fake.kill()
            await updating  # the server is down, the policy goes on without it
            (tmp_path / "how").unlink()
            await fake.start()
            check(await turn(policy), 1, version=1)

    run(test)


@pytest.mark.parametrize("how", ["join fails", "join dies", "join hangs"])
def test_a_group_that_cannot_be_made_leaves_the_server_as_it_was(tmp_path: Path, how: str) -> None:
    async def test() -> None:
        (tmp_path / "how").write_text(how)
        fake = Sent(tmp_path)
        await fake.start()
        with pytest.raises(WeightUpdateFailed, match="join"):
            await VllmPolicy.connect(
                [fake.url],
                write_weights(tmp_path / "v0", -0.5),
                tmp_path / "work",
                lineage="line",
                loader=lambda number: TransferLoader(settings_of(tmp_path), number),
                settings=ServingSettings(deadlines=Deadlines(5.0, 1.0, 5.0)),
            )
        assert fake.calls == []  # never paused
        await fake.kill()
        assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])

    run(test)


def test_ipc_is_refused_for_a_server_with_several_workers(tmp_path: Path) -> None:
    async def test() -> None:
        fake = Sent(tmp_path)
        fake.workers = 2
        await fake.start()
        loader = TransferLoader(replace(settings_of(tmp_path), backend="ipc"))
        with pytest.raises(WeightUpdateFailed, match="has 2 workers"):
            await VllmPolicy.connect(
                [fake.url], write_weights(tmp_path / "v0", -0.5), tmp_path / "work", loader=lambda _: loader
            )
        await fake.kill()

    run(test)


def test_a_cancelled_update_does_not_leave_a_sender_in_the_middle(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path) as (policy, _):
            (tmp_path / "how").write_text("send hangs")
            updating = asyncio.create_task(policy.update_weights(write_weights(tmp_path / "v1", -0.25), 1))
            await asyncio.sleep(0.4)
            updating.cancel()
            with pytest.raises((asyncio.CancelledError, ServerFault)):
                await updating
            assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])

    run(test)


def test_what_a_sender_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/rooms")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen = sender_environment(settings_of(tmp_path))
    assert "PYTHONPATH" not in seen
    assert seen["NO_PROXY"] == "*"
    assert seen["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert sender_environment(replace(settings_of(tmp_path), gpu="1"))["CUDA_VISIBLE_DEVICES"] == "1"
    assert address_towards("http://127.0.0.1:8321") == "127.0.0.1"
