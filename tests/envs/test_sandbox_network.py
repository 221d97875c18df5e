"""No sandbox has a network unless its spec asks for one; where none can be had, that is a typed refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from data.loaders import load_tasks
from envs.sandbox import NetworkRefused, SandboxBackend, SandboxSpec, StartFailed
from envs.sandbox.docker_backend import DockerBackend, container_settings
from envs.sandbox.docker_engine import Engine, connect
from envs.sandbox.pool import PoolSettings, SandboxPool
from envs.swe import SweLimits, read_row
from envs.swe.environment import agent_spec, grader_spec
from tests.envs.private_engine import IMAGE, PrivateEngine, private_engine
from tests.envs.sandbox_support import make


def with_backend(backend: SandboxBackend, work: Callable[[SandboxBackend], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(go())


@pytest.mark.parametrize("name", ["host", "container:other", "", "default"])
def test_there_are_two_networks_and_the_machines_own_is_none_of_them(name: Any) -> None:
    with pytest.raises(ValueError, match="choose none or bridge"):
        SandboxSpec(network=name)
    assert SandboxSpec().network == "none"


def test_an_agents_sandbox_never_asks_for_one() -> None:
    row = read_row(load_tasks("micro-swe", "train", limit=1)[0])
    assert {make_spec(row, SweLimits()).network for make_spec in (agent_spec, grader_spec)} == {"none"}


async def refuse(backend: SandboxBackend, text: str) -> None:
    for asked in (backend.check_network(), backend.start(SandboxSpec(network="bridge"))):
        with pytest.raises(NetworkRefused, match=text) as refused:
            await asked
        assert isinstance(refused.value, StartFailed)
        assert not refused.value.transient  # a grader does not try it again


@pytest.mark.parametrize("kind", ["embedded", "unshare"])
def test_the_embedded_sandbox_refuses(kind: str) -> None:
    with_backend(
        make(kind), lambda backend: refuse(backend, "the embedded sandbox never has one: use --sandbox docker")
    )


def has_bridge() -> bool:
    with connect() as engine:
        return any(each["Name"] == "bridge" for each in engine.api().networks())


@pytest.mark.docker
def test_an_engine_without_a_bridge_refuses_also_behind_a_pool() -> None:
    if has_bridge():
        pytest.skip("this engine has a bridge network: the refusal of one without is tested where there is none")
    pooled = SandboxPool(DockerBackend("network-tests"), PoolSettings(ready=2, warm_after=1))
    for backend in (DockerBackend("network-tests"), pooled):
        with_backend(
            backend, lambda each: refuse(each, "has no bridge network .* No sandbox is ever given the machine")
        )


@pytest.mark.docker
@pytest.mark.parametrize(("network", "disabled"), [("none", True), ("bridge", False)])
def test_what_the_created_container_is_given(network: Any, disabled: bool) -> None:
    """Created, not started: so this holds on an engine without networks too."""
    backend = DockerBackend("network-tests")
    try:
        api = backend.engine.api()
        settings = container_settings(api, SandboxSpec(network=network), backend.labels("network-test", 60.0))
        made = api.create_container(**settings)["Id"]
        try:
            found = api.inspect_container(made)
        finally:
            api.remove_container(made, force=True)
    finally:
        backend.engine.close()
    host = found["HostConfig"]
    assert (host["NetworkMode"], bool(found["Config"].get("NetworkDisabled"))) == (network, disabled)
    assert host["CapDrop"] == ["ALL"]
    assert not any(host[key] for key in ("PortBindings", "PublishAllPorts", "ExtraHosts", "Privileged"))


@pytest.fixture(scope="module")
def bridged() -> Iterator[PrivateEngine]:
    with private_engine(bridge=True) as engine:
        yield engine


@pytest.mark.docker
def test_a_real_bridge_and_only_for_those_that_ask(bridged: PrivateEngine) -> None:
    """An engine with Docker's default bridge, in a network namespace of its own."""

    async def interfaces(backend: SandboxBackend, network: Any) -> set[str]:
        spec = SandboxSpec(image=IMAGE, workdir="/tmp/work", network=network)
        async with await backend.start(spec) as sandbox:
            lines = (await sandbox.exec("cat /proc/net/dev")).text.splitlines()
            routes = (await sandbox.exec("cat /proc/net/route")).text
        assert ("\t00000000\t" in routes) == (network == "bridge"), routes  # a default route
        return {line.split(":")[0].strip() for line in lines if ":" in line} & {"lo", "eth0"}

    async def work(backend: SandboxBackend) -> None:
        await backend.check_network()
        for network, expected in [("none", {"lo"}), ("bridge", {"lo", "eth0"})] * 3:
            assert await interfaces(backend, network) == expected

    pool = PoolSettings(ready=2, warm_after=2)
    with_backend(SandboxPool(DockerBackend("network-tests", Engine(bridged.address)), pool), work)
