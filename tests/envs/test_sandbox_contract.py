"""The sandbox contract, the same tests on every backend: commands, output, files."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import signal
import tarfile
import time

import pytest

from envs.sandbox import PathRefused, Sandbox, SandboxDead
from tests.envs.sandbox_support import KINDS, in_sandbox, make, processes, spec

pytestmark = pytest.mark.parametrize("kind", KINDS)

ODD_COMMANDS: list[tuple[str, int, bytes | None]] = [
    ("exit 3", 3, b""),
    ("exec echo foo", 0, b"foo\n"),
    ("set -e; false; echo not reached", 1, b""),
    ("exec >&-; exit 4", 4, b""),
    ("echo before; exec >&- 2>&-; sleep 0.2; exit 7", 7, b"before\n"),
    ("echo gone >&-", 1, None),
    ("(exit 9); echo $?", 0, b"9\n"),
    ("trap 'echo bye' EXIT; exit 3", 3, b"bye\n"),
    ("set -eu; echo ${never:-set}; true && false; echo not reached", 1, b"set\n"),
    ("exec 2>&-; echo lost >&2; echo kept", 0, b"kept\n"),
    ("kill -KILL $$", 137, b""),
    ("exec sh -c 'exit 11'", 11, b""),
    ("no-such-command", 127, None),
    ("/etc", 126, None),
    ("echo 'never closed", 2, None),
    ("echo $(never closed", 2, None),
    ("if true; then", 2, None),
    ("cat <<END\nnever closed", 0, b"never closed"),
    ("cat <<END\nclosed\nEND", 0, b"closed\n"),
    ("printf '\\036\\n\\036 1 E 0\\n'", 0, b"\x1e\n\x1e 1 E 0\n"),
    ("read -r line; echo $? [$line]", 0, b"1 []\n"),
    ("ulimit -c; umask; pwd", 0, b"0\n0022\n/testbed\n"),
    ("echo out; echo err >&2; echo out", 0, b"out\nerr\nout\n"),
    (r"printf 'a\0b\377\036'", 0, b"a\0b\xff\x1e"),
    ("printf 'no newline'", 0, b"no newline"),
    ("", 0, b""),
    ("# only a comment", 0, b""),
    ("cat", 0, b""),
    ("printf %s 'it'\"'\"'s\n\ttwo lines'", 0, b"it's\n\ttwo lines"),
    ("printf %s \"$sao_n$sao_nl$sao_line\"", 0, b""),
    ("echo é€", 0, "é€\n".encode()),
    ("kill -TERM $$", 143, b""),
    ("trap 'echo got it; exit 5' INT; kill -INT $$; sleep 1; echo not reached", 5, b"got it\n"),
    ("false | true", 0, b""),
    ("test -t 0 || test -t 1 || echo no terminal", 0, b"no terminal\n"),
]  # fmt: skip


def test_commands(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        for command, code, output in ODD_COMMANDS:
            result = await box.exec(command, timeout_s=20)
            same = output if output is not None else result.output  # None: in the shell's own words
            assert (command, result.exit_code, result.output) == (command, code, same)
            assert not result.timed_out
            assert result.truncated == 0
        broken = await box.exec("echo 'never closed")
        assert broken.exit_code == 2
        assert b"nterminated" in broken.output
        long = await box.exec("printf %s " + "x" * 300_000 + " | wc -c")
        assert long.output.strip() == b"300000"

    in_sandbox(kind, test)


def test_signals_are_a_command_s_own_however_the_driver_was_started(kind: str) -> None:
    """nohup ignores SIGHUP, a script's background job SIGINT and SIGQUIT: inherited, no shell could take them back."""
    names = ("HUP", "INT", "QUIT", "USR1", "TERM")

    async def test(box: Sandbox) -> None:
        for name in names:
            result = await box.exec(f"trap 'echo got; exit 5' {name}; kill -{name} $$; sleep 1; echo not reached")
            assert (name, result.exit_code, result.output) == (name, 5, b"got\n")

    before = {name: signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN) for name in names}
    try:
        in_sandbox(kind, test)
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, f"SIG{name}"), handler)


