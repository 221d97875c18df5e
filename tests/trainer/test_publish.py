from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer.folders import FolderError, sweep, verify
from trainer.publish import FORMAT, WEIGHTS, PublishError, Version, WeightFolder

from .tiny_models import tiny_policy


@pytest.fixture
def weights(tmp_path: Path) -> WeightFolder:
    folder = WeightFolder(tmp_path / "weights", keep=2)
    folder.open_for_writing()
    return folder


def publish(weights: WeightFolder, *numbers: int, lineage: str = "run", tied: bool = False) -> None:
    for number in numbers:
        weights.publish(tiny_policy(seed=number, tied=tied), Version(number, lineage), {"step": number})


def test_a_version_is_a_model_that_transformers_loads(weights: WeightFolder) -> None:
    publish(weights, 3, tied=True)
    assert weights.newest() == Version(3, "run")
    with weights.fetch(Version(3, "run")) as folder:
        stored = load_file(folder / WEIGHTS)
        assert "lm_head.weight" not in stored, "tied weights are stored once"
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, tensor in tiny_policy(seed=3, tied=True).state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_numbers_only_grow(weights: WeightFolder) -> None:
    publish(weights, 1, 2)
    for number in (1, 2):
        with pytest.raises(PublishError, match="used once"):
            publish(weights, number, lineage="another")


def test_a_changed_or_missing_file_is_refused(weights: WeightFolder) -> None:
    publish(weights, 1)
    path = weights.path(1) / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FolderError, match="not what was written"), weights.fetch(Version(1, "run")):
        pass
    path.unlink()
    with pytest.raises(FolderError, match="missing"):
        verify(weights.path(1), FORMAT)


def test_the_wrong_lineage_is_refused(weights: WeightFolder) -> None:
    publish(weights, 1)
    with pytest.raises(PublishError, match="lineage"), weights.fetch(Version(1, "other")):
        pass


def test_old_versions_go_but_not_one_in_use(weights: WeightFolder) -> None:
    publish(weights, 1)
    with weights.fetch(Version(1, "run")):
        publish(weights, 2, 3, 4)
        assert weights.numbers() == [1, 3, 4]
    publish(weights, 5)
    assert weights.numbers() == [4, 5]
    with pytest.raises(PublishError, match="pruned"), weights.fetch(Version(1, "run")):
        pass


def test_a_dead_holder_holds_nothing(weights: WeightFolder) -> None:
    publish(weights, 1)
    ready = multiprocessing.get_context("fork").Event()

    def hold() -> None:
        with weights.fetch(Version(1, "run")):
            ready.set()
            ready.wait()
            multiprocessing.Event().wait()

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    assert ready.wait(30)
    publish(weights, 2, 3)
    assert weights.numbers() == [1, 2, 3]
    process.kill()
    process.join()
    publish(weights, 4)
    assert weights.numbers() == [3, 4]


def test_a_killed_writer_leaves_nothing_under_a_version_name(weights: WeightFolder) -> None:
    publish(weights, 1)
    leftover = weights.directory / ".partial-v000002-1"
    leftover.mkdir()
    (leftover / WEIGHTS).write_bytes(b"half")
    assert weights.numbers() == [1]
    sweep(weights.directory)
    assert not leftover.exists()


def test_bf16_storage(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path / "w", dtype=torch.bfloat16)
    publish(folder, 0)
    with folder.fetch(Version(0, "run")) as path:
        assert {tensor.dtype for tensor in load_file(path / WEIGHTS).values()} == {torch.bfloat16}
