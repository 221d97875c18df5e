"""A Docker engine of a test's own: it may be killed and restarted, and what it holds is all the test's.

Needs root and dockerd; where either is absent the test is skipped with the reason (SAO_REQUIRE_DOCKER=1: it fails).
The engine has its own data root, socket, process file and control groups; the machine's engine is not touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.sandbox.docker_engine import connect
from envs.swe.row import BASE_IMAGE
from tests.envs.busybox import find_busybox, import_busybox
from tests.envs.sandbox_support import wait_for

IMAGE, VOLUME_IMAGE = "sao-small:latest", "sao-small:volume"
"""The second declares a volume, so each of its containers gets one."""


class PrivateEngine:
    def __init__(self, bridge: bool = False) -> None:
        """`bridge`: with Docker's default bridge, in a network namespace of its own: the machine gets no interface."""
        self._bridge = bridge
        # Short: a socket's path may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="sao-engine-"))
        self.address = f"unix://{self.folder}/sock"
        self.groups = f"/{self.folder.name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._images: set[str] = set()

    def start(self) -> None:
        words = ["dockerd", "--iptables=false", "--ip6tables=false", f"--host={self.address}"]
        network = ["--ip-forward=false", "--ip-masq=false"] if self._bridge else ["--bridge=none"]
        words = [*(["unshare", "--net"] if self._bridge else []), *words, *network]
        words += [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        words += [f"--pidfile={self.folder}/pid", f"--cgroup-parent={self.groups}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        assert wait_for(self.answers), self.log()

    def make_images(self) -> None:
        """Of busybox, which takes a second; where there is none, the machine's base image is copied."""
        if find_busybox():
            import_busybox(self.client, IMAGE)
        else:
            with connect() as engine:
                self.client.load_image(b"".join(engine.api().get_image(BASE_IMAGE)))
            self.client.tag(BASE_IMAGE, *IMAGE.split(":"))
        made = self.client.create_container(IMAGE, ["true"])["Id"]
        repository, _, tag = VOLUME_IMAGE.partition(":")
        self.client.commit(made, repository=repository, tag=tag, changes=["VOLUME /data"])
        self.client.remove_container(made)
        self._images = {name for each in self.client.images() for name in each["RepoTags"]}

    def answers(self) -> bool:
        assert self._process is None or self._process.poll() is None, self.log()
        try:
            self.client.ping()
        except Exception:  # not yet, in whatever way
            self._client = None
            return False
        return True

    @property
    def client(self) -> Any:
        import docker

        if self._client is None:
            self._client = docker.APIClient(base_url=self.address, version="auto", timeout=60)
        return self._client

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the engine was not started"
        return self._process

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(60)
        self._client = None
        # After a kill its containerd may live on for a moment, and would stand in the next one's way.
        assert wait_for(lambda: not self.helpers("containerd"))
        # Their numbers may be another process's by now, and a new engine would take it for a living one.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)

    def helpers(self, *names: str) -> list[psutil.Process]:
        """This engine's own processes of these names: they name its folder."""
        found = []
        for process in psutil.process_iter(["name", "cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or ())
            if process.info["name"] in names and str(self.folder) in line:
                found.append(process)
        return found

    def left(self) -> dict[str, list[str]]:
        """All that a sandbox could have left, by engine and machine; empty lists when there is nothing."""
        containers = [f"{each['Names']} {each['Status']}" for each in self.client.containers(all=True)]
        tags = {name for each in self.client.images() for name in each["RepoTags"] or [each["Id"]]}
        images = sorted(tags - self._images)
        volumes = [each["Name"] for each in self.client.volumes()["Volumes"] or []]
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if self._inside(line)]
        # containerd-shim is the kernel's 15 bytes of containerd-shim-runc-v2
        shims = [f"{each.pid} {each.name()}" for each in self.helpers("containerd-shim", "containerd-shim-runc-v2")]
        return {
            "containers": containers, "images": images, "volumes": volumes, "mounts": mounts,
            "processes": shims + [f"{pid} {_name(pid)}" for pid in self.grouped()],
            "folders": [each.name for each in (self.folder / "data" / "containers").iterdir()],
        }  # fmt: skip

    def forget(self, *names: str) -> None:
        """Kill what runs under these names and no container of the engine stands for."""
        wait_for(lambda: not self.left()["processes"], 10)
        known = {each["Id"] for each in self.client.containers(all=True)}
        for process in self.helpers(*names):
            if not known & set(process.info["cmdline"] or ()):
                process.kill()
        for pid in self.grouped():
            if _name(pid) in names:
                os.kill(pid, signal.SIGKILL)

    def _inside(self, mount: str) -> bool:
        """The engine's data root is a mount of its own, which stays."""
        where = mount.split()[1]
        return str(self.folder) in where and where != f"{self.folder}/data"

    def grouped(self) -> list[int]:
        """Processes in the control groups of this engine's containers."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    if f"{self.groups}/" in (entry / "cgroup").read_text():
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(Exception):
                for each in self.client.containers(all=True):
                    self.client.remove_container(each["Id"], force=True, v=True)
            self._process.terminate()
            self._process.wait(60)
        for process in self.helpers("containerd", "containerd-shim", "containerd-shim-runc-v2"):
            process.kill()
        for pid in self.grouped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if str(self.folder) in line.split()[1]:
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        for group in Path("/sys/fs/cgroup").glob(f"*{self.groups}"):
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # the machine's next start has none of them
                    os.rmdir(folder)


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).name()
    return "ended"


@contextlib.contextmanager
def private_engine(bridge: bool = False) -> Iterator[PrivateEngine]:
    """With the images IMAGE and VOLUME_IMAGE."""
    missing = "it needs root" if os.geteuid() else "" if shutil.which("dockerd") else "dockerd is not installed"
    if missing:
        if os.environ.get("SAO_REQUIRE_DOCKER") == "1":
            pytest.fail(f"SAO_REQUIRE_DOCKER=1, but no engine of its own for the test: {missing}", pytrace=False)
        pytest.skip(f"DOCKER TEST NOT RUN (an engine of its own): {missing}")
    engine = PrivateEngine(bridge)
    try:
        engine.start()
        engine.make_images()
        yield engine
    finally:
        engine.close()
