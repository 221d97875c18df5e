"""The offline SWE-bench row of the test data (`swe/toy`) and a locally made image for it; `python -m tests.eval.toy`
makes the image. Its test runner is the one of this environment (pytest and what it needs, pure Python).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

from data.loaders import load_tasks
from data.task import Task
from envs.images.local import make_task_image
from envs.sandbox.docker_engine import connect
from tests.shared_data import SHARED, need_shared

TOY = SHARED / "swe" / "toy"
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


def toy_task() -> Task:
    return load_tasks("toy", "test", need_shared("swe", "toy", "toy_calc_v5.jsonl"))[0]


def toy_image() -> str:
    """The row's image, made unless it is there. Needs an engine and sao-base."""
    row = toy_task().row
    with connect() as engine:
        bundle = TOY / "testbed.bundle"
        return make_task_image(engine.api(), row["image"], bundle, row["base_commit"], packages=_installed())


def _installed() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or ():
            if file.suffix != ".pyc" and not str(file).startswith(".."):
                yield str(file), Path(str(file.locate())).read_bytes()


if __name__ == "__main__":
    print(toy_image())
