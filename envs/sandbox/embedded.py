"""The embedded backend: sandboxes in Linux namespaces of this machine, for trusted tasks where no Docker engine runs.

Promises: as the contract; its sandboxes end with their channel, so with the driver however it dies; their folders and
control groups lie under names that carry the owner, and the next start removes those whose owner is dead. It kills only
processes that it or such a dead owner started. Weaker than Docker: the kernel, /usr and this Python are shared
(read-only; system calls that no test needs are refused), and without control groups (an ordinary user) memory is
limited per process and processor time is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from envs.sandbox.cgroups import Group, leftover_groups, make_group, remove_leftover
from envs.sandbox.channel_text import LOST, Helpers, quote
from envs.sandbox.channelled import ChannelledSandbox
from envs.sandbox.contract import (
    ImageMissing,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
    StartFailed,
)
from envs.sandbox.death import End
from envs.sandbox.ending import Table
from envs.sandbox.namespaces import bubblewrap_command, default_signals, find_launcher, unshare_command, write_etc
from envs.sandbox.owner import Found, owner_id, standing
from envs.sandbox.stream import SandboxStream

log = logging.getLogger(__name__)
START_S = 30.0
_PREFIX = "sao-sandbox-"
_serial = itertools.count()
_SAID = 1 << 16


def _readable(descriptor: int | None) -> bool:
    if descriptor is None:
        return True
    poll = select.poll()  # select() knows no descriptor above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _watch(told: int) -> int | None:
    """What bubblewrap told about its child, as a descriptor of that process."""
    try:
        return os.pidfd_open(json.loads(os.read(told, 4096))["child-pid"])
    except (OSError, ValueError, KeyError):  # unshare tells nothing; a process that has ended needs no watch
        return None


def _bounded_file(name: str) -> int:
    """A file in memory that cannot grow: what the sandbox can write to outside of itself."""
    made = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(made, _SAID)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return made


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _state(pid: int) -> str:
    """The process table's letter; X when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def _kill_stuck(folder: Path) -> list[int]:
    """Kill processes of a dead owner's sandboxes, known by their standard error, which is named after `folder`.

    bubblewrap's init waits for a word from its parent before it asks to die with it; a driver that dies in that moment
    takes the parent along, and init would wait for ever."""
    killed = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if os.readlink(entry / "fd" / "2").split(" ")[0] == f"/memfd:{folder.name}":
                table = Table.of(int(entry.name))
                os.kill(int(entry.name), signal.SIGKILL)
                if table is not None:
                    with table:
                        table.end()
                killed.append(int(entry.name))
    return killed


def _copy_tree(source: Path, target: Path) -> None:
    """With modes, times, links and odd names as they are; shares blocks where the file system can. Raises OSError."""
    words = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{source} could not be copied: {done.stderr.strip()[:500]}")


