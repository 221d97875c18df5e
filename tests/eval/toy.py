"""The offline SWE-bench row of the test data (`swe/toy`) and a locally made image for it; `python -m tests.eval.toy`
makes the image.

The image is sao-base plus what SWE-bench's images have: the repository at /testbed, /opt/miniconda3/bin/activate with a
`conda` function, `python`, and the test runner (pytest and what it needs, pure Python, from this environment).
"""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data.loaders import load_tasks
from data.task import Task
from tests.conftest import BASE_IMAGE
from tests.shared_data import SHARED, need_shared

TOY = SHARED / "swe" / "toy"
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
LIBRARY = "usr/local/lib/python3.11/dist-packages"
ACTIVATE = "conda() { :; }\n"
VERSION = "2"


def toy_task() -> Task:
    return load_tasks("toy", "test", need_shared("swe", "toy", "toy_calc_v5.jsonl"))[0]


def toy_image() -> str:
    """The row's image, made unless it is there. Needs an engine and sao-base."""
    import docker

    name = str(toy_task().row["image"])
    api = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=300)
    try:
        try:
            if api.inspect_image(name)["Config"]["Labels"].get("sao.toy") == VERSION:
                return name
        except docker.errors.ImageNotFound:
            pass
        lines = f"FROM {BASE_IMAGE}\nADD layer.tar /\nLABEL sao.toy={VERSION}\nWORKDIR /testbed\n"
        with tempfile.TemporaryDirectory() as folder:
            layer = _tar(list(_layer(Path(folder))))
            context = _tar([("Dockerfile", lines.encode(), 0o644), ("layer.tar", layer, 0o644)])
        for event in api.build(fileobj=io.BytesIO(context), custom_context=True, tag=name, decode=True, rm=True):
            if "error" in event:
                raise RuntimeError(event["error"])
        return name
    finally:
        api.close()


def _layer(folder: Path) -> Iterator[tuple[str, bytes, int]]:
    yield "opt/miniconda3/bin/activate", ACTIVATE.encode(), 0o755
    yield "usr/local/bin/python", b'#!/bin/sh\nexec /usr/bin/python3 "$@"\n', 0o755
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or ():
            if file.suffix != ".pyc" and not str(file).startswith(".."):
                yield f"{LIBRARY}/{file}", Path(str(file.locate())).read_bytes(), 0o644
    repository = folder / "testbed"
    for command in (
        ["git", "clone", "-q", str(TOY / "testbed.bundle"), str(repository)],
        ["git", "-C", str(repository), "checkout", "-q", "-B", "main", toy_task().row["base_commit"]],
    ):
        subprocess.run(command, check=True, capture_output=True)
    for path in sorted(repository.rglob("*")):
        if path.is_file():
            yield f"testbed/{path.relative_to(repository)}", path.read_bytes(), path.stat().st_mode & 0o777


def _tar(files: list[tuple[str, bytes, int]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data, mode in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


if __name__ == "__main__":
    print(toy_image())
