"""The doctor on limits of the kernel that all sandboxes of this machine share with its users. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterator

from envs.sandbox import SandboxLimits
from envs.sandbox.seccomp import instances_that_suffice
from sao.doctor_finding import Finding, Host, Load

NAME = "shared limits"
_FEW_INODES = 1_000_000


def check_shared(host: Host, load: Load) -> Iterator[Finding]:
    instances = host.number("fs/inotify/max_user_instances")
    enough = instances_that_suffice(SandboxLimits(pids=load.pids))
    if instances is not None and instances < enough:
        yield Finding(
            "ok",
            NAME,
            f"inotify is refused in sandboxes: fs.inotify.max_user_instances = {instances} is one count for all of a "
            "user's, root's too",
            "programs that watch files poll, or say that no watch is left",
            mend=f"where tasks need it: sysctl fs.inotify.max_user_instances={enough}",
        )
    pages = host.number("fs/pipe-user-pages-soft")
    if pages:
        yield Finding(
            "ok",
            NAME,
            f"pipes: {pages} pages for a user, shared by all sandboxes",
            "beyond them new pipes hold 8 KiB: slower, nothing fails",
        )


def inodes(folder: str) -> Iterator[Finding]:
    """Of the disk on which the engine keeps containers, where that is this machine's."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return
    if not facts.f_files:  # a file system that makes them as needed
        return
    few = facts.f_favail < _FEW_INODES
    yield Finding(
        "warn" if few else "ok",
        NAME,
        f"inodes: {facts.f_favail} free on the engine's disk ({folder}), shared by all containers",
        "a sandbox that makes many small files takes them from all others",
        mend="another disk for the engine (data-root), xfs or btrfs" if few else "",
    )
