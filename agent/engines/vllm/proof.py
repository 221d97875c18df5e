"""The served-weights proof: does a server compute with the weights that were published?

Two halves, both after every update: the hashes of the files as the server read them, and a probe: the log-probabilities
of a fixed sequence of tokens, teacher-forced, by the server and by the trainer. The trainer writes its own beside the
weights it publishes (manifest.json, about.probe); for a folder without them a plain transformers forward computes them.
The probe sees what a hash cannot: a head that kept its old packed copy, a layer that was not loaded, another precision.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.engines.vllm.faults import ServedWeightsWrong

if TYPE_CHECKING:
    from torch import nn

LENGTH = 48
"""Tokens of the probe. Every one of its positions sums over the whole vocabulary, so every row of the head counts."""
TOLERANCE = 2e-4
"""Largest difference of one log-probability where both sides compute in fp32 (seen: 2e-5)."""
TOLERANCE_LOW = 0.5
"""The same where one side computes in 16 bits (untested on a GPU)."""


def probe_tokens(vocabulary: int) -> list[int]:
    """The same tokens on both sides, spread over the vocabulary by a hash of their place."""
    digests = (hashlib.sha256(f"sao probe {place}".encode()).digest() for place in range(LENGTH))
    return [int.from_bytes(digest[:8], "big") % vocabulary for digest in digests]


def probe_of(model: nn.Module) -> dict[str, Any]:
    """`{"tokens": [n], "logprobs": [n - 1]}` of a live causal LM, in its own precision; JSON-able."""
    import torch

    config: Any = model.config
    tokens = probe_tokens(int(config.vocab_size))
    device = next(model.parameters()).device
    with torch.no_grad():
        ids = torch.tensor([tokens], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return {"tokens": tokens, "logprobs": [float(value) for value in logprobs]}


def about_probe(model: nn.Module) -> dict[str, Any]:
    """What a published version's manifest is to say. Nothing of a model without finite numbers: engines refuse it."""
    probe = probe_of(model)
    return {"probe": probe} if all(math.isfinite(value) for value in probe["logprobs"]) else {}


def probe_of_folder(folder: Path) -> dict[str, Any]:
    """The trainer's own numbers where its manifest has them, else those of a plain forward on the CPU in fp32."""
    probe = _manifest(folder).get("about", {}).get("probe")
    if isinstance(probe, Mapping):
        return dict(probe)
    import torch

    from agent.engines.weights import load_model

    return probe_of(load_model(folder, torch.device("cpu"), torch.float32).eval())


def file_hashes(folder: Path) -> dict[str, str]:
    """sha256 of the weights' files: those that the manifest lists (its reader has checked them), or read anew."""
    listed = _manifest(folder).get("files", {})
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name in listed:
            found[file.name] = str(listed[file.name]["sha256"])
        else:
            with file.open("rb") as opened:
                found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def check_hashes(where: str, wanted: Mapping[str, str], results: Sequence[Any]) -> None:
    """Raises ServedWeightsWrong unless every worker read the very bytes that were published."""
    for worker, read in enumerate(results):
        if read != dict(wanted):
            raise ServedWeightsWrong(
                f"{where}: worker {worker} read other files than were published: {read} instead of {dict(wanted)}. "
                "Does the server see the same folder?"
            )


def check_probe(where: str, probe: Mapping[str, Any], served: Sequence[float], tolerance: float) -> float:
    """The largest difference; raises ServedWeightsWrong above the tolerance."""
    differences = [abs(ours - theirs) for ours, theirs in zip(probe["logprobs"], served, strict=True)]
    wrong = [place for place, difference in enumerate(differences) if not difference <= tolerance]  # NaN is wrong too
    if wrong:
        raise ServedWeightsWrong(
            f"{where} does not serve what was published: {len(wrong)} of {len(served)} log-probabilities of the probe "
            f"differ by more than {tolerance:g}, that of token {wrong[0] + 1} is {served[wrong[0]]:.6f} there and "
            f"{probe['logprobs'][wrong[0]]:.6f} at the trainer. A part of the old weights was kept (a tied head?), or "
            "the server computes in another precision. Nothing that it sampled since is used."
        )
    return max(differences)
