"""The tools in a real embedded sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from envs.environment import Observation
from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec
from envs.tools import ToolLimits, ToolSet
from tests.envs.swe_support import call, embedded, run

REPO = "/testbed"
LIMITS = ToolLimits(observation_chars=400, command_timeout_s=20, file_bytes=100_000)


def in_sandbox(work: Callable[[Sandbox, Callable[..., Awaitable[Observation]]], Awaitable[None]]) -> None:
    async def go(backend: SandboxBackend) -> None:
        tools = ToolSet(limits=LIMITS)
        async with await backend.start(SandboxSpec(workdir=REPO)) as sandbox:

            async def use(name: str, **arguments: object) -> Observation:
                return await tools.run(call(name, **arguments), sandbox, REPO)

            await work(sandbox, use)

    run(go, embedded())


def test_view_edit_create_submit() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        await sandbox.put(f"{REPO}/shop/cart.py", b"def total(a, b):\n    return a - b\n")
        assert (await use("view", path="shop/cart.py")) == Observation("def total(a, b):\n    return a - b")
        assert (await use("view", path=f"{REPO}/shop/cart.py", start=2)).text == "    return a - b"
        assert (await use("view", path=".")).text == "shop/"
        assert (await use("view", path="shop")).text == "cart.py"
        done = await use("str_replace", path="shop/cart.py", old_str="a - b", new_str="a + b")
        assert done == Observation("Edited shop/cart.py.")
        assert await sandbox.get(f"{REPO}/shop/cart.py") == b"def total(a, b):\n    return a + b\n"
        assert (await use("create", path="deep/new dir/x.py", content="é\r\n")) == Observation(
            "Created deep/new dir/x.py."
        )
        assert await sandbox.get(f"{REPO}/deep/new dir/x.py") == "é\r\n".encode()
        again = await use("create", path="deep/new dir/x.py", content="")
        assert again.error == "file_exists"
        assert "str_replace" in again.text
        assert (await use("think", thought="a plan")) == Observation("Noted.")
        assert (await use("submit")) == Observation("Submitted.", done=True)

    in_sandbox(work)


def test_errors_tell_what_to_do() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        await sandbox.put(f"{REPO}/shop/cart.py", b"x = 1\nx = 1\n")
        await sandbox.put(f"{REPO}/big.txt", b"a" * 200_000)
        for name, arguments, error, says in [
            ("view", {"path": "shop/cat.py"}, "no_such_file", "Similar: shop/cart.py"),
            ("view", {"path": "shop/cart.py/x"}, "no_such_file", "no file"),
            ("view", {"path": "shop/cart.py", "start": 9}, "bad_value", "has 2 lines"),
            ("view", {"path": "shop/cart.py", "start": 2, "end": 1}, "bad_value", "before start"),
            ("view", {"path": "big.txt"}, "cannot_open", "100000 bytes"),
            ("str_replace", {"path": "shop", "old_str": "a", "new_str": "b"}, "is_a_directory", "edits files"),
            ("str_replace", {"path": "no.py", "old_str": "a", "new_str": "b"}, "no_such_file", "no file no.py"),
            (
                "str_replace",
                {"path": "shop/cart.py", "old_str": "x = 1", "new_str": "b"},
                "old_str_not_unique",
                "2 times",
            ),
            (
                "str_replace",
                {"path": "shop/cart.py", "old_str": "y = 1", "new_str": "b"},
                "old_str_not_found",
                "line 1",
            ),
            ("create", {"path": "shop/cart.py/x", "content": ""}, "cannot_write", "cannot be written"),
            ("create", {"path": "shop", "content": ""}, "file_exists", "exists"),
            ("nope", {}, "unknown_tool", "Tools: bash(command, timeout?)"),
        ]:
            got = await use(name, **arguments)
            assert got.error == error, (name, arguments, got)
            assert says in got.text, got
            assert got.text.startswith(f"Error ({error}): ")
            assert not got.done

    in_sandbox(work)


def test_edits_keep_bytes_mode_and_links() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        await sandbox.put(f"{REPO}/run.sh", b"#!/bin/sh\r\necho caf\xe9\r\nexit 0", mode=0o755)
        await sandbox.exec("ln -s run.sh link.sh", cwd=REPO)
        assert (await use("str_replace", path="link.sh", old_str="exit 0", new_str="exit 3")).error is None
        assert await sandbox.get(f"{REPO}/run.sh") == b"#!/bin/sh\r\necho caf\xe9\r\nexit 3"
        state = await sandbox.exec("stat -c %a run.sh; test -L link.sh && echo link", cwd=REPO)
        assert state.text == "755\nlink\n"
        odd = "a b'\"$(x)-ü.txt"
        assert (await use("create", path=odd, content="1")).error is None
        assert (await use("view", path=odd)).text == "1"
        assert (await use("view", path=odd)).error is None

    in_sandbox(work)


def test_bash() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        assert (await use("bash", command="pwd; echo err >&2")).text == f"{REPO}\nerr"
        assert (await use("bash", command="exit 3")).text == "[exit code 3]"
        assert (await use("bash", command="cd /tmp; X=1")).text == "(no output)"
        assert (await use("bash", command="echo $X; pwd")).text == f"\n{REPO}"
        long = (await use("bash", command="seq 1 5000")).text
        assert len(long) <= 400
        assert long.startswith("1\n2\n")
        assert long.endswith("4999\n5000")
        assert "characters left out" in long
        slow = await use("bash", command="echo start; sleep 60", timeout=0.5)
        assert slow.error == "timeout"
        assert slow.text.startswith("start\n[timed out after 0.5 s: all processes were ended")
        assert (await use("bash", command="echo alive")).text == "alive"
        assert (await use("bash", command="printf 'a\\377b'")).text == "a\\xffb"
        assert (await use("bash", command="echo \ud800")).error == "bad_text"

    in_sandbox(work)


def test_a_full_disk_is_told() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        if (await sandbox.exec("test -w /dev/full")).exit_code:
            pytest.skip("no /dev/full in the sandbox")
        got = await use("bash", command="echo x > /dev/full")
        assert "[exit code" in got.text
        written = await use("create", path="/dev/full", content="x")
        assert written.error in ("file_exists", "cannot_write")

    in_sandbox(work)


def test_a_file_that_cannot_be_written_is_told_and_stays() -> None:
    async def work(sandbox: Sandbox, use: Callable[..., Awaitable[Observation]]) -> None:
        await use("create", path="a.txt", content="1")
        await sandbox.exec("rm a.txt; ln -s /usr/lib/os-release a.txt", cwd=REPO)
        got = await use("view", path="a.txt")
        old = got.text.split("\n")[0]
        got = await use("str_replace", path="a.txt", old_str=old, new_str="2")
        assert got.error == "cannot_write", got
        assert (await use("view", path="a.txt")).text.startswith(old)

    in_sandbox(work)


def test_schemas_need_no_event_loop() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert {schema["function"]["name"] for schema in ToolSet().schemas} >= {"bash", "view", "submit"}
