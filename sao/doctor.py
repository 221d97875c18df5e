"""`sao doctor`: what this machine can do, what each finding means, which promise it cannot keep, how to mend that.

Promises: nothing of the machine is changed; a check that breaks is a finding like any other.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from data.installed import DISTRIBUTION
from sao.doctor_finding import Finding, Host, Load
from sao.paths import DEMO_POLICY
from sao.start import ROOMS, ROOT, damage, take_rooms


def foreign_rooms() -> dict[str, list[str]]:
    """Other installed distributions that also provide a top-level package of one of our names."""
    provided = importlib.metadata.packages_distributions()
    others = {room: sorted(set(provided.get(room, [])) - {DISTRIBUTION}) for room in ROOMS}
    return {room: names for room, names in others.items() if names}


def check_python() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("ok", "python", f"{platform.python_version()} on {where}, {sys.prefix}")


def check_rooms() -> Iterator[Finding]:
    """Our packages have plain names: `sao` takes them from beside itself, and tells who else has such names."""
    problem = damage() or take_rooms()
    if problem:
        yield Finding("fail", "imports", problem, "this is not our code")
    for room, names in foreign_rooms().items():
        yield Finding(
            "warn",
            "imports",
            f"also installed and named {room!r}: {', '.join(names)}",
            "installing or removing it may take files of ours; sao then refuses to start, and names them",
            mend="an environment of its own for sao",
        )
    if not problem:
        yield Finding("ok", "imports", f"{', '.join(ROOMS)} come from {ROOT}")


def check_torch() -> Iterator[Finding]:
    import torch

    one = "the trainer uses one device: a model, its critic and their optimizers have to fit into it"
    if torch.cuda.is_available():
        yield Finding("ok", "torch", f"{torch.__version__}, GPU {torch.cuda.get_device_name(0)}", one)
        if (count := torch.cuda.device_count()) > 1:
            yield Finding(
                "warn", "devices", f"{count} GPUs, and the trainer uses one of them",
                loses="training over several devices", mend="let vLLM serve on the others: docs/engines.md",
            )  # fmt: skip
    else:
        yield Finding(
            "ok", "torch", f"{torch.__version__} on the CPU, {torch.get_num_threads()} threads: the demo's size", one
        )


def check_demo_policy() -> Iterator[Finding]:
    weights = DEMO_POLICY / "model.safetensors"
    if weights.is_file():
        yield Finding("ok", "demo policy", f"{weights.stat().st_size / 1e6:.1f} MB")
    else:
        yield Finding(
            "fail", "demo policy", f"{weights} is missing", "the checkout is incomplete", mend="git status; git restore"
        )


def check_tools() -> Iterator[Finding]:
    """Programs that the driver starts on this machine."""
    if shutil.which("git") is None:
        yield Finding(
            "fail", "tools", "git is not installed", "needed to pack your own repositories", mend="apt-get install git"
        )


def diagnose(load: Load | None = None, *, real_try: bool = False) -> list[Finding]:
    """Every finding; a check that itself breaks is a failed finding, not a crash of the doctor.

    `real_try`: start a sandbox on every backend that there is, and try its promises out (seconds)."""
    from sao import doctor_engine, doctor_host, doctor_shared
    from sao.doctor_try import try_out

    host, load = Host(), load or Load()
    plain = (check_python, check_rooms, check_torch, check_demo_policy, check_tools)
    judging = (
        doctor_host.check_kernel,
        doctor_host.check_cgroups,
        doctor_host.check_namespaces,
        doctor_host.check_limits,
        doctor_shared.check_shared,
        doctor_host.check_memory,
        doctor_host.check_disk,
        doctor_host.check_embedded,
        doctor_engine.check_engine,
    )
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [(check.__name__, check) for check in plain]
    checks += [(check.__name__, partial(check, host, load)) for check in judging]
    if real_try:
        checks += [(f"try {kind}", partial(try_out, kind)) for kind in ("docker", "embedded")]
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except Exception as error:  # the doctor reports, whatever it meets
            name = name.removeprefix("check_").replace("_", " ")
            findings.append(Finding("fail", name, f"the check itself failed: {type(error).__name__}: {error}"))
    return findings
