"""The doctor: made-up machines, made-up engines, and a real sandbox whose limits are too wide."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.sandbox import BackendUnavailable, SandboxLimits, SandboxSpec
from envs.sandbox.embedded import EmbeddedBackend
from sao import doctor, doctor_engine, doctor_host, doctor_shared, doctor_try
from sao.doctor_finding import Finding, Host, Load
from sao.doctor_view import as_facts, lost

GOOD_FILES = {
    "/proc/sys/kernel/osrelease": "6.1.0",
    "/proc/filesystems": "nodev tmpfs\nnodev overlay\n ext4",
    "/proc/sys/kernel/core_pattern": "core",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
    "/sys/fs/cgroup/cgroup.subtree_control": "",
    "/proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 30000000 kB\nSwapTotal: 0 kB",
    "/proc/sys/kernel/pid_max": "4194304",
    "/proc/sys/kernel/threads-max": "500000",
    "/proc/sys/fs/inotify/max_user_instances": "8192",
    "/proc/sys/fs/inotify/max_user_watches": "1000000",
    "/proc/sys/fs/file-max": "9000000",
    "/proc/sys/user/max_user_namespaces": "100000",
    "/proc/sys/vm/overcommit_memory": "0",
}


def machine(root: Path, **changes: str | None) -> Host:
    """Keys of `changes` are ends of paths with / as _: another text, or None for no such file."""
    for name, text in GOOD_FILES.items():
        key = next((key for key in changes if name.replace("/", "_").endswith(key)), None)
        text = changes.pop(key) if key else text  # type: ignore[assignment]
        if text is not None:
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / name[1:]).write_text(text + "\n")
    assert not changes, f"no such facts: {changes}"
    return Host(root)


def judge(check: Callable[[Host, Load], Iterator[Finding]], host: Host, load: Load | None = None) -> list[Finding]:
    return list(check(host, load or Load()))


HOST_CHECKS = (
    doctor_host.check_kernel,
    doctor_host.check_cgroups,
    doctor_host.check_namespaces,
    doctor_host.check_limits,
    doctor_host.check_memory,
)


def test_limits_that_sandboxes_share_are_told(tmp_path: Path) -> None:
    host = machine(tmp_path)
    (tmp_path / "proc/sys/fs/pipe-user-pages-soft").write_text("16384\n")
    told = judge(doctor_shared.check_shared, host)
    assert ["inotify" in told[0].text, "16384 pages" in told[1].text] == [True, True]
    assert "fs.inotify.max_user_instances=16777216" in told[0].mend
    (tmp_path / "proc/sys/fs/inotify/max_user_instances").write_text("16777216\n")
    assert len(judge(doctor_shared.check_shared, host)) == 1
    assert "inodes" in next(doctor_shared.inodes(str(tmp_path))).text
    assert list(doctor_shared.inodes(str(tmp_path / "gone"))) == []


def test_a_good_machine_has_nothing_to_mend(tmp_path: Path) -> None:
    host = machine(tmp_path)
    findings = [finding for check in HOST_CHECKS for finding in judge(check, host)]
    assert {finding.level for finding in findings} == {"ok"}
    assert lost(findings) == []


@pytest.mark.parametrize(
    ("check", "changes", "text", "loses", "mend"),
    [
        (
            doctor_host.check_kernel,
            {"filesystems": "ext4"},
            "without overlay, tmpfs",
            "quick starts",
            "modprobe overlay",
        ),
        (doctor_host.check_kernel, {"core_pattern": "|/usr/bin/apport %p"}, "/usr/bin/apport", "runs outside", "=core"),
        (
            doctor_host.check_cgroups,
            {"cgroup.controllers": None},
            "no memory, pids or cpu",
            "limits on memory",
            "cgroup2",
        ),
        (doctor_host.check_cgroups, {"cgroup.controllers": "cpu pids"}, "memory", "limits on memory", "delegate"),
        (doctor_host.check_namespaces, {"max_user_namespaces": "0"}, "= 0", "embedded sandboxes", "sysctl user.max"),
        (doctor_host.check_namespaces, {"max_user_namespaces": "20"}, "= 20", "8 sandboxes at once", "sysctl"),
        (doctor_host.check_limits, {"pid_max": "2048"}, "kernel.pid_max = 2048", "8 sandboxes at once", "pid_max=4096"),
        (
            doctor_host.check_limits,
            {"max_user_watches": "64"},
            "max_user_watches = 64",
            "",
            "max_user_watches=40960",
        ),
        (doctor_host.check_limits, {"overcommit_memory": "2"}, "overcommit_memory = 2", "", "overcommit_memory=0"),
        (
            doctor_host.check_memory,
            {"meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB"},
            "4.0 GiB of 8.0 GiB",
            "memory limit",
            "at most 4 at once",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_promise_and_its_mending(
    tmp_path: Path, check: Any, changes: dict[str, str | None], text: str, loses: str, mend: str
) -> None:
    bad = [finding for finding in judge(check, machine(tmp_path, **changes)) if finding.level != "ok"]
    assert bad
    assert text in bad[0].text
    assert loses in bad[0].loses
    assert mend in bad[0].mend
    assert bad[0].means


def test_more_sandboxes_need_more(tmp_path: Path) -> None:
    host = machine(tmp_path, pid_max="32768")
    assert all(finding.level == "ok" for finding in judge(doctor_host.check_limits, host, Load(sandboxes=64)))
    many = judge(doctor_host.check_limits, host, Load(sandboxes=1024))
    assert "kernel.pid_max = 32768" in [finding.text for finding in many]
    assert any("1024 sandboxes at once" in finding.loses for finding in many)


def test_version_1_cgroups_and_swap(tmp_path: Path) -> None:
    host = machine(tmp_path, **{"cgroup.controllers": None, "meminfo": "MemTotal: 1 kB\nSwapTotal: 2097152 kB"})
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / "sys/fs/cgroup" / controller).mkdir()
        (tmp_path / "sys/fs/cgroup" / controller / "cgroup.procs").touch()
    names = {finding.name: finding for finding in judge(doctor_host.check_cgroups, host)}
    assert "version 1" in names["cgroups"].text
    assert "2.0 GiB of swap" in names["swap"].text
    assert names["freezer"].level == "warn"


def test_a_mount_without_exec_is_found(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "/dev/a / ext4 rw,relatime 0 0\ntmpfs /tmp tmpfs rw,noexec,nosuid 0 0\nx /tmp/with\\040blank ext4 rw 0 0\n"
    )
    host = Host(tmp_path)
    assert doctor_host.mount_options(host, Path("/home/x")) == ["rw", "relatime"]
    assert "noexec" in doctor_host.mount_options(host, Path("/tmp/y"))
    assert doctor_host.mount_options(host, Path("/tmp/with blank/y")) == ["rw"]


ENGINE = {
    "ServerVersion": "27.0",
    "OSType": "linux",
    "Architecture": "x86_64",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "xfs"], ["Supports d_type", "true"]],
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=default", "name=apparmor"],
    "LiveRestoreEnabled": True,
    "SystemTime": "2026-01-01T00:00:00.123456789Z",
    "Warnings": None,
}
NOW = 1767225600.0


def test_a_good_engine_only_lacks_a_disk_limit() -> None:
    findings = list(doctor_engine.judge_engine(ENGINE, 0.001, Load(), NOW))
    assert [finding.name for finding in findings if finding.level != "ok"] == ["docker disk limit"]
    assert lost(findings) == ["a hard limit on all that a sandbox writes"]


@pytest.mark.parametrize(
    ("changes", "text", "loses"),
    [
        ({"Driver": "vfs"}, "vfs", "quick starts"),
        ({"DriverStatus": [["Supports d_type", "false"]]}, "d_type", "as their image says"),
        ({"MemoryLimit": False}, "limit memory", "memory limit"),
        ({"SwapLimit": False}, "limit swap", "no swap"),
        ({"PidsLimit": False}, "limit processes", "fork bombs"),
        ({"SecurityOptions": []}, "no seccomp", "way to the kernel"),
        ({"SecurityOptions": ["name=seccomp,profile=unconfined"]}, "no seccomp", "way to the kernel"),
        ({"SystemTime": "2026-01-01T00:01:00.1Z"}, "differs by 60 s", "deadline"),
        ({"Warnings": ["WARNING: bridge"]}, "WARNING: bridge", ""),
    ],
)
def test_what_an_engine_cannot_do_is_told(changes: dict[str, Any], text: str, loses: str) -> None:
    findings = list(doctor_engine.judge_engine({**ENGINE, **changes}, 0.001, Load(), NOW))
    bad = [finding for finding in findings if finding.level != "ok" and finding.name != "docker disk limit"]
    assert any(text in finding.text and loses in finding.loses for finding in bad), bad


def test_a_slow_engine_is_told() -> None:
    findings = list(doctor_engine.judge_engine(ENGINE, 0.4, Load(), NOW))
    assert any("400 ms" in finding.text and finding.level == "warn" for finding in findings)


def test_no_engine_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (finding,) = doctor_engine.check_engine(Host(tmp_path), Load())
    assert finding.level == "warn"
    assert "Docker sandboxes" in finding.loses
    assert "docker-engine.sh" in finding.mend


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(host: Host, load: Load) -> Iterator[Finding]:
        raise ZeroDivisionError("odd machine")

    monkeypatch.setattr(doctor_host, "check_kernel", broken)
    monkeypatch.setattr(doctor_engine, "check_engine", lambda host, load: iter(()))
    findings = doctor.diagnose()
    (bad,) = [finding for finding in findings if "odd machine" in finding.text]
    assert bad.level == "fail"
    facts = as_facts(findings)
    assert facts["ok"] is False
    assert all(set(finding) == {"level", "name", "text", "means", "loses", "mend"} for finding in facts["findings"])


def test_json_for_programs() -> None:
    env = {**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock", "OMP_NUM_THREADS": "1"}
    code = "import sys; sys.argv = ['sao', 'doctor', '--json']; from sao.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    facts = json.loads(done.stdout)
    assert done.returncode == (0 if facts["ok"] else 1)
    assert {"python", "cgroups", "kernel limits", "docker", "disk"} <= {
        finding["name"] for finding in facts["findings"]
    }
    assert "Docker sandboxes" in facts["promises_lost"]


@pytest.mark.parametrize("kind", ["embedded", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_real_try_finds_every_promise_kept(kind: str) -> None:
    findings = doctor_try.try_out(kind)
    if not findings:
        pytest.skip(f"NOT RUN: no {kind} sandboxes here")
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert len(findings) == 6


def test_the_real_try_notices_limits_that_do_not_hold() -> None:
    wide = SandboxSpec(limits=SandboxLimits(memory_bytes=1 << 30, pids=512, disk_bytes=1 << 30))

    async def main() -> list[str]:
        try:
            backend = EmbeddedBackend("doctor-test")
            await backend.check()
        except BackendUnavailable as error:
            pytest.skip(f"EMBEDDED TEST NOT RUN: {error}")
        try:
            async with await backend.start(wide) as sandbox:
                tries = (doctor_try._memory, doctor_try._processes, doctor_try._files)
                return [await attempt(sandbox) for attempt in tries]
        finally:
            await backend.close()

    memory, processes, files = asyncio.run(main())
    assert "memory limit" in memory
    assert "processes" in processes
    assert "outgrew" in files


def test_says_that_training_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert any("one device" in finding.means for finding in doctor.check_torch())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "some GPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    several = [finding for finding in doctor.check_torch() if finding.level == "warn"]
    assert [finding.text for finding in several] == ["8 GPUs, and the trainer uses one of them"]
