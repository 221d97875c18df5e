"""The served-weights proof: what the trainer writes, what a server must give, which faults it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agent.engines.vllm.faults import ServedWeightsWrong
from agent.engines.vllm.proof import (
    LENGTH,
    TOLERANCE,
    about_probe,
    check_hashes,
    check_probe,
    file_hashes,
    probe_of,
    probe_of_folder,
    probe_tokens,
)
from agent.engines.vllm.published import keep_weights


def test_probe_tokens_are_the_same_everywhere() -> None:
    assert len(probe_tokens(50)) == LENGTH
    assert max(probe_tokens(50)) < 50
    assert probe_tokens(1000)[0] == 654  # the first eight bytes of sha256("sao probe 0") modulo 1000, big end first


def test_the_trainers_probe_is_that_of_the_folder_it_publishes(make_model: Any, tmp_path: Path) -> None:
    from trainer.publish import Version, WeightFolder

    model = make_model(3)
    weights = WeightFolder(tmp_path / "weights")
    weights.open_for_writing()
    weights.publish(model, Version(4, "line"), about_probe(model))
    with weights.fetch(Version(4, "line")) as folder:
        kept = keep_weights(folder, tmp_path / "ours", 4, "line")
    assert kept.probe == probe_of(model)
    assert kept.label == "line/v4"
    assert kept.hashes == file_hashes(folder)
    (kept.folder / "manifest.json").unlink()  # nothing written beside it: computed, and the file is read
    assert probe_of_folder(kept.folder)["logprobs"] == pytest.approx(kept.probe["logprobs"], abs=1e-6)
    assert file_hashes(kept.folder) == kept.hashes
    weights.publish(model, Version(9, "line"), {})
    for number in (10, 11, 12):
        weights.publish(model, Version(number, "line"), {})
    assert not folder.exists()
    assert (kept.folder / "model.safetensors").is_file()  # pruned there, still ours


@pytest.mark.parametrize("part", ["head", "layer", "embedding"])
def test_one_kept_part_of_the_old_weights_is_found(make_model: Any, part: str) -> None:
    """The new weights are a small training step away from the old ones (1e-3 a parameter)."""
    old, new, served = (make_model(1, tie_word_embeddings=False) for _ in range(3))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            parameter.add_(1e-3 * torch.sign(torch.randn_like(parameter)))
            stays = {"head": "lm_head", "layer": "layers.1.", "embedding": "embed_tokens"}[part] in name
            served.get_parameter(name).copy_(old.get_parameter(name) if stays else parameter)
    assert check_probe("s", probe_of(new), probe_of(new)["logprobs"], TOLERANCE) == 0.0
    with pytest.raises(ServedWeightsWrong, match="does not serve what was published"):
        check_probe("s", probe_of(new), probe_of(served)["logprobs"], TOLERANCE)


def test_a_model_without_finite_numbers(make_model: Any) -> None:
    model = make_model(1)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    assert about_probe(model) == {}  # the manifest stays JSON; engines refuse the weights themselves
    broken = probe_of(model)
    with pytest.raises(ServedWeightsWrong):
        check_probe("s", broken, broken["logprobs"], TOLERANCE)


def test_other_files_than_published() -> None:
    check_hashes("s", {"a": "1"}, [{"a": "1"}, {"a": "1"}])
    with pytest.raises(ServedWeightsWrong, match="worker 1 read other files"):
        check_hashes("s", {"a": "1"}, [{"a": "1"}, {"a": "2"}])
