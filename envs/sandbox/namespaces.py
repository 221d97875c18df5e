"""The command line that puts the embedded sandbox's shell into its own Linux namespaces.

Promises: own process table, own network without any interface up but loopback, own mounts: this machine's /usr and this
Python read-only; what can be written, the workdir, /tmp, HOME and /dev/shm, are tmpfs of their own with a size each, so
nothing a sandbox writes is on disk, nothing is left to remove, and it counts as the sandbox's memory; no capabilities,
no new privileges, no user namespaces inside (a new one would have capabilities), a filter of system calls
(`envs.sandbox.seccomp`), user 0 inside (git then finds its files owned by the user it runs as).
Nothing of the machine's /home, /root, /etc, /run or /var is visible, nor the driver's environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from envs.sandbox.channelled import BASE_ENV
from envs.sandbox.contract import BackendUnavailable, SandboxLimits, SandboxSpec
from envs.sandbox.seccomp import may_watch, seccomp_filter

HOME = "/root"


_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_OLDEST_PYTHON = (3, 9)


@cache
def python_prefix() -> Path | None:
    """This Python's installation, shown inside read-only where /usr has no recent python3 of its own. What users have
    installed beside their Python (packages, start-up hooks that cost more than a test run) otherwise stays outside."""
    prefix = Path(sys.base_prefix).resolve()
    own = shutil.which("python3", path=_SYSTEM_PATH)
    if own is not None and Path(own).resolve().is_relative_to("/usr"):
        test = f"import sys, unittest; sys.exit(sys.version_info < {_OLDEST_PYTHON})"
        if subprocess.run([own, "-I", "-c", test], capture_output=True).returncode == 0:
            return None
    return None if prefix.is_relative_to("/usr") else prefix


def inner_path() -> str:
    prefix = python_prefix()
    return (f"{prefix}/bin:" if prefix else "") + f"{_SYSTEM_PATH}:/usr/sbin:/sbin"


def write_etc(folder: Path) -> None:
    """The sandbox's /etc: the few files that programs ask for, and this machine's linker cache and alternatives, which
    /usr refers to. One folder, so that one mount shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (folder / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (folder / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    for name in ("ld.so.cache", "ld.so.conf"):
        if Path("/etc", name).is_file():
            shutil.copy(Path("/etc", name), folder / name)
    for name in ("ld.so.conf.d", "alternatives"):
        if Path("/etc", name).is_dir():
            shutil.copytree(Path("/etc", name), folder / name, symlinks=True, dirs_exist_ok=True)


@cache
def _tree() -> list[tuple[str, Path]]:
    """Top-level folders shown read-only, as (how, path): how is "bind" or "link"."""
    found = []
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            found.append(("link", path))
        elif path.is_dir():
            found.append(("bind", path))
    return found


@cache
def kernel_switches() -> list[str]:
    """What of /proc a driver that is root could change for the whole machine: shown read-only (its user number is
    root's inside too, and these files ask for nothing more)."""
    found = [
        name for name in ("sys", "irq", "bus", "fs", "driver", "acpi", "scsi", "tty") if Path("/proc", name).is_dir()
    ]
    with os.scandir("/proc") as entries:
        found += [e.name for e in entries if e.is_file(follow_symlinks=False) and e.stat().st_mode & 0o222]
    return [f"/proc/{name}" for name in sorted(found)]


def room(limits: SandboxLimits) -> int:
    """Bytes that each writable place may hold: the disk limit, but never so much that a full one leaves no memory."""
    return min(limits.disk_bytes, limits.memory_bytes // 2)


def bubblewrap_arguments(spec: SandboxSpec, etc: Path) -> list[str]:
    size = str(room(spec.limits))
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--as-pid-1"]
    words += ["--uid", "0", "--gid", "0", "--hostname", "sandbox", *_no_user_namespaces()]
    for how, path in _tree():
        words += ["--symlink", os.readlink(path), str(path)] if how == "link" else ["--ro-bind", *[str(path)] * 2]
    words += ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", HOME, "--dir", "/run", "--dir", "/var/tmp"]
    words += ["--ro-bind", str(etc), "/etc"]
    if prefix := python_prefix():
        words += ["--ro-bind", str(prefix), str(prefix)]
    words += ["--proc", "/proc"]
    for name in kernel_switches():
        words += ["--ro-bind", name, name]
    words += ["--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    words += ["--size", size, "--tmpfs", spec.workdir, "--remount-ro", "/", "--chdir", "/"]
    for name, value in environment(spec).items():
        words += ["--setenv", name, value]
    return words


@cache
def _no_user_namespaces() -> list[str]:
    """bubblewrap before 0.8 cannot forbid them."""
    told = subprocess.run(["bwrap", "--help"], capture_output=True, text=True)
    return ["--disable-userns"] if "--disable-userns" in told.stdout + told.stderr else []


def bubblewrap_command(spec: SandboxSpec, etc: Path, arguments_fd: int, filter_fd: int, info_fd: int) -> list[str]:
    """The arguments go through a file: a command that lists processes shall not read this machine's folders there."""
    words = [shutil.which("bwrap") or "bwrap", "--args", str(arguments_fd), "--info-fd", str(info_fd)]
    _fill(arguments_fd, b"".join(os.fsencode(word) + b"\0" for word in bubblewrap_arguments(spec, etc)))
    if program := seccomp_filter(watches=may_watch(spec.limits)):
        _fill(filter_fd, program)
        words += ["--seccomp", str(filter_fd)]
    return [*words, "--", "/bin/sh"]


def _fill(descriptor: int, data: bytes) -> None:
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)


def unshare_command(spec: SandboxSpec, folder: Path, etc: Path, filter_fd: int) -> list[str]:
    root = folder / "root"
    root.mkdir()
    words = [str(root), spec.workdir, str(etc), str(python_prefix() or "-"), str(room(spec.limits))]
    words += _loads(spec, filter_fd)
    words += [*kernel_switches(), "--"]
    words += [f"{name}={value}" for name, value in environment(spec).items()]
    unshare = shutil.which("unshare") or "unshare"
    return [unshare, *_UNSHARE[1:], "--kill-child", "/bin/sh", str(Path(__file__).with_name("namespaces.sh")), *words]


_LOADER = """
open(my $file, '<&=', $ARGV[0]) or die "no filter: $!";
read($file, my $program, 65536) or die "no filter: $!";
my $named = pack 'S x6 P', length($program) / 8, $program;
syscall($ARGV[1], 22, 2, $named) == 0 or die "the filter is refused: $!";
exec @ARGV[2 .. $#ARGV] or die "$!";
"""
"""prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) in perl, which every Debian has, without modules."""
_PRCTL = {"x86_64": 157, "aarch64": 167}


def _loads(spec: SandboxSpec, filter_fd: int) -> list[str]:
    """FILTER, PRCTL and LOADER of namespaces.sh; without perl there is no filter."""
    program = seccomp_filter(watches=may_watch(spec.limits))
    if program is None or shutil.which("perl", path=_SYSTEM_PATH) is None:
        return ["-", "-", "-"]
    _fill(filter_fd, program)
    return [str(filter_fd), str(_PRCTL[os.uname().machine]), _LOADER]


def default_signals() -> list[str]:
    """Words before a command that give it the signals that this process ignores (under nohup, or as a background job of
    a script). No shell could take them back, and what a command sees must not hang on how the driver was started."""
    kept = {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own, given back by subprocess
    ignored = [each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN and each not in kept]
    env = shutil.which("env")
    if not ignored or env is None or not _resets_signals(env):
        return []
    return [env, f"--default-signal={','.join(str(int(each)) for each in ignored)}"]


@cache
def _resets_signals(env: str) -> bool:
    """Debian's does since coreutils 8.31; busybox's does not."""
    return subprocess.run([env, "--default-signal=INT", "true"], capture_output=True, check=False).returncode == 0


def environment(spec: SandboxSpec) -> dict[str, str]:
    return {**BASE_ENV, "PATH": inner_path(), **spec.env}


_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts"]
_BUBBLEWRAP = ["bwrap", "--unshare-all", "--unshare-user", "--as-pid-1", "--ro-bind", "/", "/", "--proc", "/proc"]
_TRIALS = {
    # `--size` came last of what it is asked for, with bubblewrap 0.7
    "bwrap": [*_BUBBLEWRAP, "--size", "65536", "--tmpfs", "/tmp", "true"],
    "unshare": [*_UNSHARE, "--mount-proc", "setpriv", "--bounding-set", "-all", "--no-new-privs", "true"],
}


@cache
def _fault(name: str) -> str:
    """Why this launcher does not work here; empty when it does."""
    if shutil.which(name) is None:
        return f"{name} is not installed"
    try:
        done = subprocess.run(_TRIALS[name], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    return "" if done.returncode == 0 else f"{name}: {done.stderr.strip() or f'exit code {done.returncode}'}"


def find_launcher(wanted: str | None = None) -> str:
    """ "bwrap", or "unshare" where that is absent; BackendUnavailable with the reason when neither works."""
    if sys.platform != "linux":
        raise BackendUnavailable("the embedded sandbox needs Linux namespaces; on this system use --sandbox docker")
    names = [wanted] if wanted else list(_TRIALS)
    for name in names:
        if not _fault(name):
            return name
    switches = []
    for switch, bad in (
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        file = Path("/proc/sys") / switch
        if file.exists() and file.read_text().strip() == bad:
            switches.append(f"{switch.replace('/', '.')} = {bad}")
    raise BackendUnavailable(
        f"the embedded sandbox cannot run here ({'; '.join([*map(_fault, names), *switches])}). Install bubblewrap "
        "(Debian: apt-get install bubblewrap) and allow user namespaces, or use --sandbox docker."
    )
