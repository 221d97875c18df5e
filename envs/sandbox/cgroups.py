"""Memory, process and processor limits of embedded sandboxes through cgroups, where this process may make them.

Promises: works with version 1 hierarchies and with a delegated version 2 one; makes one group a sandbox, named after
it; `remove` ends what is still in it: nothing but the sandbox's own processes ever was. Where no group can be made the
sandbox runs under resource limits alone (`Group.weak` says which promises are then weaker).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from envs.sandbox.contract import SandboxLimits

ROOT = Path("/sys/fs/cgroup")
PARENT = "sao"


@cache
def _places() -> dict[str, Path]:
    """Controller -> folder in which groups can be made."""
    found: dict[str, Path] = {}
    unified = ROOT / "cgroup.controllers"
    if unified.exists():
        parent = ROOT / PARENT
        try:
            parent.mkdir(exist_ok=True)
            for base in (ROOT, parent):
                (base / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        except OSError:
            return {}
        return dict.fromkeys(("memory", "pids", "cpu"), parent)
    for controller in ("memory", "pids", "cpu"):
        parent = ROOT / controller / PARENT
        try:
            if not (ROOT / controller / "cgroup.procs").exists():
                continue
            parent.mkdir(exist_ok=True)
            if os.access(parent, os.W_OK):
                found[controller] = parent
        except OSError:
            continue
    return found


@dataclass
class Group:
    """One sandbox's group: `folders` by controller (one folder for all of them with version 2)."""

    folders: dict[str, Path] = field(default_factory=dict)
    weak: list[str] = field(default_factory=list)

    @property
    def procs(self) -> list[str]:
        """The files a process writes its number to, to be in the group."""
        return sorted({str(folder / "cgroup.procs") for folder in self.folders.values()})

    def oom_kills(self) -> int:
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def no_more(self) -> None:
        """No further process may start in it."""
        if (folder := self.folders.get("pids")) is not None:
            with contextlib.suppress(OSError):
                (folder / "pids.max").write_text("0")

    def remove(self) -> None:
        """The kernel refuses while a dying process is still counted; that takes milliseconds."""
        for folder in set(self.folders.values()):
            remove_leftover(folder)


def make_group(name: str, limits: SandboxLimits) -> Group:
    group = Group()
    two = (ROOT / "cgroup.controllers").exists()
    settings = {
        "memory": {"memory.max": limits.memory_bytes, "memory.swap.max": 0, "memory.oom.group": 0}
        if two
        else {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes},
        "pids": {"pids.max": limits.pids},
        "cpu": {"cpu.max": f"{int(limits.cpus * 100000)} 100000"}
        if two
        else {"cpu.cfs_quota_us": int(limits.cpus * 100000)},
    }
    optional = {"memory.swap.max", "memory.memsw.limit_in_bytes", "memory.oom.group"}  # absent without swap accounting
    for controller, files in settings.items():
        parent = _places().get(controller)
        if parent is None:
            group.weak.append(controller)
            continue
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            group.folders[controller] = folder
            for file, value in files.items():
                try:
                    (folder / file).write_text(str(value))
                except OSError:
                    if file not in optional:
                        raise
        except OSError:
            group.weak.append(controller)
    return group


def leftover_groups() -> list[Path]:
    """Every sandbox's group on this machine."""
    return [folder for parent in set(_places().values()) for folder in parent.iterdir() if folder.is_dir()]


def remove_leftover(folder: Path) -> bool:
    """End what still runs in the group of a sandbox that is over, and remove it; False when it would not go, or was
    gone."""
    Group({"pids": folder}).no_more()  # or a fork bomb is faster than the kills
    for attempt in range(2000):
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return False
        except OSError:
            time.sleep(0.005)
        if attempt % 20 == 4:  # by then a process that was dying is dead
            with contextlib.suppress(OSError):  # ended in the meantime
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
    return False
