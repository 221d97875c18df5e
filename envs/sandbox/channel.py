"""The driver's end of a sandbox's channel: requests out, frames and raw output back.

Promises: one request at a time; a command's output is exactly the bytes it wrote before it ended, head and tail kept
and the bytes between them counted when it wrote too much; a background child that holds the output open never blocks
the return; a time-out returns only after the process table showed nothing but init and the channel; a cancelled
request leaves no command running once the next request starts; a broken channel is SandboxDead, never a hang.

A request is one line, `<nonce> <verb> <seq> <arguments>`; `put` and `untar` are followed by their bytes. channel.sh
takes texts as quoted words, channel.pl their lengths, and then they follow the line. An answer is a frame, RS <nonce>
<seq> <kind> [arguments] LF, with raw bytes between frames:

    R [perl]      the channel is up; it is channel.pl
    A             the command is about to start
    B [pid]       output begins (pid: the filter process that passes it on)
    E code [text] output ends here; what follows comes from background children
    D code, X     the command's shell has ended / the runner is idle; seen also when E is lost on the way.
                  `X nofork`: a process of the channel could not be started, or the waiting shell is gone
    T, Z count    the raw bytes from here on are the output's tail; `count` bytes went into the filter since T
    C             the filter passes nothing on any more
    S pids        stop: what was still in the process table (killed); empty is the proof
    F how         flush: 1 ended the filter's reader, 0 it was busy, gone

A command of channel.sh is two requests. `prepare` starts its shell and filter, which wait; it is sent when the command
before it is over, so that nothing has to be started while somebody waits for `command`. The cap of the output goes with
it. With channel.pl it is one, `run`, which says whether to make the next one's shell ready; there are no filters.

The nonce is random for each sandbox: output cannot imitate a frame by accident.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from envs.sandbox.channel_text import RS, Helpers, channel_script, check_env, exports, may_teach, quote, remember
from envs.sandbox.contract import ExecResult, SandboxError, SandboxSpec
from envs.sandbox.request import Request, raise_for

BLOCK = 2048
"""Size of one read of the output's head, as in channel.sh."""
FLUSH_AFTER_S = 0.1
ANSWER_S = 10.0
STOP_LIMIT_S = 20.0
MAX_COMMAND = 1 << 20
LOST = b"\nsh: the sandbox's process table is full: output is lost, and everything that ran was killed\n"


