"""The doctor on the kernel: cgroups, namespaces, limits, memory, disks. Reads only."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from envs.images.disk import gib
from sao.doctor_finding import Finding, Host, Level, Load
from sao.paths import runs_folder

GIB = 1 << 30
_DRIVER_FILES = 8
"""Open files of the driver for one sandbox: streams, files under way."""
_OWN_FILES = 256


def check_kernel(host: Host, load: Load) -> Iterator[Finding]:
    release = host.read("/proc/sys/kernel/osrelease") or "unknown"
    systems = (host.read("/proc/filesystems") or "").split()
    missing = [name for name in ("overlay", "tmpfs") if name not in systems]
    if missing:
        yield Finding(
            "warn",
            "kernel",
            f"{release}, without {', '.join(missing)}",
            "the engine may have to copy whole images for every container",
            "quick starts",
            f"load the module: modprobe {missing[0]}",
        )
    else:
        yield Finding("ok", "kernel", release)
    pattern = host.read("/proc/sys/kernel/core_pattern") or ""
    if pattern.startswith("|"):
        yield Finding(
            "warn",
            "core dumps",
            f"kernel.core_pattern starts {pattern.split()[0][1:]}",
            "a program that crashes in a sandbox starts this program on the machine, outside of any sandbox",
            "nothing of a sandbox runs outside of it",
            "sysctl kernel.core_pattern=core",
        )


def check_cgroups(host: Host, load: Load) -> Iterator[Finding]:
    """Docker has the engine's own; these are the embedded sandbox's."""
    root = host.path("/sys/fs/cgroup")
    unified = host.read("/sys/fs/cgroup/cgroup.controllers")
    if unified is not None:
        version, have = 2, [name for name in ("memory", "pids", "cpu") if name in unified.split()]
        writable = have if os.access(root, os.W_OK) and os.access(root / "cgroup.subtree_control", os.W_OK) else []
        freezer, swap = True, True
    else:
        version, have = 1, [name for name in ("memory", "pids", "cpu") if (root / name / "cgroup.procs").exists()]
        writable = [name for name in have if os.access(root / name, os.W_OK)]
        freezer = (root / "freezer" / "cgroup.procs").exists()
        swap = (root / "memory" / "memory.memsw.limit_in_bytes").exists()
    if not have:
        yield Finding(
            "warn",
            "cgroups",
            "no memory, pids or cpu controller is mounted",
            "neither Docker nor the embedded sandbox can limit what a sandbox uses",
            "limits on memory, processes and processors",
            "mount cgroup2 at /sys/fs/cgroup, or start the machine's system (systemd does)",
        )
        return
    lacking = [name for name in ("memory", "pids", "cpu") if name not in writable]
    if lacking:
        yield Finding(
            "warn",
            "cgroups",
            f"version {version}; this user cannot make groups for {', '.join(lacking)}",
            "the embedded sandbox limits single processes there, not the sandbox as a whole; Docker is not concerned",
            f"embedded sandboxes: limits on {', '.join(lacking)} of a whole sandbox",
            "run as root, or delegate: systemd-run --user -p Delegate=yes --scope sao rollout ...",
        )
    else:
        yield Finding("ok", "cgroups", f"version {version}: memory, pids and cpu can be limited")
    if not freezer:
        yield Finding(
            "warn",
            "freezer",
            "no cgroup freezer",
            "after a time-out processes are killed while they run: one that forks quickly costs more rounds",
            mend="mount the freezer controller, or use cgroup version 2",
        )
    memory = host.table("/proc/meminfo")
    if memory.get("SwapTotal") and not swap:
        yield Finding(
            "warn",
            "swap",
            f"{gib(memory['SwapTotal'])} of swap, and the kernel does not account for it",
            "a sandbox at its memory limit swaps, and slows the whole machine, before it is ended",
            "no swap for sandboxes",
            "swapoff -a, or boot with swapaccount=1",
        )


_SWITCHES = (
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
)


def check_namespaces(host: Host, load: Load) -> Iterator[Finding]:
    for name, bad, mend in _SWITCHES:
        if host.read(f"/proc/sys/{name}") == bad:
            yield Finding(
                "warn",
                "user namespaces",
                f"{name.replace('/', '.')} = {bad}",
                "the embedded sandbox cannot run here unless as root; Docker can",
                "embedded sandboxes",
                mend,
            )
    few = []
    for kind in ("user", "pid", "net", "mnt", "ipc", "uts"):
        most = host.number(f"user/max_{kind}_namespaces")
        if most is not None and 0 < most < 2 * load.sandboxes + 16:
            few.append(f"user.max_{kind}_namespaces = {most}")
    if few:
        yield Finding(
            "warn",
            "namespaces",
            ", ".join(few),
            f"{load.sandboxes} sandboxes at once need {2 * load.sandboxes + 16} of each",
            f"{load.sandboxes} sandboxes at once",
            "raise them with sysctl",
        )


def check_embedded(host: Host, load: Load) -> Iterator[Finding]:
    from envs.sandbox import BackendUnavailable
    from envs.sandbox.namespaces import find_launcher

    try:
        chosen = find_launcher()
    except BackendUnavailable as error:
        yield Finding("warn", "embedded sandbox", str(error), loses="embedded sandboxes")
        return
    if chosen == "bwrap":
        yield Finding("ok", "embedded sandbox", "bubblewrap: namespaces of this machine, for trusted tasks only")
    else:
        yield Finding(
            "warn",
            "embedded sandbox",
            f"{chosen}, without bubblewrap",
            "it works, with more steps in the open",
            mend="apt-get install bubblewrap",
        )


def check_limits(host: Host, load: Load) -> Iterator[Finding]:
    """Kernel-wide numbers that many sandboxes use up together."""
    wanted = load.sandboxes * load.pids
    rows = [
        ("kernel/pid_max", wanted + 2000, f"{load.sandboxes} sandboxes with {load.pids} processes each"),
        ("kernel/threads-max", wanted + 2000, f"{load.sandboxes} sandboxes with {load.pids} threads each"),
        ("fs/inotify/max_user_watches", 8192 + 4096 * load.sandboxes, "programs that watch whole source trees"),
        ("fs/file-max", load.sandboxes * 1024 + 10000, "1024 open files in every sandbox"),
        ("kernel/keys/root_maxkeys", 2 * load.sandboxes + 64, "a key ring for every container"),
    ]
    tight = False
    for name, needed, why in rows:
        value = host.number(name)
        if value is not None and value < needed:
            tight = True
            watch = "inotify" in name
            yield Finding(
                "warn",
                "kernel limits",
                f"{name.replace('/', '.')} = {value}",
                f"{why}: {needed} would do"
                + ("; beyond it watching fails inside sandboxes, as it would not elsewhere" if watch else ""),
                "" if watch else f"{load.sandboxes} sandboxes at once, each up to its limits",
                f"sysctl {name.replace('/', '.')}={max(needed, 2 * value)}",
            )
    if host.number("vm/overcommit_memory") == 2:
        tight = True
        yield Finding(
            "warn",
            "kernel limits",
            "vm.overcommit_memory = 2",
            "programs that reserve much and use little fail in sandboxes although memory is free",
            mend="sysctl vm.overcommit_memory=0",
        )
    if not tight:
        yield Finding(
            "ok", "kernel limits", f"processes, files, watches: enough for {load.sandboxes} sandboxes at once"
        )
    yield from _own_limits(load)


def _own_limits(load: Load) -> Iterator[Finding]:
    files = _OWN_FILES + _DRIVER_FILES * load.sandboxes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        yield Finding(
            "warn",
            "open files",
            f"this process may open {soft} files (hard limit {hard})",
            f"a driver of {load.sandboxes} sandboxes opens up to {files}",
            f"{load.sandboxes} sandboxes at once",
            f"ulimit -n {files}" + ("" if hard == resource.RLIM_INFINITY or hard >= files else " (as root)"),
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and soft != resource.RLIM_INFINITY and soft < load.sandboxes * load.pids:
        yield Finding(
            "warn",
            "processes",
            f"this user may have {soft} processes",
            f"embedded sandboxes count against it: {load.sandboxes} with {load.pids} each",
            "embedded sandboxes, each up to its limits",
            f"ulimit -u {load.sandboxes * load.pids}",
        )


def check_memory(host: Host, load: Load) -> Iterator[Finding]:
    memory = host.table("/proc/meminfo")
    total, free = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    if not total:
        return
    wanted = load.sandboxes * load.memory_bytes
    text = f"{gib(free)} of {gib(total)} available"
    if wanted > free:
        yield Finding(
            "warn",
            "memory",
            text,
            f"{load.sandboxes} sandboxes may use {gib(wanted)} together; then the kernel ends processes of its choice",
            "a sandbox at its memory limit is the only one that notices",
            f"at most {max(1, int(free // load.memory_bytes))} at once (rollout.concurrency), or less memory for each "
            "(sandbox.memory_mib); harmless where tasks use little",
        )
    else:
        yield Finding("ok", "memory", f"{text}: enough for {load.sandboxes} sandboxes of {gib(load.memory_bytes)}")


def check_disk(host: Host, load: Load) -> Iterator[Finding]:
    runs = runs_folder().resolve()
    while not runs.exists():
        runs = runs.parent
    yield from disk_findings(runs, "runs", 5 * GIB, "SAO_RUNS names another folder")
    if not os.access(runs, os.W_OK):
        yield Finding("fail", "disk", f"{runs} is not writable", mend="set SAO_RUNS to a folder that is")
    temporary = Path(tempfile.gettempdir())
    yield from disk_findings(temporary, "work folders of embedded sandboxes", 2 * GIB, "TMPDIR names another folder")
    options = mount_options(host, temporary)
    if "noexec" in options:
        yield Finding(
            "warn",
            "disk",
            f"{temporary} is mounted noexec",
            "programs that a task builds cannot be started in embedded sandboxes",
            "embedded sandboxes run what any machine runs",
            "TMPDIR=/var/tmp, or mount it with exec",
        )


def disk_findings(folder: Path, what: str, comfortable: int, mend: str) -> Iterator[Finding]:
    """Free bytes and free inodes of the disk that `folder` is on."""
    free = shutil.disk_usage(folder).free
    level: Level = "ok" if free > comfortable else "warn" if free > comfortable // 5 else "fail"
    means = "" if level == "ok" else f"{gib(comfortable)} are comfortable; a full disk fails episodes"
    yield Finding(level, "disk", f"{gib(free)} free for {what} in {folder}", means, mend="" if level == "ok" else mend)
    inodes = os.statvfs(folder)
    if inodes.f_files and inodes.f_favail < 200_000:
        yield Finding(
            "warn",
            "disk",
            f"{inodes.f_favail} free inodes for {what} in {folder}",
            "a repository with its environment has 100,000 files",
            mend=mend,
        )


def mount_options(host: Host, folder: Path) -> list[str]:
    """Of the mount that holds `folder`."""
    best: tuple[int, list[str]] = (-1, [])
    for line in (host.read("/proc/self/mounts") or "").splitlines():
        words = line.split()
        if len(words) > 3:
            point = Path(words[1].replace("\\040", " "))
            if folder.is_relative_to(point) and len(point.parts) >= best[0]:
                best = len(point.parts), words[3].split(",")
    return best[1]
