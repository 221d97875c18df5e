"""An image of busybox alone: no GNU tools, no Debian, what small public images have. Two megabytes."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from typing import Any

import pytest


def find_busybox() -> str | None:
    """One that needs no library: it still runs where there is nothing but itself."""
    busybox = shutil.which("busybox")
    if busybox is None or b"statically linked" not in subprocess.run(["file", busybox], capture_output=True).stdout:
        return None
    return busybox


def busybox_tar() -> bytes:
    """Its file system. Skips the test where no statically linked busybox is."""
    busybox = find_busybox()
    if busybox is None:
        pytest.skip("a statically linked busybox is not on this machine (Debian: apt-get install busybox-static file)")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                tar.addfile(link)
        for folder in ("tmp", "usr"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(info)
    return out.getvalue()


def import_busybox(client: Any, name: str) -> None:
    """Make image `name` on an engine."""
    repository, _, tag = name.partition(":")
    client.import_image_from_data(busybox_tar(), repository=repository, tag=tag)
