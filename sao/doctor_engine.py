"""The doctor on the Docker engine and its images. Reads only."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from data.installed import run_script
from envs.images import ImageStore
from envs.images.disk import gib
from envs.images.ledger import Ledger
from envs.sandbox import BackendUnavailable
from envs.sandbox.docker_engine import connect
from envs.sandbox.docker_survey import survey
from envs.swe.row import BASE_IMAGE
from sao.doctor_finding import Finding, Host, Load
from sao.doctor_host import GIB, disk_findings
from sao.doctor_shared import inodes

SLOW_S = 0.1
_ENGINE_FILES = 12
"""Open files of the engine and its helpers for one container."""


def check_engine(host: Host, load: Load) -> Iterator[Finding]:
    try:
        engine = connect()
    except BackendUnavailable as error:
        yield Finding(
            "warn",
            "docker",
            str(error),
            "only tasks that need no image run, in embedded sandboxes, which isolate less",
            "Docker sandboxes",
            f"{run_script('docker-engine', 'start')} (as root), or your system's Docker",
        )
        return
    with engine:
        api = engine.api()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            api.ping()
            times.append(time.perf_counter() - began)
        info = api.info()
        yield from judge_engine(info, statistics.median(times), load, time.time())
        yield from _engine_files(host, load)
        yield from inodes(str(info.get("DockerRootDir") or ""))
        if left := [found for found in survey(api) if found.standing == "abandoned"]:
            yield Finding(
                "warn",
                "docker leftovers",
                f"{len(left)} of runs that died: {', '.join(found.name for found in left[:3])}",
                "the next start of a run removes them",
                mend="sao sandbox gc",
            )
    yield from asyncio.run(_image_store())


def judge_engine(info: Mapping[str, Any], ping_s: float, load: Load, now: float) -> Iterator[Finding]:
    """Of the engine's own account of itself."""
    driver = str(info.get("Driver"))
    details = {str(key): str(value) for key, value in info.get("DriverStatus") or []}
    yield Finding(
        "ok",
        "docker",
        f"engine {info.get('ServerVersion')} ({info.get('OSType')}/{info.get('Architecture')}), {driver}, "
        f"cgroup version {info.get('CgroupVersion', '1')}, answers in {ping_s * 1000:.1f} ms",
    )
    if ping_s > SLOW_S:
        yield Finding(
            "warn",
            "docker",
            f"the engine takes {ping_s * 1000:.0f} ms for the simplest answer",
            "it is far away or overloaded; every start and end of a sandbox waits for several such answers",
            "a sandbox is never the bottleneck",
            "run sao on the engine's machine, or relieve it",
        )
    if driver not in ("overlay2", "overlayfs", "btrfs", "zfs", "fuse-overlayfs"):
        yield Finding(
            "warn",
            "docker storage",
            driver,
            "every container copies its image",
            "quick starts, and room for many sandboxes",
            "use overlay2 (a disk with ext4 or xfs, and a kernel with overlay)",
        )
    if details.get("Supports d_type") == "false":
        yield Finding(
            "warn",
            "docker storage",
            "the engine's disk has no d_type",
            "removed files come back in containers, work trees differ from what was checked out",
            "sandboxes start as their image says",
            "xfs made with ftype=1",
        )
    yield from _limits_of(info)
    security = [str(option) for option in info.get("SecurityOptions") or []]
    if not any("seccomp" in option for option in security) or any("unconfined" in option for option in security):
        yield Finding(
            "warn",
            "docker isolation",
            "no seccomp filter",
            "a sandbox may use every call of the kernel that needs no privilege",
            "a smaller way to the kernel",
            "a kernel with CONFIG_SECCOMP_FILTER and the engine's default profile",
        )
    extra = [name for name in ("apparmor", "selinux", "userns", "rootless") if any(name in o for o in security)]
    runtimes = set(info.get("Runtimes") or {})
    if "runsc" in runtimes:
        extra.append("gVisor (sandbox.runtime=runsc)")
    yield Finding(
        "ok",
        "docker isolation",
        f"seccomp, no capabilities, no network{'; also ' + ', '.join(extra) if extra else ''}",
        "" if extra else "sandboxes share the machine's kernel: a hole in it is a way out",
        mend="" if extra else "for hostile code add gVisor (runsc), user namespaces or AppArmor",
    )
    yield Finding(
        "warn",
        "docker disk limit",
        f"no quota for one sandbox ({driver} on {details.get('Backing Filesystem', 'an unknown file system')})",
        "single files are limited exactly, their sum is watched at best: a sandbox can pass its limit for a while",
        "a hard limit on all that a sandbox writes",
        "the engine's data root on a disk of its own, and images.keep_free_gib",
    )
    if not info.get("LiveRestoreEnabled"):
        yield Finding(
            "ok",
            "docker restarts",
            "live-restore is off",
            "a restart of the engine ends running sandboxes; their episodes are tried again",
            mend='"live-restore": true in /etc/docker/daemon.json',
        )
    skew = _skew(str(info.get("SystemTime") or ""), now)
    if skew is not None and abs(skew) > 5:
        yield Finding(
            "warn",
            "docker clock",
            f"the engine's clock differs by {skew:.0f} s",
            "deadlines and leases are judged by two clocks",
            "a sandbox ends at its deadline and not before",
            "synchronise the clocks (chrony, systemd-timesyncd)",
        )
    for warning in info.get("Warnings") or []:
        yield Finding("warn", "docker", str(warning))


