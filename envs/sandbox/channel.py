"""The driver's end of a sandbox's channel: requests out, frames and raw output back.

Promises: one request at a time; a command's output is exactly the bytes it wrote before it ended, head and tail kept
and the bytes between them counted when it wrote too much; a background child that holds the output open never blocks
the return; a time-out returns only after the process table showed nothing but init and the channel; a cancelled
request leaves no command running once the next request starts; a broken channel is SandboxDead, never a hang.

A request is one line, `<nonce> <verb> <quoted arguments>`; `put` and `untar` are followed by their bytes. An answer is
a frame, RS <nonce> <seq> <kind> [arguments] LF, with raw bytes between frames:

    R             the channel is up
    A             the command is about to start
    B [pid]       output begins (pid: the filter process that passes it on)
    E code [text] output ends here; what follows comes from background children
    D code, X     the command's shell has ended / the runner is idle; seen also when E is lost on the way.
                  `X nofork`: a process of the channel could not be started, or the waiting shell is gone
    T, Z count    the raw bytes from here on are the output's tail; `count` bytes went into the filter since T
    C             the filter passes nothing on any more
    S pids        stop: what was still in the process table (killed); empty is the proof
    F how         flush: 1 ended the filter's reader, 0 it was busy, gone

A command is two requests. `prepare` starts its shell and filter, which wait; it is sent when the command before it is
over, so that nothing has to be started while somebody waits for `command`. The cap of the output goes with it.

The nonce is random for each sandbox: output cannot imitate a frame by accident.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from envs.sandbox.contract import ExecResult, SandboxDead, SandboxError, SandboxSpec

RS = 0x1E
BLOCK = 2048
"""Size of one read of the output's head, as in channel.sh."""
FLUSH_AFTER_S = 0.1
ANSWER_S = 10.0
STOP_LIMIT_S = 20.0
MAX_COMMAND = 1 << 20
TIMED_OUT_CODE = 124
LOST = b"\nsh: the sandbox's process table is full: output is lost, and everything that ran was killed\n"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote(text: str) -> str:
    """One shell word on one line; newlines come from the channel's own variable."""
    return '"$sao_nl"'.join("'" + part.replace("'", "'\"'\"'") + "'" for part in text.split("\n"))


def exports(env: Mapping[str, str]) -> str:
    for name, value in env.items():
        if not _NAME.match(name) or "\0" in value:
            raise ValueError(f"environment variable {name!r}: the name must be a shell name and the value free of NUL")
    return "".join(f"export {name}={quote(value)};" for name, value in env.items())


def channel_script(spec: SandboxSpec, nonce: str, limits: str = "") -> bytes:
    """The text for the sandbox's `sh`; `limits` is further shell text, run before anything else starts."""
    text = (Path(__file__).parent / "channel.sh").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    values = {
        "NONCE": nonce,
        "RS": chr(RS),
        "NOFILE": str(spec.limits.nofile),
        "LIMITS": limits,
        "WORKDIR": quote(spec.workdir),
        "DEADLINE": str(max(1, int(spec.deadline_s))),
    }
    return "\n".join(re.sub(r"@([A-Z]+)@", lambda m: values[m[1]], line) for line in lines).encode() + b"\n"


