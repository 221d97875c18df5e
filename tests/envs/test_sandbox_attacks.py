"""Commands that attack the channel: its signals, its memory, its descriptors, the pipes between it and a command.

channel.pl withstands all of it: the command that tried is a result like any other. channel.sh may end in SandboxDead or
lose output to who reads its pipes; never by a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from envs.sandbox import Sandbox, SandboxDead
from envs.sandbox.channelled import ChannelledSandbox
from envs.sandbox.namespaces import _fault
from tests.envs.sandbox_support import KINDS, in_sandbox, make, spec

every_kind = pytest.mark.parametrize("kind", KINDS)


def python(text: str) -> str:
    return f"python3 - <<'END'\n{text}\nEND"


EVERY_SIGNAL = python("""
import os
for number in range(1, 65):
    if number not in (32, 33):  # glibc's own
        for _ in range(3): os.kill(1, number)
print("sent")
""")
FLOOD = python("""
import os, time
end = time.time() + 1.5
while time.time() < end:
    for number in (17, 14, 13, 10, 64): os.kill(1, number)
""")
TRACE = python("""
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid(): libc.ptrace(16, int(name), 0, 0)
time.sleep(0.5)
""")
OVERWRITE = python("""
import os
for name in os.listdir("/proc"):
    try:
        if not name.isdigit() or int(name) == os.getpid(): continue
        maps = [line.split() for line in open(f"/proc/{name}/maps")]
        memory = open(f"/proc/{name}/mem", "r+b", 0)
        for words in maps:
            if words[-1] in ("[heap]", "[stack]"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                memory.seek(start)
                memory.write(bytes([255]) * (end - start))
    except OSError:
        pass
""")


@every_kind
@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "kill -9 $PPID; sleep 0.2",
        "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do grep -q '^PPid:.1$' $p/status && kill -9 ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || kill -STOP ${p#/proc/}; done; sleep 1",
        "for p in /proc/[0-9]*; do for f in $p/fd/*; do (echo junk >$f) 2>/dev/null & done; done",
        "for p in /proc/[0-9]*; do for f in $p/fd/*; do (cat <$f >/dev/null) 2>/dev/null & done; done; sleep 0.3",
        "kill -ALRM 1; kill -ALRM -1; sleep 0.2",
        EVERY_SIGNAL,
        FLOOD,
        TRACE,
        OVERWRITE,
        "exec 3</proc/self/fd/1; (cat <&3 >/dev/null) & (cat <&3 >/dev/null) & i=0; "
        "while [ $i -lt 2000 ]; do echo x; i=$((i+1)); done",
        "prlimit --pid 1 --as=1 --nofile=1; sleep 0.2",
        "prlimit --pid 1 --cpu=1 --fsize=0; sleep 0.2",
        "chrt -i -p 0 1; renice 19 -p 1; renice 19 -u 0; ionice -c 3 -p 1; taskset -p 1 1; "
        "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; sleep 0.2",
    ],
)
def test_commands_that_attack_the_channel(kind: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.sandbox.channel.ANSWER_S", 1.0)
    monkeypatch.setattr("envs.sandbox.channel.STOP_LIMIT_S", 2.0)

    async def main() -> None:
        backend = make(kind)
        box = await backend.start(spec())
        started = time.monotonic()
        withstands = isinstance(box, ChannelledSandbox) and box.channel.helper
        with contextlib.suppress(*(() if withstands else (SandboxDead,))):
            await box.exec(command, timeout_s=3)
            result = await box.exec("echo works", timeout_s=3)
            assert result.output == b"works\n" or (not withstands and "cat <$f" in command)
        assert time.monotonic() - started < 15
        await box.close()
        async with await backend.start(spec()) as fresh:
            assert (await fresh.exec("echo works")).output == b"works\n"
        await backend.close()

    asyncio.run(main())


@every_kind
def test_signals_do_not_put_the_deadline_off(kind: str) -> None:
    async def main() -> None:
        backend = make(kind, "put-off")
        box = await backend.start(spec(deadline_s=2.0))
        started = time.monotonic()
        with pytest.raises(SandboxDead):
            await box.exec("while :; do kill -ALRM 1; kill -CHLD 1; sleep 0.05; done", timeout_s=20)
        assert 1.0 < time.monotonic() - started < 10
        await backend.close()

    asyncio.run(main())


@every_kind
def test_orphans_are_collected(kind: str) -> None:
    """Whatever the sandbox does meanwhile, and however many there are."""
    storm = "i=0; while [ $i -lt 600 ]; do (sleep 0.01 &) ; i=$((i+1)); done"
    ghosts = "sleep 0.3; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"

    async def test(box: Sandbox) -> None:
        assert (await box.exec(f"({storm}) >/dev/null 2>&1", timeout_s=50)).exit_code in (0, 2)
        assert int((await box.exec(ghosts)).text) <= 3  # those that end while it looks
        await box.exec(f"({storm}) >/dev/null 2>&1 &")
        for _ in range(20):
            await box.put("file", b"x" * 10_000)
            assert len(await box.get("file")) == 10_000
        assert (await box.exec("while :; do (:&); done", timeout_s=1)).timed_out
        assert (await box.exec("echo works")).text == "works\n"

    in_sandbox(kind, test, pids=64)


@every_kind
def test_a_file_that_turns_into_a_pipe_blocks_nothing(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        if not (isinstance(box, ChannelledSandbox) and box.channel.helper):
            pytest.skip("channel.sh opens by name")
        swap = "while :; do ln -f plain file; ln -f pipe new; mv -f new file; done"
        await box.exec(f"mkfifo pipe; echo >plain; ({swap}) >/dev/null 2>&1 &")
        for _ in range(100):
            with contextlib.suppress(OSError):
                await asyncio.wait_for(box.put("file", b"x"), 5)
            with contextlib.suppress(OSError):
                await asyncio.wait_for(box.get("file"), 5)

    in_sandbox(kind, test)


@every_kind
def test_who_holds_tars_words_open_does_not_hold_it_up(kind: str) -> None:
    holder = python("""
import os, time
held = []
while True:
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or open(f"/proc/{name}/comm").read() != "tar\\n": continue
            held.append(os.open(f"/proc/{name}/fd/1", 1))
        except OSError: pass
""").replace("<<'END'", "<<'END' >/dev/null 2>&1 &", 1)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number in range(2000):
            archive.addfile(tarfile.TarInfo(f"{number}"))

    async def test(box: Sandbox) -> None:
        if not (isinstance(box, ChannelledSandbox) and box.channel.helper):
            pytest.skip("channel.sh waits for the end of tar's words")
        await box.exec(holder)
        await asyncio.sleep(0.2)
        for _ in range(3):
            with contextlib.suppress(OSError):
                await asyncio.wait_for(box.put_tar("t", made.getvalue()), 15)
        assert (await box.exec("echo works")).text == "works\n"

    in_sandbox(kind, test)


def test_a_bubblewrap_that_is_too_old_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.7 it knows no `--size`: what it cannot do shows in the trial, not in each start."""
    old = tmp_path / "bwrap"
    old.write_text(
        '#!/bin/sh\nfor word do [ "$word" != --size ] || { echo "bwrap: Unknown option --size" >&2; exit 1; }; done\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _fault.cache_clear()
    try:
        assert "Unknown option --size" in _fault("bwrap")
    finally:
        _fault.cache_clear()
