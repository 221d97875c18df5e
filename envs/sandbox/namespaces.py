"""The command line that puts the embedded sandbox's shell into its own Linux namespaces.

Promises: own process table, own network without any interface up but loopback, own mounts: this machine's /usr and this
Python read-only, a work folder as the only place on disk that can be written, sized tmpfs for /tmp, HOME and /dev/shm;
no capabilities, no new privileges, user 0 inside (git then finds its files owned by the user it runs as). Nothing of the
machine's /home, /root, /etc, /run or /var is visible.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from envs.sandbox.contract import BackendUnavailable, SandboxSpec

HOME = "/root"


@cache
def python_prefix() -> Path | None:
    """This Python's installation when it lies outside /usr; it is then shown inside, read-only."""
    prefix = Path(sys.base_prefix).resolve()
    return None if prefix.is_relative_to("/usr") else prefix


def inner_path() -> str:
    prefix = python_prefix()
    return (f"{prefix}/bin:" if prefix else "") + "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def write_etc(folder: Path) -> None:
    """The few files of /etc that programs ask for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (folder / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (folder / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")


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


def bubblewrap_command(spec: SandboxSpec, work: Path, etc: Path) -> list[str]:
    size = str(spec.limits.disk_bytes)
    command = [
        "bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--uid", "0", "--gid", "0", "--hostname", "sandbox", "--clearenv",
    ]  # fmt: skip
    for how, path in _tree():
        command += ["--symlink", os.readlink(path), str(path)] if how == "link" else ["--ro-bind", *[str(path)] * 2]
    command += [
        "--size",
        size,
        "--tmpfs",
        "/tmp",
        "--size",
        size,
        "--tmpfs",
        HOME,
        "--dir",
        "/run",
        "--dir",
        "/var/tmp",
    ]
    for file in sorted(etc.iterdir()):
        command += ["--ro-bind", str(file), f"/etc/{file.name}"]
    for name in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"):
        command += ["--ro-bind-try", name, name]
    if prefix := python_prefix():
        command += ["--ro-bind", str(prefix), str(prefix)]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--bind", str(work), spec.workdir, "--remount-ro", "/", "--chdir", "/"]
    for name, value in environment(spec).items():
        command += ["--setenv", name, value]
    return [*command, "--", "/bin/sh"]


def environment(spec: SandboxSpec) -> dict[str, str]:
    from envs.sandbox.channelled import BASE_ENV

    return {**BASE_ENV, "PATH": inner_path(), **spec.env}


@cache
def launcher() -> str:
    """ "bwrap" or "unshare", whichever works here; BackendUnavailable with the reason otherwise."""
    if sys.platform != "linux":
        raise BackendUnavailable("the embedded sandbox needs Linux namespaces; on this system use --sandbox docker")
    reasons = []
    trials = {
        "bwrap": ["bwrap", "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "true"],
        "unshare": ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "true"],
    }  # fmt: skip
    for name, trial in trials.items():
        if shutil.which(name) is None:
            reasons.append(f"{name} is not installed")
            continue
        done = subprocess.run(trial, capture_output=True, text=True, timeout=20)
        if done.returncode == 0:
            return name
        reasons.append(f"{name}: {done.stderr.strip() or f'exit code {done.returncode}'}")
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
        f"the embedded sandbox cannot run here ({'; '.join(reasons)}{'; ' if switches else ''}{', '.join(switches)}). "
        "Install bubblewrap (Debian: apt-get install bubblewrap) and allow user namespaces, or use --sandbox docker."
    )