def _limits_of(info: Mapping[str, Any]) -> Iterator[Finding]:
    rows = (
        ("MemoryLimit", "memory", "the memory limit"),
        ("SwapLimit", "swap", "no swap for sandboxes"),
        ("PidsLimit", "processes", "the limit on processes (fork bombs)"),
        ("CpuCfsQuota", "processors", "the limit on processors"),
    )
    for key, what, promise in rows:
        if info.get(key) is False:
            yield Finding(
                "warn",
                "docker limits",
                f"the engine cannot limit {what}",
                "one sandbox can starve the others and the driver",
                promise,
                "a kernel with that cgroup controller (swap: boot with swapaccount=1)",
            )


def _skew(text: str, now: float) -> float | None:
    try:
        # the engine writes nanoseconds
        stamp = datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")
    except ValueError:
        return None
    return stamp.timestamp() - now


def _engine_files(host: Host, load: Load) -> Iterator[Finding]:
    """The open-file limit of an engine on this machine."""
    needed = _ENGINE_FILES * load.sandboxes + 1024
    for folder in host.path("/proc").glob("[0-9]*"):
        if host.read(f"/proc/{folder.name}/comm") != "dockerd":
            continue
        for line in (host.read(f"/proc/{folder.name}/limits") or "").splitlines():
            words = line.split()
            if line.startswith("Max open files") and words[3].isdigit() and int(words[3]) < needed:
                yield Finding(
                    "warn",
                    "docker",
                    f"the engine (process {folder.name}) may open {words[3]} files",
                    f"{load.sandboxes} containers need about {needed}",
                    f"{load.sandboxes} sandboxes at once",
                    "LimitNOFILE=infinity in the engine's service, or ulimit -n before it starts",
                )


async def _image_store() -> list[Finding]:
    store = ImageStore()
    try:
        ledger, _, root = await store.open()
        usage = await store.usage()
    finally:
        await store.close()
    names = {image.name for image in usage.images}
    findings = []
    if BASE_IMAGE in names:
        findings.append(Finding("ok", "base image", f"{BASE_IMAGE} is there"))
    else:
        findings.append(
            Finding(
                "warn",
                "base image",
                f"{BASE_IMAGE} is missing",
                "the demo tasks take embedded sandboxes instead",
                mend=run_script("base-image"),
            )
        )
    findings.append(
        Finding(
            "ok",
            "image store",
            f"{len(names)} images take {gib(usage.layers_bytes)}; {gib(usage.removable_bytes)} of that sao may remove",
        )
    )
    if usage.free_bytes is None:
        findings.append(
            Finding(
                "warn",
                "image store",
                f"the engine's disk ({root or 'unknown'}) cannot be seen from here",
                "sao cannot tell whether images still fit",
                "room is made before a pull",
                "set images.budget_gib",
            )
        )
    else:
        findings += disk_findings(Path(root), "images and sandboxes", 20 * GIB, "sao images prune, or a larger disk")
    findings += _ledger(ledger)
    return findings


def _ledger(ledger: Ledger) -> Iterator[Finding]:
    folder = ledger.folder
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Finding(
            "warn",
            "image store",
            f"{ledger.folder} cannot be written",
            "sao does not know which images it pulled, and removes none",
            "images not used lately make room for new ones",
            "set SAO_STATE to a folder that can be written",
        )
