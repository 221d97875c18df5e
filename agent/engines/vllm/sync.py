"""Bringing one server to the published weights, in flight, and proving that it serves them.

    pause (running requests freeze) → label → load → drop caches → resume → proof
    colocated: pause → drop caches → sleep ··· training ··· label → wake weights → load → wake cache → resume → proof

Promises: every step has a deadline; tokens sampled under weights that were not yet proven are held back by whoever
asks `proven` first, and thrown away when the proof fails; the new label is set before the first tensor changes, so no
token of half-loaded weights can carry the old one; nothing computed by older weights is used again (prefixes are
dropped, the running requests are computed again).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from agent.engines.vllm.answers import read_prompt_logprobs
from agent.engines.vllm.faults import (
    AnswerFault,
    ServedWeightsWrong,
    ServerFault,
    ServerRefused,
    WeightUpdateFailed,
)
from agent.engines.vllm.loading import Deadlines
from agent.engines.vllm.proof import Difference, Limits, check_probe
from agent.engines.vllm.published import PublishedWeights
from agent.engines.vllm.router import Server


async def bring(server: Server, weights: PublishedWeights, deadlines: Deadlines, limits: Limits) -> Difference:
    """Returns what the proof has seen. Raises ServedWeightsWrong, WeightUpdateFailed, ServerFault (it may come
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
        seen = check_probe(client.url, weights.probe, served, limits)
    except BaseException as error:
        known = isinstance(error, ServerFault | ServedWeightsWrong | WeightUpdateFailed)
        proof.set_exception(error if known else ServerFault(f"{client.url}: the update to {label} was broken off"))
        raise
    proof.set_result(None)
    return seen


async def _load(server: Server, weights: PublishedWeights, deadlines: Deadlines) -> None:
    client, verb = server.client, "pause"
    try:
        await server.loader.prepare(client, weights, deadlines)
        await client.pause(deadlines.verb_s)
        try:
            verb = "update_weight_version"
            await client.set_label(weights.label, deadlines.verb_s)
            if server.asleep:
                verb = "wake_up (weights)"
                await client.wake(("weights",), deadlines.reload_s)
            verb = server.loader.name
            await server.loader.load(client, weights, deadlines)
            if server.asleep:
                # Only now is there room for keys and values: while they slept, a transfer could use it.
                verb = "wake_up (kv_cache)"
                await client.wake(("kv_cache",), deadlines.reload_s)
                server.asleep = False
                await client.pause(deadlines.verb_s)  # being awake, it resumed by itself
            verb = "reset_prefix_cache"
            await client.drop_caches(deadlines.verb_s)
        except BaseException:
            # What runs must not stay frozen; its tokens carry a label that is never proven. (Asleep, it has no memory
            # to run in.)
            if not server.asleep:
                with contextlib.suppress(ServerFault, ServerRefused):
                    await client.resume(deadlines.verb_s)
            raise
        verb = "resume"
        await client.resume(deadlines.verb_s)
    except ServerRefused as error:
        raise WeightUpdateFailed(f"{client.url} cannot take {weights.label}: {verb}: {error}") from error


async def lay_down(server: Server, level: int, deadlines: Deadlines) -> None:
    """Freeze what runs and give the device's memory back; `bring` wakes it. Raises ServerFault, WeightUpdateFailed.

    `level`: 1 keeps the weights in the host's memory, 2 drops them (they are loaded again in either case)."""
    client, verb = server.client, "pause"
    try:
        await client.pause(deadlines.verb_s)
        # Before it sleeps: a request that kept its keys and values would go on with garbage when the scheduler wakes.
        verb = "reset_prefix_cache"
        await client.drop_caches(deadlines.verb_s)
        verb = "sleep"
        await client.sleep(level, deadlines.reload_s)
    except ServerRefused as error:
        raise WeightUpdateFailed(f"{client.url} cannot sleep: {verb}: {error}") from error
    server.asleep = True


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
