"""Which GPU whom, and what is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.devices import DevicesRefused, choose
from agent.engines.vllm.launch import LaunchSettings, command, environment, visible_gpus

FOUR = ("0", "1", "2", "3")
ROOT = Path(__file__).parents[2]


def pick(visible: tuple[str, ...] = FOUR, **settings: Any) -> Any:
    return choose(**{"mode": "split", "weights": "file", "count": 1, "wanted": (), **settings}, visible=visible)


def test_who_gets_what() -> None:
    assert pick(()).servers == ((),)
    assert pick((), count=3).servers == ((), (), ())
    assert pick(("0",)).servers == (("0",),)  # side by side on one GPU
    assert pick().servers == (("1",),)  # the first is the trainer's
    assert pick(count=3).servers == (("1",), ("2",), ("3",))
    assert pick(count=4).servers == (("0",),) * 4  # not enough: name them
    assert pick(wanted=("2", "3")).servers == (("2", "3"),)  # tensor parallelism
    assert pick(wanted=("3", "1"), count=2).servers == (("3",), ("1",))
    nccl, ipc = pick(weights="nccl", count=2), pick(weights="ipc", count=2)
    assert [nccl.sender(number, "nccl") for number in range(2)] == ["0", "0"]
    assert [ipc.sender(number, "ipc") for number in range(2)] == ["1", "2"]
    far = pick(("0",), weights="nccl", count=2, running=True)  # on other machines: only the sender is here
    assert (far.servers, far.sender(1, "nccl")) == (((), ()), "0")
    assert pick(mode="colocated", weights="ipc").servers == (("0",),)
    assert pick((), mode="colocated").servers == ((),)  # on a CPU only the phases


@pytest.mark.parametrize(
    ("visible", "settings", "says"),
    [
        ((), {"weights": "nccl"}, "there is none here"),
        ((), {"weights": "ipc"}, "there is none here"),
        ((), {"wanted": ("1",)}, "there is no GPU here"),
        (("0",), {"weights": "nccl"}, "beside the servers'"),
        (FOUR, {"weights": "nccl", "wanted": ("0", "1")}, "beside the servers'"),
        (FOUR, {"weights": "ipc", "wanted": ("1", "2")}, "one GPU with one worker"),
        (FOUR, {"wanted": ("7",)}, "visible are"),
        (FOUR, {"wanted": ("1", "1"), "count": 2}, "visible are"),
        (FOUR, {"wanted": ("1", "2", "3"), "count": 2}, "divided evenly"),
        (FOUR, {"mode": "colocated", "weights": "nccl"}, "cannot work colocated"),
        (FOUR, {"mode": "colocated", "count": 2}, "is one server"),
        (FOUR, {"mode": "colocated", "wanted": ("1",)}, "is one server"),
    ],
)
def test_what_cannot_be_is_refused(visible: tuple[str, ...], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DevicesRefused, match=says):
        pick(visible, **settings)


def test_visible_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: X (UUID: GPU-a)'\necho 'GPU 1: X (UUID: GPU-b)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-b")
    assert visible_gpus() == ["5", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_what_a_gpu_server_is_started_with(tmp_path: Path) -> None:
    launch = LaunchSettings(
        model=tmp_path, environment=tmp_path, device="cuda", gpus=("2", "3"), transfer="nccl", sleeps=True
    )
    words, variables = command(launch, 8321), environment(launch, base={})
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert words[words.index("--weight-transfer-config") + 1] == '{"backend": "nccl"}'
    assert "--enable-sleep-mode" in words
    assert variables["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in variables
    ipc = environment(LaunchSettings(model=tmp_path, environment=tmp_path, device="cuda", transfer="ipc"), base={})
    assert ipc["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"


@pytest.mark.parametrize("weights", ["nccl", "ipc"])
@pytest.mark.parametrize("verb", [("rollout", "--episodes", "2"), ("train", "--steps", "1")])
def test_the_command_refuses_before_there_is_a_run(tmp_path: Path, weights: str, verb: tuple[str, ...]) -> None:
    words = [*verb, "--set", "engine.kind=vllm", "--set", f"engine.weights={weights}", "--set", "model.device=cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "sao", *words],
        cwd=ROOT,
        env={**os.environ, "SAO_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "there is none here" in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()
