"""vLLM's NCCL transfer with the wire replaced, for machines without a GPU: a TCP socket in place of the communicator.

Everything else is what a GPU box runs: vLLM's own engines of both ends, its packed buffers and their geometry, its
endpoints, layerwise reload, our sender and our worker. Not covered: NCCL and CUDA streams themselves.
Loaded by the test's servers (as worker extension) and by the test's sender.
"""

import contextlib
import socket
import time
from typing import Any

import torch
from sao_vllm_worker import Worker as OurWorker


class SocketGroup:
    """Rank 0 listens and sends to all; the others receive."""

    def __init__(self, address: str, port: int, world_size: int, sends: bool) -> None:
        self.peers: list[socket.socket] = []
        self.sends = sends
        if sends:
            with socket.create_server((address, port)) as listener:
                self.peers = [listener.accept()[0] for _ in range(world_size - 1)]
            return
        until = time.monotonic() + 60
        while not self.peers:
            try:
                self.peers = [socket.create_connection((address, port))]
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        assert src == 0
        assert tensor.is_contiguous()
        data = memoryview(tensor.view(torch.uint8).numpy().reshape(-1))
        for peer in self.peers:
            if self.sends:
                peer.sendall(data)
            else:
                received = 0
                while received < len(data):
                    count = peer.recv_into(data[received:])
                    if not count:
                        raise ConnectionError("the other end is gone")
                    received += count

    def destroy(self) -> None:
        for peer in self.peers:
            peer.close()


class _NoStream:
    def synchronize(self) -> None: ...


def install() -> None:
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    def trainer_end(info: Any) -> SocketGroup:
        return SocketGroup(info.master_address, info.master_port, info.world_size, sends=True)

    def worker_end(info: Any, parallel_config: Any) -> SocketGroup:
        return SocketGroup(info.master_address, info.master_port, info.world_size, sends=False)

    nccl_engine.open_trainer_endpoint = trainer_end
    nccl_engine.worker_init_process_group = worker_end
    packed_tensor._get_streams = lambda device, count: tuple(_NoStream() for _ in range(count))
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_: None


class Worker(OurWorker):
    """Ours, in a process where the wire is replaced."""


install()
