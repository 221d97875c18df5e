"""The served-weights proof: does a server compute with the weights that were published?

Two halves, both after every update: the hashes of the files as the server read them, and a probe: the log-probabilities
of tokens that the model itself finds natural, teacher-forced, by the server and by the trainer. The trainer writes its
own beside the weights it publishes (manifest.json, about.probe); for a folder without them a plain transformers forward
computes them.
The probe sees what a hash cannot: a head that kept its old packed copy, a layer that was not loaded, another precision.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.engines.vllm.faults import ServedWeightsWrong
from data.reading import read_object

if TYPE_CHECKING:
    from torch import nn

LENGTH = 128
"""Tokens of the probe. Every one of its positions sums over the whole vocabulary, so every row of the head counts."""
QUANTILE = 0.9


@dataclass(frozen=True)
class Limits:
    """Of the differences |log p (server) - log p (trainer)| over the probe, nats: their mean and their 0.9 quantile.

    No limit on the worst token: one token of low probability differs by half a nat and more between fp32 and bf16
    arithmetic on the very same weights, and means nothing."""

    mean: float
    quantile: float


@dataclass(frozen=True)
class Difference:
    """What a probe has shown, nats."""

    mean: float
    quantile: float
    worst: float

    def within(self, limits: Limits) -> bool:
        return self.mean <= limits.mean and self.quantile <= limits.quantile  # NaN is not


# Measured: python -m benchmarks.served_weights (docs/engines.md has the table), about three times what was seen.
FP32 = Limits(mean=5e-5, quantile=1e-4)
BF16 = Limits(mean=0.1, quantile=0.25)
FP16 = Limits(mean=0.02, quantile=0.05)


def limits_for(*dtypes: str) -> Limits:
    """Those of the coarsest dtype that weights or arithmetic have on either side, as vLLM or the settings name it; one
    that is not known here (`auto`) may be bf16."""
    known = {"float32": FP32, "fp32": FP32, "float16": FP16, "half": FP16, "fp16": FP16}
    return max((known.get(dtype, BF16) for dtype in dtypes), key=lambda limits: limits.mean)


def natural_tokens(model: nn.Module, length: int = LENGTH, seed: int = 0) -> list[int]:
    """Sampled from the model itself at temperature 1, from its first token on, also past an end: what it finds
    likely, as the tokens of its episodes are. The same model, device and seed give the same tokens."""
    import torch

    config: Any = model.config
    first = next((i for i in (config.bos_token_id, config.eos_token_id, 0) if isinstance(i, int)), 0)
    length = min(length, int(getattr(config, "max_position_embeddings", length) or length))
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens, cache = [first], None
    with torch.no_grad():
        while len(tokens) < length:
            out = model(input_ids=torch.tensor([tokens[-1:]], device=device), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            probabilities = torch.softmax(out.logits[0, -1].double().cpu(), dim=-1)
            if not torch.isfinite(probabilities).all():
                break
            tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return tokens


def probe_of(model: nn.Module, tokens: Sequence[int] | None = None) -> dict[str, Any]:
    """`{"tokens": [n], "logprobs": [n - 1]}` of a live causal LM, in its own precision; JSON-able. `tokens`: at least
    two; None: natural ones."""
    import torch

    tokens = natural_tokens(model) if tokens is None else list(tokens)
    device = next(model.parameters()).device
    with torch.no_grad():
        ids = torch.tensor([tokens], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return {"tokens": tokens, "logprobs": [float(value) for value in logprobs]}


def about_probe(model: nn.Module, tokens: Sequence[int] | None = None) -> dict[str, Any]:
    """What a published version's manifest is to say. Nothing of a model without finite numbers: engines refuse it."""
    probe = probe_of(model, tokens)
    usable = len(probe["logprobs"]) > 0 and all(math.isfinite(value) for value in probe["logprobs"])
    return {"probe": probe} if usable else {}


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
    return read_object(path) if path.is_file() else {}


def check_hashes(where: str, wanted: Mapping[str, str], results: Sequence[Any]) -> None:
    """Raises ServedWeightsWrong unless every worker read the very bytes that were published."""
    for worker, read in enumerate(results):
        if read != dict(wanted):
            raise ServedWeightsWrong(
                f"{where}: worker {worker} read other files than were published: {read} instead of {dict(wanted)}. "
                "Does the server see the same folder?"
            )


def difference(probe: Mapping[str, Any], served: Sequence[float]) -> Difference:
    if not served:  # of a model that gives no finite number, so that nothing could be drawn from it
        return Difference(math.nan, math.nan, math.nan)
    differences = sorted(
        (abs(ours - theirs) for ours, theirs in zip(probe["logprobs"], served, strict=True)),
        key=lambda value: math.inf if math.isnan(value) else value,
    )
    place = min(len(differences) - 1, math.ceil(QUANTILE * len(differences)) - 1)
    return Difference(math.fsum(differences) / len(differences), differences[place], differences[-1])


def check_probe(where: str, probe: Mapping[str, Any], served: Sequence[float], limits: Limits) -> Difference:
    """Raises ServedWeightsWrong above the limits."""
    found = difference(probe, served)
    if not found.within(limits):
        raise ServedWeightsWrong(
            f"{where} does not serve what was published: over the {len(served)} log-probabilities of the probe it "
            f"differs from the trainer by {found.mean:.4g} in the mean (limit {limits.mean:g}) and by "
            f"{found.quantile:.4g} at the {QUANTILE:g} quantile (limit {limits.quantile:g}). A part of the old weights "
            "was kept (a tied head?), a part is lost, or the server computes in another precision than the settings "
            "say. Nothing that it sampled since is used."
        )
    return found
