"""`sao doctor`: what this machine can do, what each finding means, and how to mend it. Changes nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envs.swe.row import BASE_IMAGE
from sao.paths import DEMO_POLICY, ROOT, runs_folder

ROOMS = ("data", "envs", "agent", "trainer", "eval", "sao")
Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    level: Level
    name: str
    text: str


def shadowed_rooms() -> dict[str, str]:
    """Rooms whose import finds another package first: name -> where it was found."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        where = Path(module.__file__ or "").resolve().parent
        if where != ROOT / room:
            found[room] = str(where)
    return found


def foreign_rooms() -> dict[str, list[str]]:
    """Other installed distributions that also provide a top-level package of one of our names."""
    provided = importlib.metadata.packages_distributions()
    others = {room: sorted(set(provided.get(room, [])) - {"sao-rl"}) for room in ROOMS}
    return {room: names for room, names in others.items() if names}


def check_python() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("ok", "python", f"{platform.python_version()} on {where}, {sys.prefix}")


def check_shadowing() -> Iterator[Finding]:
    shadowed = shadowed_rooms()
    for room, where in shadowed.items():
        yield Finding(
            "fail",
            "imports",
            f"`import {room}` finds {where} instead of {ROOT / room}. Uninstall that package or use a fresh "
            "environment (make install); start python from a folder without a package of this name.",
        )
    for room, names in foreign_rooms().items():
        if room not in shadowed:
            yield Finding(
                "warn", "imports", f"also installed and named {room!r}: {', '.join(names)}. It may win one day."
            )
    if not shadowed:
        yield Finding("ok", "imports", f"{', '.join(ROOMS)} come from {ROOT}")


def check_torch() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        yield Finding("ok", "torch", f"{torch.__version__}, GPU {torch.cuda.get_device_name(0)}")
    else:
        yield Finding(
            "ok", "torch", f"{torch.__version__} on the CPU, {torch.get_num_threads()} threads: the demo's size"
        )


def check_demo_policy() -> Iterator[Finding]:
    weights = DEMO_POLICY / "model.safetensors"
    if weights.is_file():
        yield Finding("ok", "demo policy", f"{weights.stat().st_size / 1e6:.1f} MB")
    else:
        yield Finding(
            "fail", "demo policy", f"{weights} is missing: the checkout is incomplete. git status, git restore."
        )


def check_docker() -> Iterator[Finding]:
    from envs.sandbox import BackendUnavailable
    from envs.sandbox.docker_engine import connect

    try:
        with connect() as engine:
            version, has_image = engine.api().version(), bool(engine.api().images(name=BASE_IMAGE))
    except BackendUnavailable as error:
        yield Finding("warn", "docker", f"{error}. Docker isolates better than the embedded sandbox.")
        return
    yield Finding("ok", "docker", f"engine {version.get('Version')} ({version.get('Os')}/{version.get('Arch')})")
    if has_image:
        yield Finding("ok", "base image", f"{BASE_IMAGE} is there")
    else:
        yield Finding("warn", "base image", f"{BASE_IMAGE} is missing: `make image` makes it")


def check_embedded() -> Iterator[Finding]:
    from envs.sandbox import BackendUnavailable
    from envs.sandbox.namespaces import find_launcher

    try:
        chosen = find_launcher()
    except BackendUnavailable as error:
        yield Finding("warn", "embedded sandbox", str(error))
        return
    if chosen == "bwrap":
        yield Finding("ok", "embedded sandbox", "bubblewrap: namespaces of this machine, for trusted tasks only")
    else:
        yield Finding("warn", "embedded sandbox", f"{chosen}; bubblewrap is better (apt-get install bubblewrap)")


def check_disk() -> Iterator[Finding]:
    folder = runs_folder().resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    level: Level = "ok" if free > 5 else "warn" if free > 1 else "fail"
    yield Finding(level, "disk", f"{free:.1f} GiB free for runs in {folder}" + ("" if free > 5 else ": make room"))
    if not os.access(folder, os.W_OK):
        yield Finding("fail", "disk", f"{folder} is not writable: set SAO_RUNS to a folder that is.")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_shadowing,
    check_torch,
    check_demo_policy,
    check_docker,
    check_embedded,
    check_disk,
)


def diagnose() -> list[Finding]:
    """Every finding; a check that itself breaks is a failed finding, not a crash of the doctor."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except Exception as error:  # the doctor reports, whatever it meets
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding("fail", name, f"the check itself failed: {type(error).__name__}: {error}"))
    return findings
