"""Published weights as a model folder of their own, in the layout of a checkpoint.

Promises: names and shapes are those that `save_pretrained` would write (a mixture of experts is published as it is in
memory, its experts stacked, which transformers loads and a vLLM server does not start from); dtypes stay; the folder
is there whole or not at all, and its manifest has the hashes of what is in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file

from agent.engines.vllm.inside.sao_vllm_names import checkpoint_tensors, is_stacked
from trainer.folders import MANIFEST, new_folder, read_manifest, remove, sweep
from trainer.publish import FORMAT, WEIGHTS


def export_model(published: Path, target: Path, beside: Iterable[Path]) -> None:
    """`published`: a version's folder, held by the caller; `beside`: files to copy too. Replaces `target`."""
    sweep(target.parent)
    if target.exists():
        remove(target)
    manifest = {name: value for name, value in read_manifest(published, FORMAT).items() if name != "files"}
    with new_folder(target, manifest, "export") as folder:
        for file in published.iterdir():
            if file.name == WEIGHTS and is_stacked(published):
                # Copies: parts of one stacked tensor would share its memory, which safetensors refuses.
                tensors = {name: tensor.contiguous().clone() for name, tensor in checkpoint_tensors(published)}
                save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
            elif file.name != MANIFEST:
                shutil.copyfile(file, folder / file.name)
        for file in beside:
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
