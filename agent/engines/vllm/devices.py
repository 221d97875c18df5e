"""Who gets which GPU: servers, trainer, and the senders of weights. Arithmetic over names; refuses what cannot be.

The trainer takes the first visible GPU. split: the servers take the next ones, one each, where there are enough, or
those that are named (several each: tensor parallelism). colocated: one server on the trainer's GPU, in turns with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.policy import EngineError


class DevicesRefused(EngineError):
    """The settings of engine.mode, engine.weights and engine.gpus do not fit together or to this machine."""


@dataclass(frozen=True)
class Devices:
    servers: tuple[tuple[str, ...], ...]
    """Names for CUDA_VISIBLE_DEVICES, of each server; empty ones without a GPU."""
    trainer: str

    def sender(self, number: int, weights: str) -> str:
        """Of what sends weights to the server of that number: nccl from the trainer's, ipc from the server's own."""
        return self.servers[number][0] if weights == "ipc" else self.trainer


def choose(
    *, mode: str, weights: str, count: int, wanted: Sequence[str], visible: Sequence[str], running: bool = False
) -> Devices:
    """`wanted`: engine.gpus; `visible`: this machine's, none where the model is on the CPU; `running`: the servers run
    already, perhaps on other machines. Raises DevicesRefused."""
    if not visible:
        if weights != "file":
            raise DevicesRefused(
                f'engine.weights = "{weights}" sends weights from GPU to GPU, and there is none here (no nvidia-smi, '
                'or model.device = "cpu"). Use engine.weights = "file". Nothing was started.'
            )
        if wanted:
            raise DevicesRefused(
                f"engine.gpus names {', '.join(wanted)}, and there is no GPU here. Leave it out. Nothing was started."
            )
        return Devices(((),) * count, "")
    unknown = [name for name in wanted if name not in visible]
    if unknown or len(set(wanted)) != len(wanted):
        raise DevicesRefused(f"engine.gpus names {', '.join(wanted)}; visible are, each once, {', '.join(visible)}.")
    trainer = visible[0]
    if mode == "colocated":
        return _colocated(trainer, weights, count, wanted)
    if wanted:
        if len(wanted) % count:
            raise DevicesRefused(f"{len(wanted)} GPUs (engine.gpus) cannot be divided evenly among {count} servers.")
        each = len(wanted) // count
        servers = tuple(tuple(wanted[place * each : (place + 1) * each]) for place in range(count))
    elif running and weights == "nccl":
        servers = ((),) * count  # wherever they are: where it is the trainer's, NCCL says so
    elif len(visible) > count:
        servers = tuple((name,) for name in visible[1 : 1 + count])
    else:
        servers = ((trainer,),) * count
    if weights == "nccl" and any(trainer in server for server in servers):
        raise DevicesRefused(
            f"engine.weights = \"nccl\" needs a GPU beside the servers' ({trainer} is the trainer's, it sends): NCCL "
            'takes every GPU once. Name others in engine.gpus, or use "ipc" or "file". Nothing was started.'
        )
    if weights == "ipc" and any(len(server) > 1 for server in servers):
        raise DevicesRefused(
            'engine.weights = "ipc" shares the memory of one GPU with one worker: give each server one GPU '
            '(engine.gpus, engine.count), or use "nccl". Nothing was started.'
        )
    return Devices(servers, trainer)


def _colocated(trainer: str, weights: str, count: int, wanted: Sequence[str]) -> Devices:
    if count != 1 or (wanted and list(wanted) != [trainer]):
        raise DevicesRefused(
            f'engine.mode = "colocated" is one server on the trainer\'s GPU ({trainer}): set engine.count = 1, leave '
            'engine.gpus out, or use "split". Nothing was started.'
        )
    if weights == "nccl":
        raise DevicesRefused(
            'engine.weights = "nccl" cannot work colocated (NCCL takes every GPU once): use "ipc" or "file". Nothing '
            "was started."
        )
    return Devices(((trainer,),), trainer)
