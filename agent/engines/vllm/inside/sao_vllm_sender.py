"""Sends published weights to one server by vLLM's own transfer engines; a process of vLLM's environment.

    python sao_vllm_sender.py SPEC        SPEC: JSON, the fields of `Spec`

Commands are JSON lines on standard input, each answered by one on standard output: `{"do": "join"}` makes the transfer
group with the server's workers, `{"do": "send", "folder": ...}` sends a folder's weights and answers with the sha256 of
every file it read, the number of tensors and bytes, and the seconds. `{"error": ...}` in place of any answer. It ends
with its input or with its parent.

A process of its own because vLLM's trainer side needs vLLM, which the trainer's environment must not hold; because it
can send again whenever a server was started again; and because a broadcast whose other end died never returns: only
ending the process frees it.
"""

import concurrent.futures
import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import socket
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Spec:
    url: str
    backend: str
    """nccl: the workers have other GPUs; ipc: they have the very GPU of this process."""
    world_size: int
    """Workers of the server."""
    address: str
    """This machine as the server sees it."""
    bucket_bytes: int
    """Tensors travel packed in buffers of this size, two at a time."""
    timeout_s: float
    """Of one HTTP call; a call lasts as long as the transfer."""
    device: str = "cuda"


def folder_source(device: str) -> Any:
    """A WeightSource over whatever folder its `folder` names at the time."""
    from sao_vllm_names import checkpoint_tensors
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class FolderSource(WeightSource):
        folder: pathlib.Path

        def metadata(self) -> list[Any]:
            pairs = checkpoint_tensors(self.folder, "meta")
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in pairs]

        def __iter__(self) -> Any:
            return checkpoint_tensors(self.folder, device)

    return FolderSource()


def init_info(spec: Spec, largest: int) -> Any:
    """vLLM's description of our end. `largest`: bytes of the largest tensor; a packed IPC buffer must hold it whole."""
    if spec.backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        return NCCLTrainerInitInfo(
            rank=0,
            master_address=spec.address,
            master_port=_free_port(spec.address),
            world_size=1 + spec.world_size,
            packed=True,
            packed_buffer_size_bytes=spec.bucket_bytes,
            packed_num_buffers=2,
        )
    if spec.backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=max(spec.bucket_bytes, largest))
    raise ValueError(f"no transfer by {spec.backend!r}: nccl or ipc")


class Sender:
    def __init__(self, spec: Spec) -> None:
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

        self.spec = spec
        self.client = HTTPVLLMWeightSyncClient(spec.url, timeout=spec.timeout_s)
        self.source = folder_source(spec.device)
        self.engine: Any = None

    def join(self, folder: str) -> dict[str, Any]:
        """Make the transfer group. `folder`: of the model to come; its tensors' sizes are looked at."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self.source.folder = pathlib.Path(folder)
        largest = max((_bytes(meta) for meta in self.source.metadata()), default=0)
        self.client.shutdown_weight_transfer_engine()  # what an earlier sender may have left
        self.engine = WeightTransferTrainerFactory.trainer_init(
            init_info(self.spec, largest), client=self.client, source=self.source
        )
        return {"joined": type(self.engine).__name__}

    def send(self, folder: str) -> dict[str, Any]:
        began = time.monotonic()
        self.source.folder = pathlib.Path(folder)
        metadata = self.source.metadata()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:  # hashed beside the transfer, from the same cached pages
            hashes = pool.submit(_hashes, self.source.folder)
            self.engine.send_weights()  # start_weight_update, update_weights with the transfer, finish_weight_update
            return {
                "hashes": hashes.result(),
                "tensors": len(metadata),
                "bytes": sum(map(_bytes, metadata)),
                "seconds": time.monotonic() - began,
            }

    def close(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()


def _bytes(meta: Any) -> int:
    size = meta.dtype.itemsize
    for length in meta.shape:
        size *= length
    return size


def _hashes(folder: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _free_port(address: str) -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])


def main(words: list[str]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # vLLM logs to standard output
    sender: Sender | None = None
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            sender = sender or Sender(Spec(**json.loads(words[0])))
            answer = {"join": sender.join, "send": sender.send}[asked.pop("do")](**asked)
        except Exception as error:  # whatever it is, the other end must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    if sender is not None:
        sender.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
