"""`sao serve --dry-run` shows and refuses what `sao serve` would start."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from agent.engines.vllm.devices import DevicesRefused
from sao.config import load_config
from sao.serve import describe


def shown(count: int, *overrides: str) -> str:
    config = load_config("demo", ["model.device=cuda", *overrides])
    said = io.StringIO()
    describe(config, Console(file=said), count=count, host="127.0.0.1", port=8321)
    return said.getvalue()


def test_the_dry_run_counts_servers_and_gpus_as_the_start_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: X'\necho 'GPU 1: X'\necho 'GPU 2: X'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES=1 " in shown(2)
    tensor_parallel = shown(1, 'engine.gpus=["1", "2"]')
    assert "CUDA_VISIBLE_DEVICES=1,2 " in tensor_parallel
    assert "--tensor-parallel-size 2" in tensor_parallel
    with pytest.raises(DevicesRefused, match="is one server"):
        shown(2, "engine.mode=colocated")
    with pytest.raises(DevicesRefused, match="divided evenly"):
        shown(2, 'engine.gpus=["1"]')