def test_nothing_but_files_stays_between_commands(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        await box.exec("cd /tmp; X=1; export X; umask 077; echo kept > /testbed/file; ulimit -n 20")
        result = await box.exec("pwd; echo [$X]; umask; cat file; ulimit -n")
        assert result.text.split() == ["/testbed", "[]", "0022", "kept", "1024"]
        result = await box.exec("pwd; echo $X $SET", cwd="/tmp", env={"X": "a 'b'\n$c"})
        assert result.text == "/tmp\na 'b' $c here\n"
        assert (await box.exec("echo [$X] $SET")).text == "[] here\n"
        assert (await box.exec("true", cwd="no/such/folder")).exit_code == 126
        names = {name: name.lower() for name in ["S", "N", "R", "L", "P", "K", "D", "l", "c", "s", "e", "q"]}
        result = await box.exec("; ".join(f"echo ${name}" for name in names), env=names)
        assert result.text.split() == list(names.values())

    in_sandbox(kind, test, env={"SET": "here"})


def test_background_children_do_not_hold_up_the_return(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        started = time.monotonic()
        assert (await box.exec("sleep 300 & echo hi")).text == "hi\n"
        assert (await box.exec("(sleep 0.1; while :; do echo junk; sleep 0.01; done) & echo flood")).text == "flood\n"
        assert (await box.exec("yes & yes | head -c 3000000; exit 6", timeout_s=30)).exit_code == 6
        assert time.monotonic() - started < 20
        for _ in range(5):  # and what they write later is in nobody's output
            assert (await box.exec("echo clean")).output == b"clean\n"
        names = await processes(box)
        assert "sleep" in names
        assert "yes" in names

    in_sandbox(kind, test)


@pytest.mark.parametrize("holder", ["", "sleep 100 & "])
def test_huge_output_is_capped_at_the_source(kind: str, holder: str) -> None:
    async def test(box: Sandbox) -> None:
        result = await box.exec(f"{holder}echo START; yes | head -c 200000000; echo END; exit 9", timeout_s=60)
        assert result.exit_code == 9
        assert len(result.output) <= 1 << 20
        assert len(result.output) + result.truncated == 200_000_010
        assert result.output.startswith(b"START\ny\ny\n")
        assert result.output.endswith(b"y\ny\nEND\n")
        assert 0 < result.cut_at < len(result.output)
        # just under and over the cap; many small writes
        for count in (1 << 19, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
            result = await box.exec(f"head -c {count} /dev/zero")
            assert len(result.output) + result.truncated == count
            assert result.truncated == max(0, count - (1 << 20))
        result = await box.exec("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done")
        assert result.output == b"".join(b"%d\n" % i for i in range(3000))

    in_sandbox(kind, test)


def test_small_cap(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        result = await box.exec("seq 1 10000")
        assert len(result.output) <= 5000
        assert len(result.output) + result.truncated == len("".join(f"{i}\n" for i in range(1, 10001)))
        assert result.output.startswith(b"1\n2\n")
        assert result.output.endswith(b"\n9999\n10000\n")

    in_sandbox(kind, test, output_bytes=5000)


def test_a_cap_that_changes_after_the_start(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        small = dataclasses.replace(box.spec.limits, output_bytes=3000)
        box.adopt(dataclasses.replace(box.spec, limits=small))
        for _ in range(2):
            result = await box.exec("seq 1 2000; exit 4")
            assert result.exit_code == 4
            assert len(result.output) <= 3000
            assert len(result.output) + result.truncated == len("".join(f"{i}\n" for i in range(1, 2001)))
        box.adopt(dataclasses.replace(box.spec, limits=dataclasses.replace(small, output_bytes=10)))
        result = await box.exec("printf 0123456789abcdef; echo ghij")
        assert len(result.output) <= 10
        assert len(result.output) + result.truncated == 21
        assert b"0123456789abcdefghij\n".startswith(result.output[: result.cut_at])
        assert b"0123456789abcdefghij\n".endswith(result.output[result.cut_at :])
        box.adopt(dataclasses.replace(box.spec, limits=small))
        assert (await box.exec("echo fine", last=True)).output == b"fine\n"
        assert (await box.exec("echo all the same")).output == b"all the same\n"

    in_sandbox(kind, test)


def test_what_waits_for_the_next_command_may_be_killed(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        await box.exec("echo /proc/[0-9]* >/tmp/before")
        # what is there now and was not then belongs to the next command
        spare = 'read -r me _ </proc/self/stat; spare=" $(cat /tmp/before) /proc/$me "'
        kill = 'for p in /proc/[0-9]*; do case $spare in *" $p "*) ;; *) kill -9 ${p#/proc/} && echo $p ;; esac; done'
        for _ in range(3):
            await box.exec(f"(sleep 0.3; {spare}; {kill}) >/tmp/killed 2>/dev/null &")
            await asyncio.sleep(0.6)
            result = await box.exec("echo works", timeout_s=10)
            assert (result.exit_code, result.output) == (0, b"works\n")
            assert (await box.get("/tmp/killed")).startswith(b"/proc/")

    in_sandbox(kind, test)


def test_files(kind: str) -> None:
    every = bytes(range(256)) * 4000

    async def test(box: Sandbox) -> None:
        for path, data, mode in [
            ("a/b/c.bin", every, 0o644),
            ("/testbed/run.sh", b"#!/bin/sh\necho ran\n", 0o755),
            ("empty", b"", 0o600),
            ("odd 'name'\n$(x) é", b"x", 0o644),
            ("-dash", b"y", 0o644),
            ("/tmp/t", b"\n", 0o644),
        ]:
            await box.put(path, data, mode=mode)
            assert await box.get(path) == data
        assert (await box.exec("./run.sh; stat -c %a run.sh empty a/b/c.bin")).text.split() == [
            "ran",
            "755",
            "600",
            "644",
        ]
        await box.put("run.sh", b"short")
        assert (await box.exec("cat run.sh; stat -c %a run.sh")).text == "short644\n"
        with pytest.raises(FileNotFoundError):
            await box.get("nothing")
        with pytest.raises(IsADirectoryError):
            await box.get("a")
        with pytest.raises(ValueError, match="larger"):
            await box.get("a/b/c.bin", max_bytes=len(every) - 1)
        with pytest.raises(IsADirectoryError):
            await box.put("a/b", b"")
        with pytest.raises(OSError, match="empty"):
            await box.put("empty/x", b"data that must not be taken for a request\n")
        await box.exec("mkfifo pipe; ln -s loop loop")
        with pytest.raises(OSError, match="regular"):
            await box.get("pipe")
        with pytest.raises(OSError, match="regular"):
            await box.put("pipe", b"x")
        with pytest.raises(FileNotFoundError):
            await box.get("loop")
        assert (await box.exec("echo fine")).text == "fine\n"

    in_sandbox(kind, test)


def test_a_full_disk_is_an_error_of_the_put_alone(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        with pytest.raises(OSError):  # noqa: PT011
            await box.put("big", b"x" * 3_000_000)
        assert (await box.exec("echo fine")).text == "fine\n"

    in_sandbox(kind, test, disk_bytes=1 << 20)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/../etc/passwd", "", "a\0b", "/tmp/../../x"])
def test_paths_that_leave_the_root(kind: str, path: str) -> None:
    async def test(box: Sandbox) -> None:
        with pytest.raises(PathRefused):
            await box.put(path, b"")
        with pytest.raises(PathRefused):
            await box.get(path)

    in_sandbox(kind, test)


def tar(*members: tuple[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.uid = info.gid = 1234
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size, info.mode = len(content), 0o755
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_archives(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        await box.put_tar("made/for it", tar(("d/one", b"1\0\n"), ("link", "/etc/passwd"), ("big", b"x" * 500_000)))
        assert (await box.get("made/for it/d/one")) == b"1\0\n"
        assert b"root:" in await box.get("made/for it/link")  # the sandbox's own
        assert (await box.exec("stat -c '%u %a' 'made/for it/d/one'")).text == "0 755\n"
        for bad in (
            tar(("../up", b"")),
            tar(("/abs", b"")),
            tar(("a/../../up", b"")),
            tar(("l", "/tmp"), ("l/through", b"x")),
        ):
            with pytest.raises(PathRefused):
                await box.put_tar(".", bad)
        with pytest.raises(ValueError, match="tar"):
            await box.put_tar(".", b"not a tar at all" * 100)

    in_sandbox(kind, test)


def test_a_cancelled_command_does_not_run_on(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.exec("sleep 0.5; echo late; sleep 77"), 0.3)
        assert (await box.exec("echo next")).output == b"next\n"
        assert (
            await box.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 7[7]'")
        ).text == "0\n"

    in_sandbox(kind, test)


def test_sixteen_at_once(kind: str) -> None:
    async def main() -> None:
        backend = make(kind)

        async def one(number: int) -> None:
            async with await backend.start(spec()) as box:
                await box.put("n", str(number).encode())
                for _ in range(5):
                    result = await box.exec("cat n; hostname")
                    assert result.text.startswith(str(number))

        try:
            await asyncio.gather(*(one(number) for number in range(16)))
        finally:
            await backend.close()

    asyncio.run(main())


def test_closed(kind: str) -> None:
    async def test(box: Sandbox) -> None:
        await box.close()
        await box.close()
        for call in (box.exec("true"), box.put("x", b""), box.get("x")):
            with pytest.raises(SandboxDead):
                await call

    in_sandbox(kind, test)