class EmbeddedSandbox(ChannelledSandbox):
    def __init__(self, backend: EmbeddedBackend, sandbox_id: str, spec: SandboxSpec, folder: Path) -> None:
        super().__init__(sandbox_id, spec)
        self._backend: EmbeddedBackend = backend
        self.folder = folder
        self.group = Group()
        self._grouping: asyncio.Future[Group] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._told: int | None = None
        self._said: int | None = None
        """What bubblewrap and the channel's shell write on standard error."""
        self._init: int | None = None
        """Descriptor that becomes readable when the sandbox's init has ended (bubblewrap only; `unshare` waits)."""
        self._stream = SandboxStream(self.channel, multiplexed=False)

    async def _start(self, etc: Path) -> None:
        self.folder.mkdir()
        self._grouping = asyncio.ensure_future(asyncio.to_thread(make_group, self.sandbox_id, self.spec.limits))
        self.group = await asyncio.shield(self._grouping)  # a thread cannot be cancelled: what it makes is awaited
        # The shell enters the control groups itself, so that no process of the sandbox is ever outside.
        enter = "".join(f"echo $$ >{quote(file)} || exit 97;" for file in self.group.procs)
        enter += f'ulimit -c 0; ulimit -f {self.spec.limits.disk_bytes // 512}; exec "$@"'
        ours, theirs = socket.socketpair()
        self._said = _bounded_file(self.folder.parent.name)
        with theirs, (self.folder / "args").open("w+b") as args, (self.folder / "filter").open("w+b") as rules:
            # Kept open to the end: a bubblewrap that cannot tell dies, and its init then waits for it for ever.
            self._told, telling = os.pipe()
            os.set_blocking(self._told, False)
            passed = (args.fileno(), rules.fileno(), telling)
            argv = self._backend.command(self.spec, self.folder, etc, passed)
            # asyncio's own spawning takes one thread a process on Python 3.11; this returns as soon as sh runs.
            # No environment: the sandbox could read it from its init.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*default_signals(), "/bin/sh", "-c", enter, "sandbox", *argv], env={}, cwd="/", start_new_session=True,
                stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._said,
                pass_fds=[fd for fd in passed if str(fd) in argv],
            )  # fmt: skip
            os.close(telling)
        await self._stream.connect(ours)
        limits = self._backend.shell_limits(self.spec, self.group)
        self._write(self.channel.script(limits, image="embedded", helpers=self._backend.helpers))
        await self.channel.ready(START_S)
        self._init = _watch(self._told)
        if self.spec.state:
            await asyncio.to_thread(_copy_tree, Path(self.spec.state), self.work)

    @property
    def work(self) -> Path:
        """The workdir as this machine's files, for as long as nothing that is not the driver's runs in the sandbox."""
        inner = _children(self._process.pid) if self._process is not None else []
        if not inner:
            raise OSError(f"sandbox {self.sandbox_id} has ended")
        return Path(f"/proc/{inner[0]}/root{self.spec.workdir}")

    def _write(self, data: bytes) -> None:
        self._stream.write(data)

    def messages(self) -> str:
        said = os.pread(self._said, _SAID, 0) if self._said is not None else b""
        return said.rstrip(b"\0")[-2000:].decode("utf-8", "replace").strip()

    async def _end(self, silent: bool) -> End:
        await self._ended(0.1 if silent else 2.0)
        process = self._process
        code = process.poll() if process is not None else None
        running = process is not None and code is None
        if code == 1 and self._backend.launcher == "unshare":
            code = None  # it says 1 when a signal killed the sandbox's init
        return End(
            running=running,
            code=code,
            oom=code in (None, 137, -signal.SIGKILL, LOST) and self.group.oom_kills() > 0,
            outside=process is not None and _state(process.pid) == "T",
            said=self.messages(),
        )

    async def _ended(self, seconds: float) -> bool:
        """Wait until nothing of it runs: the outermost process has ended and so has the sandbox's init, which the
        kernel lets end only after every other process of its table."""
        for pause in itertools.chain([0.0005, 0.001, 0.002], itertools.repeat(0.005, int(seconds / 0.005))):
            if (self._process is None or self._process.poll() is not None) and _readable(self._init):
                return True
            await asyncio.sleep(pause)
        return False

    async def altered(self, rules: Sequence[str]) -> tuple[str, ...] | None:
        """All but the workdir and the home is read-only."""
        own = [rule for rule in rules if rule[0] == "-" or rule[1:].startswith(("/root/", f"{self.spec.workdir}/"))]
        return await super().altered(own)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._stream.close()
        if self._grouping is not None:
            self.group = await self._grouping
        if self._process is not None and not await self._ended(0.5):
            await self._kill(self._process.pid)
            if not await self._ended(20.0):
                log.warning("sandbox %s was killed and is still ending", self.sandbox_id)
        for descriptor in (self._init, self._told, self._said):
            if descriptor is not None:
                os.close(descriptor)
        self._init = self._told = self._said = None
        await asyncio.to_thread(self.group.remove)
        await asyncio.to_thread(shutil.rmtree, self.folder, True)
        self._backend.forget(self)

    async def _kill(self, pid: int) -> None:
        """Kill the outermost process and all of the sandbox's table. The first alone is not enough: bubblewrap's init
        waits for a word from it before it asks to die with it. It is stopped first, so that it has no child that is not
        seen."""
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
            for _ in range(100):
                if _state(pid) in "TZX":
                    break
                await asyncio.sleep(0.001)
            self.group.no_more()
            for child in _children(pid):
                with Table.of(child) or contextlib.nullcontext() as table:
                    watch = os.pidfd_open(child)
                    signal.pidfd_send_signal(watch, signal.SIGKILL)
                    if self._init is None:
                        self._init = watch
                    else:
                        os.close(watch)
                    if table is not None:
                        await asyncio.to_thread(table.end)
            os.kill(pid, signal.SIGKILL)


