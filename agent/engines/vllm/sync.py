"""Bringing one server to the published weights, in flight, and proving that it serves them.

    pause (running requests freeze) → label → reload → drop caches → resume → proof

Promises: every step has a deadline; tokens sampled under weights that were not yet proven are held back by whoever
asks `proven` first, and thrown away when the proof fails; the new label is set before the first tensor changes, so no
token of half-loaded weights can carry the old one; nothing computed by older weights is used again (prefixes are
dropped, the running requests are computed again).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.engines.vllm.answers import read_prompt_logprobs
from agent.engines.vllm.faults import (
    AnswerFault,
    ServedWeightsWrong,
    ServerFault,
    ServerGone,
    ServerRefused,
    WeightUpdateFailed,
)
from agent.engines.vllm.proof import check_hashes, check_probe, file_hashes, probe_of_folder
from agent.engines.vllm.router import Server

OUR_RELOAD = "sao_reload_weights"
"""The verb of inside/sao_vllm_worker.py; it also answers with the hashes of what it read."""
_FILES = ("*.safetensors", "*.json")


@dataclass(frozen=True)
class Deadlines:
    """Seconds that one verb may take."""

    verb_s: float = 60.0
    reload_s: float = 900.0
    proof_s: float = 300.0


@dataclass(frozen=True)
class PublishedWeights:
    folder: Path
    """Ours: stays until newer weights are served everywhere, whatever the publisher prunes."""
    version: int
    lineage: str
    probe: Mapping[str, Any]
    hashes: Mapping[str, str]

    @property
    def label(self) -> str:
        return f"{self.lineage}/v{self.version}"


def keep_weights(source: Path, into: Path, version: int, lineage: str) -> PublishedWeights:
    """Link (or copy) a model folder's weights and read what the proof needs. Blocks: run it in a thread."""
    if not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
        raise WeightUpdateFailed(f"{source} holds no config.json with *.safetensors: nothing that a server could load.")
    folder = into / f"v{version:06d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pattern in _FILES:
        for file in source.glob(pattern):
            try:
                (folder / file.name).hardlink_to(file)
            except OSError:  # another file system
                shutil.copyfile(file, folder / file.name)
    return PublishedWeights(folder.resolve(), version, lineage, probe_of_folder(folder), file_hashes(folder))


async def bring(server: Server, weights: PublishedWeights, deadlines: Deadlines, tolerance: float) -> float:
    """Returns the proof's largest difference. Raises ServedWeightsWrong, WeightUpdateFailed, ServerFault (it may come
    back: try again then). Whatever is raised, `proven` raises for what was sampled under the new label meanwhile."""
    client, label = server.client, weights.label
    proof: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    proof.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
    server.proofs[label] = proof
    try:
        await _load(server, weights, deadlines)
        answer = await client.teacher_forced(
            weights.probe["tokens"], request_id=f"probe-{label}", timeout_s=deadlines.proof_s
        )
        served, answered_by = read_prompt_logprobs(answer, weights.probe["tokens"])
        if answered_by != label:
            raise AnswerFault(f"{client.url} answered the probe with {answered_by!r} where {label!r} was just loaded")
        worst = check_probe(client.url, weights.probe, served, tolerance)
    except BaseException as error:
        known = isinstance(error, ServerFault | ServedWeightsWrong | WeightUpdateFailed)
        proof.set_exception(error if known else ServerFault(f"{client.url}: the update to {label} was broken off"))
        raise
    proof.set_result(None)
    return worst


async def _load(server: Server, weights: PublishedWeights, deadlines: Deadlines) -> None:
    client, verb = server.client, "pause"
    try:
        await client.pause(deadlines.verb_s)
        try:
            verb = "update_weight_version"
            await client.set_label(weights.label, deadlines.verb_s)
            verb = server.reload_method
            results = await client.reload(weights.folder, server.reload_method, deadlines.reload_s)
            if server.reload_method == OUR_RELOAD:
                check_hashes(client.url, weights.hashes, results)
            verb = "reset_prefix_cache"
            await client.drop_caches(deadlines.verb_s)
        except BaseException:
            # What runs must not stay frozen; its tokens carry a label that is never proven.
            with contextlib.suppress(ServerFault, ServerRefused):
                await client.resume(deadlines.verb_s)
            raise
        verb = "resume"
        await client.resume(deadlines.verb_s)
    except ServerRefused as error:
        raise WeightUpdateFailed(f"{client.url} cannot take {weights.label}: {verb}: {error}") from error
    except ServerFault as error:
        died = isinstance(error, ServerGone) or verb != server.reload_method
        if died or not await client.healthy(deadlines.verb_s):
            raise
        # A living server that fails to load is not a broken connection: the same folder fails again.
        raise WeightUpdateFailed(
            f"{client.url} cannot load {weights.label} from {weights.folder}: {error}. The server must see that folder "
            "under the same path, and it must hold the model that the server was started with."
        ) from error


async def proven(server: Server, labels: Iterable[str]) -> None:
    """Wait until it is known that the server served these weights; raises what the proof found."""
    for label in labels:
        proof = server.proofs.get(label)
        if proof is None:
            raise AnswerFault(f"{server.client.url} sampled with {label!r}, which it was never given")
        await asyncio.shield(proof)


def is_proven(server: Server, label: str) -> bool:
    proof = server.proofs.get(label)
    return proof is not None and proof.done() and not proof.cancelled() and proof.exception() is None