class Channel:
    """`write` sends bytes to the sandbox's main process; the owner sends `script` first and calls `feed` and `lost`.
    `diagnose` says why it broke; its argument is what was seen of a sandbox that has not ended, else empty."""

    def __init__(
        self, spec: SandboxSpec, write: Callable[[bytes], None], diagnose: Callable[[str], Awaitable[SandboxError]]
    ) -> None:
        self.helper = False
        """It is channel.pl."""
        self.nonce = secrets.token_hex(8)
        self.spec = spec
        self._write = write
        self._diagnose = diagnose
        self._lock = asyncio.Lock()
        self._tick = asyncio.Event()
        self._seq = 0
        self._request: Request | None = None
        """The one whose output the raw bytes are."""
        self._prepared: Request | None = None
        """The next command's: its shell and filter wait."""
        self._answers: dict[int, tuple[str, list[str]]] = {}
        self._buffer = bytearray()
        self._prefix = b"\x1e" + self.nonce.encode() + b" "
        self._frames = re.compile(self._prefix + rb"(\d+) ([A-Z])([^\n\x1e]*)\n")
        self._filters: dict[int, str] = {}
        """By seq, the process number of each filter that may still pass output on."""
        self._dirty = self._cut = False
        self._learns: str | None = None
        """The image of which the first answer tells whether the helper works there."""
        self.up = False
        self.dead = False
        self.used = False
        """A command was sent."""
        self._garbled = ""
        self._death: SandboxError | None = None

    def script(self, limits: str = "", *, image: str = "", helpers: Helpers = Helpers.WHERE_PRESENT) -> bytes:
        """The text for the sandbox's `sh`; `limits` is further shell text, run before anything else starts. `image`:
        what the sandbox is made from; what is known of one holds for the next."""
        self._learns = image if may_teach(self.spec, helpers) else None
        return channel_script(self.spec, self.nonce, limits, image=image, helpers=helpers)

    # -- from the sandbox

    def feed(self, data: bytes) -> None:
        if self._garbled:
            return
        try:
            self._feed(data)
        except (ValueError, IndexError) as error:  # no frame of the channel's: somebody else writes like it
            self._garbled = f"an answer of its channel cannot be read ({error})"
            self.lost()

    def _feed(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while match := self._frames.search(buffer):
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
            self.up, self.helper = True, bool(words)
            if self._learns is not None:
                remember(self._learns, self.helper)
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

    def _send(
        self, verb: str, seq: int, texts: Sequence[str] = (), numbers: Sequence[object] = (), data: bytes = b""
    ) -> None:
        words = [self.nonce, verb, str(seq)]
        if self.helper:
            raw = [text.encode("utf-8", "surrogateescape") for text in texts]
            words += [*map(str, numbers), *(str(len(text)) for text in raw)]
            data = b"".join(raw) + data
        else:
            words += [*map(quote, texts), *map(str, numbers)]
        self._write(" ".join(words).encode("utf-8", "surrogateescape") + b"\n" + data)

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for `done`; False when `seconds` have passed. Raises when the channel breaks."""
        end = time.monotonic() + seconds
        while not done():
            if self.dead:
                raise await self._why()
            self._tick.clear()
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                # Not wait_for: before Python 3.12 that swallows a cancellation which comes together with the tick.
                async with asyncio.timeout(left):
                    await self._tick.wait()
            except TimeoutError:
                return done()
        return True

    async def _answer(self, verb: str, *numbers: str) -> list[str]:
        seq = self._next()
        self._send(verb, seq, numbers=numbers)
        if not await self._until(lambda: seq in self._answers, ANSWER_S):
            raise await self._broken(f"no answer to '{verb}' within {ANSWER_S:g} s")
        return self._answers.pop(seq)[1]

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    async def _why(self, silent: str = "") -> SandboxError:
        """Asked once: the engine forgets, and whoever asks later shall hear the same."""
        self.dead = True
        if self._death is None:
            death = await self._diagnose(silent or self._garbled)
            self._death = self._death or death
        return self._death

    async def _broken(self, why: str) -> SandboxError:
        return await self._why(f"its channel is broken: {why}")

    async def ready(self, seconds: float) -> None:
        if not await self._until(lambda: self.up, seconds):
            raise await self._broken(f"it did not come up within {seconds:g} s")
        self._prepare()

    async def run(
        self, command: str, *, timeout_s: float, cwd: str, env: Mapping[str, str], last: bool = False
    ) -> ExecResult:
        """One command in its own session; see the contract's exec."""
        if "\0" in command:
            return ExecResult(b"sh: a command cannot hold a NUL byte\n", 126, 0.0)
        if len(command) > MAX_COMMAND:
            return ExecResult(f"sh: command longer than {MAX_COMMAND} characters\n".encode(), 126, 0.0)
        check_env(env)
        async with self._lock:
            await self._settle()
            self.used = True
            result = await self._run(command, timeout_s, cwd, env, last)
            if result is None:  # nothing could be started; now everything else is killed
                result = await self._run(command, timeout_s, cwd, env, last)
            if result is None:
                # Memory can be full of files, which no kill gives back.
                raise await self._broken("no process could be started although everything else was killed")
            if not last:
                self._prepare()
            return result

    def _prepare(self) -> Request | None:
        """Have the next command's shell started; the helper does it by itself."""
        if self.helper:
            return None
        cap = self.spec.limits.output_bytes
        self._prepared = Request(self._next(), cap)
        self._send("prepare", self._prepared.seq, numbers=_shares(cap, BLOCK))
        return self._prepared

    def _begin(self, command: str, cwd: str, env: Mapping[str, str], last: bool) -> Request:
        cap = self.spec.limits.output_bytes
        if self.helper:
            request = self._request = Request(self._next(), cap)
            variables = "\0".join(f"{name}={value}" for name, value in env.items())
            self._send("run", request.seq, (cwd, variables, command), (*_shares(cap, 1), int(not last)))
            return request
        waiting = self._prepared
        if waiting is not None and waiting.cap != cap and not waiting.exited:
            self._command(waiting.seq, "exit")
        if waiting is None or waiting.exited or waiting.cap != cap:
            waiting = self._prepare()
            assert waiting is not None
        self._request, self._prepared = waiting, None
        begin = f"printf '\\036{self.nonce} {waiting.seq} A\\n' >&3;exec 3>&- </dev/null;cd -- {quote(cwd)}||exit 126;"
        # One argument of a program may have 128 KiB.
        do = 'exec sh -c "$1"' if len(command) < 30_000 else 'eval "set --;$1"'
        body = f"set -- {quote(command)};unset sao_nl sao_c;{do}"
        self._command(waiting.seq, begin + exports(env) + body)
        return waiting

    def _command(self, seq: int, text: str) -> None:
        self._write(f"{self.nonce} command {seq} {text}\n".encode("utf-8", "surrogateescape"))

    async def _run(
        self, command: str, timeout_s: float, cwd: str, env: Mapping[str, str], last: bool
    ) -> ExecResult | None:
        """None: the command was not started, since what earlier ones left running fills the process table; it is clear
        now."""
        started = time.monotonic()
        request = self._begin(command, cwd, env, last)
        self._dirty = True
        self._cut = False
        await self._until(lambda: request.complete or request.exited or self._cut, timeout_s)
        timed_out = not (request.complete or request.exited)
        whole = timed_out or await self._collect(request)
        if timed_out or not (whole and request.started):
            await self._stop(request)
        self._dirty = False
        if not (timed_out or request.started):
            return None
        result = request.result(time.monotonic() - started, timed_out)
        return result if whole else replace(result, output=result.output + LOST, exit_code=request.code or 126)

    def cut(self) -> None:
        """End the command that runs now as if its time were over."""
        self._cut = True
        self._tick.set()

    async def _collect(self, request: Request) -> bool:
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
            raise await self._why()
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
        raise await self._broken("an earlier command's output cannot be closed")

    async def _stop(self, request: Request) -> None:
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
                raise await self._broken(f"processes {' '.join(left)} survive every kill")
            await asyncio.sleep(pause)
            pause = min(0.05, pause * 2)
        self._filters.clear()

    # -- files

    async def _transfer(self, verb: str, path: str, *numbers: object, data: bytes = b"", size: int = 0) -> Request:
        async with self._lock:
            await self._settle()
            request = self._request = Request(self._next())
            self._send(verb, request.seq, (path,), numbers, data)
            seconds = 60.0 + size / 1e6
            if not await self._until(lambda: request.ended, seconds):
                raise await self._broken(f"'{verb}' did not finish within {seconds:.0f} s")
            return request

    async def put(self, path: str, data: bytes, mode: int | None) -> None:
        octal = "-" if mode is None else f"{mode:o}"
        done = await self._transfer("put", path, octal, len(data), data=data, size=len(data))
        raise_for(done.words, path)

    async def untar(self, directory: str, archive: bytes) -> None:
        done = await self._transfer("untar", directory, len(archive), data=archive, size=len(archive) * 4)
        raise_for(done.words, directory)

    async def get(self, path: str, max_bytes: int) -> bytes:
        done = await self._transfer("get", path, max_bytes + 1, size=max_bytes)
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

    async def look(self, rules: Sequence[str]) -> tuple[str, ...] | None:
        """Files that changed since the channel came up, see channel_files.pl; None where it is channel.sh."""
        if not self.helper:
            return None
        done = await self._transfer("look", "\0".join(rules))
        if done.words[0] == "unknown":
            return None
        return tuple(os.fsdecode(path) for path in bytes(done.head).split(b"\0") if path)


def _shares(cap: int, block: int) -> tuple[int, int]:
    """Reads of the output's head, of `block` bytes each, and bytes of its tail (64: room for the E frame)."""
    reads = max(1, cap // 2 // block)
    return reads, max(1, cap - reads * block) + 64 * (block > 1)
