"""What our sender and worker call in vLLM is there, under these names and parameters, in the installed version.

Run in vLLM's own environment (`.venv-vllm`), with its real classes; without it skipped by the words VLLM TEST NOT RUN.
This is all that stands for the NCCL and IPC wires until a GPU has run them (docs/engines.md)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.launch import INSIDE

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("SAO_VLLM_ENV", ROOT / ".venv-vllm"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOOK = """
import dataclasses, inspect, json, sys
sys.path.insert(0, sys.argv[1])
from vllm.distributed.weight_transfer import (HTTPVLLMWeightSyncClient, ParamMeta, WeightSource,
    WeightTransferEngineFactory, WeightTransferTrainerFactory)
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.distributed.weight_transfer.nccl_engine import (NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine, NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo)
from vllm.distributed.weight_transfer.ipc_engine import (IPCTrainerInitInfo, IPCTrainerWeightTransferEngine,
    IPCWeightTransferEngine, IPCWeightTransferInitInfo, IPCWeightTransferUpdateInfo)
from vllm.entrypoints.rl.online import api_router as rl
from vllm.entrypoints.serve.dev.sleep import api_router as sleep
from vllm.v1.worker.gpu_worker import Worker
from vllm.config import WeightTransferConfig
from vllm.engine.arg_utils import EngineArgs
import sao_vllm_sender as ours

def parameters(what):
    return list(inspect.signature(what).parameters)

found = {
    "fields": {each.__name__: [field.name for field in dataclasses.fields(each)] for each in (
        NCCLTrainerInitInfo, NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo, IPCTrainerInitInfo,
        IPCWeightTransferInitInfo, IPCWeightTransferUpdateInfo, ParamMeta, WeightTransferInitRequest,
        WeightTransferUpdateRequest)},
    "trainer_init": parameters(WeightTransferTrainerFactory.trainer_init),
    "send_weights": parameters(NCCLTrainerWeightTransferEngine.send_weights)
        + parameters(IPCTrainerWeightTransferEngine.send_weights),
    "client": {name: parameters(getattr(HTTPVLLMWeightSyncClient, name)) for name in (
        "__init__", "init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update",
        "update_weights", "finish_weight_update")},
    "worker": {name: parameters(getattr(Worker, name)) for name in (
        "init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update",
        "shutdown_weight_transfer_engine", "sleep", "wake_up")},
    "backends": [WeightTransferTrainerFactory._registry[name]().__name__ for name in ("nccl", "ipc")]
        + [WeightTransferEngineFactory._registry[name]().__name__ for name in ("nccl", "ipc")],
    "config": [field.name for field in dataclasses.fields(WeightTransferConfig)],
    "arguments": [name for name in ("weight_transfer_config", "enable_sleep_mode", "tensor_parallel_size")
        if name in {field.name for field in dataclasses.fields(EngineArgs)}],
    "routes": sorted(f"{method} {route.path}" for router in (rl.router, sleep.router)
        for route in router.routes for method in route.methods),
    "abstract": sorted(WeightSource.__abstractmethods__),
}
spec = ours.Spec(url="http://x", backend="nccl", world_size=2, address="127.0.0.1", bucket_bytes=1000, timeout_s=1.0)
nccl = ours.init_info(spec, 5000)
ipc = ours.init_info(dataclasses.replace(spec, backend="ipc"), 5000)
found["made"] = {
    "nccl": [nccl.backend, nccl.is_sender, nccl.world_size, nccl.packed, nccl.packed_buffer_size_bytes],
    "ipc": [ipc.backend, ipc.is_sender, ipc.packed, ipc.packed_buffer_size_bytes],
}
source = ours.folder_source("cpu")
found["source"] = isinstance(source, WeightSource)
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        reason = f"no vLLM in {ENVIRONMENT}: run scripts/vllm-env.sh"
        if os.environ.get("SAO_REQUIRE_VLLM") == "1":
            pytest.fail(f"SAO_REQUIRE_VLLM=1, but {reason}", pytrace=False)
        pytest.skip(f"VLLM TEST NOT RUN: {reason}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-c", LOOK, str(INSIDE)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))[5:])


def test_fields_of_what_is_exchanged(found: Any) -> None:
    fields = {name: set(values) for name, values in found["fields"].items()}
    packed = {"packed", "packed_buffer_size_bytes"}
    assert (
        packed | {"rank", "master_address", "master_port", "world_size", "packed_num_buffers"}
        == fields["NCCLTrainerInitInfo"]
    )
    assert packed | {"rank"} == fields["IPCTrainerInitInfo"]
    assert fields["NCCLWeightTransferInitInfo"] >= {"master_address", "master_port", "rank_offset", "world_size"}
    assert fields["NCCLWeightTransferUpdateInfo"] == {"names", "dtype_names", "shapes"}
    assert fields["IPCWeightTransferUpdateInfo"] >= {"names", "dtype_names", "shapes", "ipc_handles_pickled"}
    assert found["fields"]["ParamMeta"] == ["name", "dtype", "shape"]
    assert found["fields"]["WeightTransferInitRequest"] == ["init_info"]
    assert found["fields"]["WeightTransferUpdateRequest"] == ["update_info"]


def test_calls_of_our_sender(found: Any) -> None:
    assert found["trainer_init"] == ["init_info", "client", "source"]
    assert found["send_weights"] == ["self", "self"]
    assert found["client"]["__init__"] == ["self", "base_url", "timeout"]
    assert found["client"]["finish_weight_update"] == ["self", "weight_version"]
    assert found["abstract"] == ["__iter__", "metadata"]
    assert found["source"] is True
    assert found["made"] == {"nccl": ["nccl", True, 3, True, 1000], "ipc": ["ipc", True, True, 5000]}
    assert found["backends"] == [
        "NCCLTrainerWeightTransferEngine",
        "IPCTrainerWeightTransferEngine",
        "NCCLWeightTransferEngine",
        "IPCWeightTransferEngine",
    ]


def test_arguments_and_routes_of_the_server(found: Any) -> None:
    assert found["config"] == ["backend"]
    assert found["arguments"] == ["weight_transfer_config", "enable_sleep_mode", "tensor_parallel_size"]
    wanted = {
        *("POST /init_weight_transfer_engine", "POST /shutdown_weight_transfer_engine", "POST /start_weight_update"),
        *("POST /update_weights", "POST /finish_weight_update", "GET /get_world_size", "POST /pause", "POST /resume"),
        *("POST /update_weight_version", "GET /weight_info", "POST /sleep", "POST /wake_up"),
    }
    assert wanted <= set(found["routes"])
    assert found["worker"]["sleep"] == ["self", "level"]
    assert found["worker"]["wake_up"] == ["self", "tags"]
    assert found["worker"]["update_weights"] == ["self", "update_info"]