class EmbeddedBackend(SandboxBackend):
    name = "embedded"

    def __init__(
        self,
        run_id: str,
        *,
        temp: Path | None = None,
        launcher: str | None = None,
        helpers: Helpers = Helpers.WHERE_PRESENT,
    ) -> None:
        """`launcher`: "bwrap" or "unshare"; None takes what works here. Raises BackendUnavailable."""
        self.helpers = helpers
        self.run_id = run_id
        self.launcher = find_launcher(launcher)
        self._temp = temp or Path(tempfile.gettempdir())
        self._root: Path | None = None
        self._making: asyncio.Future[Path] | None = None
        self._live: set[EmbeddedSandbox] = set()

    def command(self, spec: SandboxSpec, folder: Path, etc: Path, descriptors: tuple[int, int, int]) -> list[str]:
        """`descriptors`: for its arguments, for its filter, and to tell what it started."""
        if self.launcher == "unshare":
            return unshare_command(spec, folder, etc, descriptors[1])
        return bubblewrap_command(spec, etc, *descriptors)

    def shell_limits(self, spec: SandboxSpec, group: Group) -> str:
        """Resource limits for what control groups do not cover here."""
        lines = []
        if "memory" in group.weak:
            lines.append(f"ulimit -v {spec.limits.memory_bytes // 1024}")
        if "pids" in group.weak:
            lines.append(f"ulimit -u {spec.limits.pids} 2>/dev/null || ulimit -p {spec.limits.pids} 2>/dev/null")
        return "\n".join(lines)

    async def check(self) -> None:
        await asyncio.to_thread(find_launcher, self.launcher)

    async def _folder(self) -> Path:
        """Made once, by the first that asks. A thread cannot be cancelled: what it makes is waited for by `close`."""
        if self._root is None:
            if self._making is None:
                self._making = asyncio.ensure_future(asyncio.to_thread(self._make_folder))
            try:
                self._root = await asyncio.shield(self._making)
            except OSError:
                self._making = None
                raise
        return self._root

    def _make_folder(self) -> Path:
        root = self._temp / f"{_PREFIX}{owner_id()}-{os.urandom(3).hex()}"
        root.mkdir(mode=0o700, parents=True)
        write_etc(root / "etc")
        return root

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if spec.network != "none":
            await self.check_network()
        if spec.state and not await asyncio.to_thread(os.path.isdir, spec.state):
            raise ImageMissing(f"the kept state {spec.state} is gone")
        root = await self._folder()
        sandbox_id = f"{root.name.removeprefix(_PREFIX)}-{next(_serial)}"
        sandbox = EmbeddedSandbox(self, sandbox_id, spec, root / sandbox_id.rpartition("-")[2])
        self._live.add(sandbox)
        try:
            await sandbox._start(root / "etc")
        except BaseException as error:
            said = sandbox.messages()
            await sandbox.close()
            if isinstance(error, SandboxError | OSError):
                raise StartFailed(f"the embedded sandbox did not start: {said or error}") from error
            raise
        return sandbox

    def forget(self, sandbox: EmbeddedSandbox) -> None:
        self._live.discard(sandbox)

    async def keep_state(self, sandbox: Sandbox) -> str:
        if not isinstance(sandbox, EmbeddedSandbox):
            raise TypeError(f"{type(sandbox).__name__} is no sandbox of the embedded backend")
        state = (await self._folder()) / f"state-{next(_serial)}"
        state.mkdir()
        try:
            await asyncio.to_thread(_copy_tree, sandbox.work, state)
        except OSError as error:
            raise SandboxError(f"the state of sandbox {sandbox.sandbox_id} could not be kept: {error}") from error
        return str(state)

    async def drop_state(self, state: str) -> None:
        await asyncio.to_thread(shutil.rmtree, state, True)

    async def survey(self) -> list[Found]:
        return await asyncio.to_thread(self._survey)

    def _survey(self) -> list[Found]:
        """A folder of a driver holds its sandboxes' files; a control group is one sandbox's."""
        found = []
        for folder in self._temp.glob(f"{_PREFIX}*"):
            owner = folder.name.removeprefix(_PREFIX).rpartition("-")[0]
            try:
                note = f"{sum(1 for each in folder.iterdir() if each.name.isdigit())} sandboxes"
                made_at = folder.stat().st_mtime
            except PermissionError:
                note, made_at = "another user's", None
            except FileNotFoundError:  # its driver has just removed it
                continue
            found.append(Found("folder", str(folder), standing(owner, None), owner, made_at=made_at, note=note))
        for folder in leftover_groups():
            owner = folder.name.rpartition("-")[0].rpartition("-")[0]
            found.append(Found("control group", str(folder), standing(owner, None), owner))
        return found

    async def reap(self) -> list[str]:
        return await asyncio.to_thread(self._reap)

    def _reap(self) -> list[str]:
        removed = []
        for found in self._survey():
            path = Path(found.name)
            if found.standing != "abandoned":
                continue
            if found.kind == "folder":
                removed += [f"process {pid}" for pid in _kill_stuck(path)]
                shutil.rmtree(path, ignore_errors=True)
                removed.append(found.name)
            elif remove_leftover(path):
                removed.append(found.name)
        return removed

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        if self._making is not None:
            with contextlib.suppress(OSError):
                self._root = await self._making
        if self._root is not None:
            await asyncio.to_thread(shutil.rmtree, self._root, True)
        self._root = self._making = None
