"""Weights sent to a server by vLLM's own transfer engines, NCCL or CUDA IPC, in place of a file that it reads.

    our side: one `TransferLoader` a server ── JSON lines ──► inside/sao_vllm_sender.py (vLLM's environment, a GPU)
    sender: /init_weight_transfer_engine · /start_weight_update · /update_weights ∥ buffers · /finish_weight_update

nccl: the sender has a GPU of its own (the trainer's), the server's workers are the other ranks. ipc: the sender opens a
buffer on the server's very GPU and hands the handle over. Either way the tensors come from the version's published
folder, so that a server which was started again can have them again; the server need not see that folder.

Promises: refused before anything starts where it cannot work (`devices`); the transfer's group is made before the
server is paused; a transfer that has not ended by its deadline is killed and is a fault; the sender's
hashes of what it read must be those that were published; a server whose load broke off is not used again as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerFault, WeightUpdateFailed
from agent.engines.vllm.launch import INSIDE
from agent.engines.vllm.loading import Deadlines, Loader
from agent.engines.vllm.proof import check_hashes
from agent.engines.vllm.published import PublishedWeights

SENDER = INSIDE / "sao_vllm_sender.py"
_PACK = "sao_pack_heads"
"""The verb of inside/sao_vllm_worker.py that ends a load which is not its own."""
_LAST_LINES = 12
_GRACE_S = 15.0


@dataclass(frozen=True)
class TransferSettings:
    backend: Literal["nccl", "ipc"]
    python: Path
    """The interpreter of vLLM's environment."""
    logs: Path
    gpu: str = ""
    """CUDA_VISIBLE_DEVICES of the sender; empty: as it is here."""
    bucket_bytes: int = 512 * 2**20
    """Size of a packed buffer; there are two of them at a time, at each end."""
    device: str = "cuda"
    script: Path = SENDER


class TransferLoader(Loader):
    """Keeps one sender process for one server, across updates; starts another when it died or was ended."""

    def __init__(self, settings: TransferSettings, number: int = 0) -> None:
        self.settings, self.name = settings, f"weight transfer ({settings.backend})"
        self._log = settings.logs / f"sender-{number}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._joined = False

    async def prepare(self, client: VllmClient, weights: PublishedWeights, deadlines: Deadlines) -> None:
        """Start the sender (vLLM's imports take half a minute) and make the group with the server's workers."""
        if self._process is not None and self._process.returncode is None and self._joined:
            return
        await self._end()
        workers = await client.world_size(deadlines.verb_s)
        if self.settings.backend == "ipc" and workers != 1:
            raise WeightUpdateFailed(
                f'{client.url} has {workers} workers: engine.weights = "ipc" shares one GPU\'s memory with one worker. '
                "Use nccl, or one GPU a server."
            )
        spec = {
            "url": client.url,
            "backend": self.settings.backend,
            "world_size": workers,
            "address": address_towards(client.url),
            "bucket_bytes": self.settings.bucket_bytes,
            "timeout_s": deadlines.reload_s,
            "device": self.settings.device,
        }
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(self.settings.python.absolute()), str(self.settings.script), json.dumps(spec)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=sender_environment(self.settings),
                start_new_session=True,
            )
        await self._ask(client, deadlines.reload_s, do="join", folder=str(weights.folder))
        self._joined = True

    async def load(self, client: VllmClient, weights: PublishedWeights, deadlines: Deadlines) -> None:
        answer = await self._ask(client, deadlines.reload_s, do="send", folder=str(weights.folder))
        check_hashes(f"the sender for {client.url}", weights.hashes, [answer.get("hashes")])
        await client.call_workers(_PACK, {}, deadlines.verb_s)

    async def close(self) -> None:
        await self._end()

    async def _ask(self, client: VllmClient, timeout_s: float, **command: str) -> Mapping[str, Any]:
        """One command and its answer. A failure is the server's where it no longer answers, else the transfer's own."""
        process, what = self._process, f"{self.name} to {client.url}, {command['do']}"
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                process.stdin.write(json.dumps(command).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            if not line:
                why = f"the sender ended with exit code {await process.wait()}: {self._last_words()}"
            else:
                answer: dict[str, Any] = json.loads(line)
                if "error" not in answer:
                    return answer
                why = str(answer["error"])
        except TimeoutError:
            why = f"not ended within {timeout_s:.0f} s (an end that died leaves the other waiting)"
        except (OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}: {self._last_words()}"
        except BaseException:
            await self._end(kill=True)  # it cannot be asked again: its next answer would be that of this command
            raise
        # What the server holds now is half old and half new, and the group is of no use: both are made anew.
        await self._end(kill=True)
        if not await client.healthy(min(timeout_s, _GRACE_S)):
            raise ServerFault(f"{what}: {why}")
        raise WeightUpdateFailed(
            f"{what}: {why}. The server answers, but part of its weights may be the new ones: start it again. "
            f"The sender's log: {self._log}"
        )

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-_LAST_LINES:])
        return ""

    async def _end(self, kill: bool = False) -> None:
        process, self._process, self._joined = self._process, None, False
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(0 if kill else _GRACE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def sender_environment(settings: TransferSettings) -> dict[str, str]:
    """As ours, without what would shadow packages of vLLM's environment or send loopback calls to a proxy."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS")
    found = {name: value for name, value in os.environ.items() if name not in dropped}
    found |= {"NO_PROXY": "*", "no_proxy": "*", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if settings.gpu:
        found["CUDA_VISIBLE_DEVICES"] = settings.gpu
    return found


def address_towards(url: str) -> str:
    """The address of this machine on the way to a server. Nothing is sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return str(probe.getsockname()[0])