class _Request:
    """What has come back for one request. `size` counts raw bytes since T, frames of this request included."""

    def __init__(self, seq: int, cap: int = 0) -> None:
        self.seq, self.cap = seq, cap
        self.head = bytearray()
        self.tail = bytearray()
        self.begun = self.in_tail = self.ended = self.exited = self.closed = False
        self.started = self.nofork = self.over = False
        self.size = self.total = 0
        self.code: int | None = None
        self.words: list[str] = []
        self.seen = time.monotonic()

    def data(self, data: bytes) -> None:
        self.seen = time.monotonic()
        if self.in_tail:
            self.size += len(data)
        if self.begun and not self.ended:
            (self.tail if self.in_tail else self.head).extend(data)

    def frame(self, kind: str, words: list[str], length: int) -> None:
        self.seen = time.monotonic()
        if kind == "A":
            self.started = True
        elif kind == "B":
            self.begun = True
        elif kind == "E":
            self.ended = True
            self.words = words
            self.size += length if self.in_tail else 0
            self.code = int(words[0]) if words[0].lstrip("-").isdigit() else None
        elif kind == "D":
            self.exited, self.code = True, int(words[0])
        elif kind == "X":
            self.exited, self.over, self.nofork = True, True, bool(words)
        elif kind == "T":
            self.in_tail = True
        elif kind in "ZC":
            self.closed = True
            self.total = int(words[0]) if kind == "Z" else self.total

    @property
    def complete(self) -> bool:
        return (self.ended and not self.in_tail) or (self.closed and (self.ended or self.exited))

    def result(self, seconds: float, timed_out: bool) -> ExecResult:
        cap = self.cap
        missing = max(0, self.total - self.size) if self.in_tail else 0
        head, tail = bytes(self.head), bytes(self.tail)
        excess = len(head) + len(tail) - cap
        if missing or excess > 0:  # cut where bytes are missing already, else in the middle
            if not missing:
                whole = head + tail
                head, tail = whole[: cap // 2], whole[cap // 2 :]
            keep = max(0, cap - len(head))
            missing += max(0, len(tail) - keep)
            tail = tail[len(tail) - keep :] if keep < len(tail) else tail
        code = TIMED_OUT_CODE if timed_out else (137 if self.code is None else self.code)
        return ExecResult(head + tail, code, seconds, timed_out, missing, len(head) if missing else 0)


class Channel:
    """`write` sends bytes to the sandbox's main process; the owner calls `feed` and `lost`."""

    def __init__(
        self, spec: SandboxSpec, write: Callable[[bytes], None], diagnose: Callable[[], Awaitable[SandboxError]]
    ) -> None:
        self.nonce = secrets.token_hex(8)
        self.spec = spec
        self._write = write
        self._diagnose = diagnose
        self._lock = asyncio.Lock()
        self._tick = asyncio.Event()
        self._seq = 0
        self._request: _Request | None = None
        """The one whose output the raw bytes are."""
        self._prepared: _Request | None = None
        """The next command's: its shell and filter wait."""
        self._answers: dict[int, tuple[str, list[str]]] = {}
        self._buffer = bytearray()
        self._prefix = b"\x1e" + self.nonce.encode() + b" "
        self._pattern = re.compile(re.escape(self._prefix) + rb"(\d+) ([A-Z])([^\n\x1e]*)\n")
        self._filters: dict[int, str] = {}
        """By seq, the process number of each filter that may still pass output on."""
        self._dirty = False
        self.up = False
        self.dead = False

    # -- from the sandbox

    def feed(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while match := self._pattern.search(buffer):
            seq, kind, words = int(match[1]), match[2].decode(), match[3].decode("utf-8", "replace").split()
            before, length = bytes(buffer[: match.start()]), match.end() - match.start()
            # A frame of a process other than the filter may have split one: the first half waits for its second.
            hold = self._held(before) if kind in "DXSF" else 0
            self._data(before[: len(before) - hold])
            buffer[: match.end()] = before[len(before) - hold :]
            self._frame(seq, kind, words, length)
        ready = len(buffer) - self._held(buffer)
        if ready:
            self._data(bytes(buffer[:ready]))
            del buffer[:ready]

    def _held(self, data: bytes | bytearray) -> int:
        """How many bytes at the end may be the beginning of a frame."""
        start = data.rfind(RS)
        if start < 0:
            return 0
        end = bytes(data[start : start + 4096 + 1])
        partial = self._prefix.startswith(end) or (end.startswith(self._prefix) and b"\n" not in end)
        return len(end) if partial and len(end) <= 4096 else 0

    def _data(self, data: bytes) -> None:
        if data and self._request is not None:
            self._request.data(data)

    def _frame(self, seq: int, kind: str, words: list[str], length: int) -> None:
        if kind == "R":
            self.up = True
        elif kind in "SF":
            self._answers[seq] = (kind, words)
        else:
            if kind == "B" and words:
                self._filters[seq] = words[0]
            elif kind in "ZC":
                self._filters.pop(seq, None)
            for request in (self._request, self._prepared):
                if request is not None and request.seq == seq:
                    request.frame(kind, words, length)
        self._tick.set()

    def lost(self) -> None:
        """The connection to the sandbox is gone."""
        self.dead = True
        self._tick.set()

    # -- to the sandbox

    def _send(self, verb: str, *arguments: str, payload: bytes = b"") -> None:
        line = " ".join([self.nonce, verb, *arguments])
        self._write(line.encode("utf-8", "surrogateescape") + b"\n" + payload)

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for `done`; False when `seconds` have passed. Raises when the channel breaks."""
        end = time.monotonic() + seconds
        while not done():
            if self.dead:
                raise await self._diagnose()
            self._tick.clear()
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._tick.wait(), left)
            except TimeoutError:
                return done()
        return True

    async def _answer(self, verb: str, *arguments: str) -> list[str]:
        seq = self._next()
        self._send(verb, str(seq), *arguments)
        if not await self._until(lambda: seq in self._answers, ANSWER_S):
            raise self._broken(f"no answer to '{verb}' within {ANSWER_S:g} s")
        return self._answers.pop(seq)[1]

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _broken(self, why: str) -> SandboxDead:
        self.dead = True
        return SandboxDead(f"the sandbox's channel is broken: {why}; start a fresh sandbox")

    async def ready(self, seconds: float) -> None:
        if not await self._until(lambda: self.up, seconds):
            raise self._broken(f"it did not come up within {seconds:g} s")
        self._prepare()

    async def run(
        self, command: str, *, timeout_s: float, cwd: str, env: Mapping[str, str], last: bool = False
    ) -> ExecResult:
        """One command in its own session; see the contract's exec."""
        if "\0" in command:
            return ExecResult(b"sh: a command cannot hold a NUL byte\n", 126, 0.0)
        if len(command) > MAX_COMMAND:
            return ExecResult(f"sh: command longer than {MAX_COMMAND} characters\n".encode(), 126, 0.0)
        prelude = exports(env)
        async with self._lock:
            await self._settle()
            result = await self._run(command, timeout_s, cwd, prelude)
            if result is None:  # nothing could be started; now everything else is killed
                result = await self._run(command, timeout_s, cwd, prelude)
            if result is None:
                raise self._broken("no process could be started although everything else was killed")
            if not last:
                self._prepare()
            return result

    def _prepare(self) -> _Request:
        cap = self.spec.limits.output_bytes
        reads = max(1, cap // 2 // BLOCK)
        self._prepared = _Request(self._next(), cap)
        # 64: room for the E frame
        self._send("prepare", str(self._prepared.seq), str(reads), str(max(1, cap - reads * BLOCK) + 64))
        return self._prepared

    async def _run(self, command: str, timeout_s: float, cwd: str, prelude: str) -> ExecResult | None:
        """None: the command was not started, since what earlier ones left running fills the process table; it is clear
        now."""
        request = self._prepared
        if request is not None and request.cap != self.spec.limits.output_bytes and not request.exited:
            self._send("command", str(request.seq), "exit")
        if request is None or request.exited or request.cap != self.spec.limits.output_bytes:
            request = self._prepare()
        self._request, self._prepared = request, None
        started = time.monotonic()
        self._dirty = True
        begin = f"printf '\\036{self.nonce} {request.seq} A\\n' >&3;exec 3>&- </dev/null;cd -- {quote(cwd)}||exit 126;"
        body = f'{begin}{prelude}set -- {quote(command)};unset sao_nl sao_c;eval "set --;$1"'
        self._send("command", str(request.seq), body)
        timed_out = not await self._until(lambda: request.complete or request.exited, timeout_s)
        whole = timed_out or await self._collect(request)
        if timed_out or not (whole and request.started):
            await self._stop(request)
        self._dirty = False
        if not (timed_out or request.started):
            return None
        result = request.result(time.monotonic() - started, timed_out)
        return result if whole else replace(result, output=result.output + LOST, exit_code=request.code or 126)

    async def _collect(self, request: _Request) -> bool:
        """The command is over: wait for the end of its output. False when that is lost (no filter could start)."""
        force_at = time.monotonic() + 2.0
        if request.nofork:
            return request.complete
        # Usually it is on its way; else a child of the command holds the pipe and the filter's reader has to be ended.
        while not await self._until(lambda: request.complete, FLUSH_AFTER_S):
            now = time.monotonic()
            if now - request.seen < FLUSH_AFTER_S:
                continue
            if not request.begun:  # on a busy machine the filter may not have had its turn yet
                if now > force_at + ANSWER_S:
                    return False
            elif await self._flush(request.seq, force=now > force_at) == "gone":
                return request.complete  # a filter says C before it goes
        return True

    async def _flush(self, seq: int, *, force: bool) -> str:
        if seq not in self._filters:
            return "gone"
        return (await self._answer("flush", self._filters[seq], str(int(force))))[0]

    async def _settle(self) -> None:
        """Before a request: nothing of a cancelled one runs on, and no earlier filter may still write to us."""
        if self.dead:
            raise await self._diagnose()
        if self._dirty and self._request is not None:
            await self._stop(self._request)
            self._dirty = False
        waiting = self._prepared.seq if self._prepared else None
        for seq in [each for each in self._filters if each != waiting]:
            await self._end_filter(seq)

    async def _end_filter(self, seq: int) -> None:
        if await self._until(lambda: seq not in self._filters, 0.003):
            return
        for attempt in range(50):
            if await self._flush(seq, force=attempt > 5) == "gone":
                self._filters.pop(seq, None)
            if await self._until(lambda: seq not in self._filters, 0.01):
                return
        raise self._broken("an earlier command's output cannot be closed")

    async def _stop(self, request: _Request) -> None:
        """Kill everything but init and channel; returns when the process table shows nothing else and the runner is
        idle (a machine that is too busy may not have started the command yet)."""
        end = time.monotonic() + STOP_LIMIT_S
        pause = 0.001
        while True:
            idle = request.over
            left = await self._answer("stop", *self._filters.values())
            if idle and not left:
                break
            if time.monotonic() > end:
                raise self._broken(f"processes {' '.join(left)} survive every kill")
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 2)
        self._filters.clear()

    # -- files

    async def _transfer(self, verb: str, *arguments: str, payload: bytes = b"", size: int = 0) -> _Request:
        async with self._lock:
            await self._settle()
            request = self._request = _Request(self._next())
            self._send(verb, str(request.seq), *arguments, payload=payload)
            seconds = 60.0 + size / 1e6
            if not await self._until(lambda: request.ended, seconds):
                raise self._broken(f"'{verb}' did not finish within {seconds:.0f} s")
            return request

    async def put(self, path: str, data: bytes, mode: int | None) -> None:
        octal = "-" if mode is None else f"{mode:o}"
        done = await self._transfer("put", quote(path), octal, str(len(data)), payload=data, size=len(data))
        _raise_for(done.words, path)

    async def untar(self, directory: str, archive: bytes) -> None:
        done = await self._transfer(
            "untar", quote(directory), str(len(archive)), payload=archive, size=len(archive) * 4
        )
        _raise_for(done.words, directory)

    async def get(self, path: str, max_bytes: int) -> bytes:
        done = await self._transfer("get", quote(path), str(max_bytes + 1), size=max_bytes)
        match done.words[0]:
            case "ok" if len(done.head) <= max_bytes:
                return bytes(done.head)
            case "ok":
                raise ValueError(f"{path}: larger than {max_bytes} bytes")
            case "dir":
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            case "none":
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            case "denied":
                raise PermissionError(errno.EACCES, "not readable", path)
            case other:
                raise OSError(errno.EIO, f"not a regular file or not readable ({other})", path)


_ERRNOS = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EFBIG, errno.EEXIST, errno.ELOOP)


def _raise_for(words: list[str], path: str) -> None:
    """The error number is read off the message, which is the C locale's."""
    if words[0] == "0":
        return
    text = " ".join(words[1:]) or f"exit code {words[0]}"
    for number in _ERRNOS:
        if os.strerror(number).lower() in text.lower():
            raise OSError(number, text, path)
    raise OSError(errno.EIO, text, path)
