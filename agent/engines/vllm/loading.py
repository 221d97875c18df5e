"""How published weights get into a paused server: read by it from the folder (here), or sent to it (`transfer`).

Promises: `prepare` may take long and changes nothing that a server samples with; `load` ends within its deadline, one
way or the other, and has checked that the very bytes went in that were published.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerFault, ServerGone, WeightUpdateFailed
from agent.engines.vllm.proof import check_hashes
from agent.engines.vllm.published import PublishedWeights

OUR_RELOAD = "sao_reload_weights"
"""The verb of inside/sao_vllm_worker.py; it also answers with the hashes of what it read."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that one verb may take."""

    verb_s: float = 60.0
    reload_s: float = 900.0
    proof_s: float = 300.0


class Loader(abc.ABC):
    """Of one server. `name`: the verb, for messages."""

    name: str

    async def prepare(self, client: VllmClient, weights: PublishedWeights, deadlines: Deadlines) -> None:  # noqa: B027
        """Before the server is paused: what takes time and is not the transfer itself."""

    @abc.abstractmethod
    async def load(self, client: VllmClient, weights: PublishedWeights, deadlines: Deadlines) -> None:
        """Into the paused server. Raises ServerFault, ServerRefused, ServedWeightsWrong, WeightUpdateFailed."""

    async def close(self) -> None:  # noqa: B027 - nothing to close by default
        """End whatever helps."""


class FileLoader(Loader):
    """The server reads the folder, which it sees under the same path. `method`: what /collective_rpc calls."""

    def __init__(self, method: str = "reload_weights") -> None:
        self.name = method

    async def load(self, client: VllmClient, weights: PublishedWeights, deadlines: Deadlines) -> None:
        try:
            results = await client.reload(weights.folder, self.name, deadlines.reload_s)
        except ServerGone:
            raise
        except ServerFault as error:
            if not await client.healthy(deadlines.verb_s):
                raise
            # A living server that fails to load is not a broken connection: the same folder fails again.
            raise WeightUpdateFailed(
                f"{client.url} cannot load {weights.label} from {weights.folder}: {error}. The server must see that "
                "folder under the same path, and it must hold the model that the server was started with."
            ) from error
        if self.name == OUR_RELOAD:
            check_hashes(client.url, weights.hashes, results)
