"""What vLLM itself loads (`--worker-extension-cls sao_vllm_worker.Worker`); mixed into its worker.

Its folder alone goes on the server's PYTHONPATH, so that none of our rooms can shadow a package of vLLM's environment.
Loading it ties the worker's life to its parent's: an engine that was orphaned would ignore SIGTERM for ever.
"""

import ctypes
import hashlib
import pathlib
import signal
import sys
from typing import Any

from sao_vllm_names import checkpoint_tensors

if sys.platform == "linux":
    _PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """Methods that /collective_rpc finds by name."""

    def sao_reload_weights(self, weights_path: str) -> dict[str, str]:
        """Load a folder's safetensors into the running model; returns the sha256 of every file as it was read."""
        worker: Any = self
        folder = pathlib.Path(weights_path)
        hashes = {file.name: _sha256(file) for file in sorted(folder.glob("*.safetensors"))}
        worker.reload_weights(weights_iterator=checkpoint_tensors(folder))
        self.sao_pack_heads()
        return hashes

    def sao_sleep_ability(self) -> str:
        worker: Any = self
        if worker.device.type == "cpu":
            return "cpu"
        return "frees" if worker.model_config.enable_sleep_mode else "off"

    def sao_pack_heads(self) -> None:
        """To be called after any other way of loading, too.

        On a CPU vLLM packs a linear layer's weights, and a reload packs those again that the checkpoint names. A head
        tied to the embedding is not named, so its packed copy would stay the old one: it is packed again here."""
        worker: Any = self
        for module in worker.get_model().modules():
            if type(module).__name__ in ("ParallelLMHead", "VocabParallelEmbedding") and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
