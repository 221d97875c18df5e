"""An endpoint as what acts in episodes, in place of a policy: connected and checked, then one dialogue an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.endpoint.client import ChatClient, Served
from agent.endpoint.dialogue import EndpointDialogue, Manner
from agent.endpoint.settings import EndpointSettings
from agent.presets import Limits, Preset
from agent.renderers import Renderer
from agent.renderers.plain import PlainRenderer
from data.trajectory import Sampling

UNKNOWN = -1.0


def lineage_of(model: str) -> str:
    """What trajectories record in place of weights."""
    return f"endpoint:{model}"


class Endpoint:
    """Made by `connect`. The temperature is -1 where none is sent: the endpoint's own."""

    def __init__(self, client: ChatClient, manner: Manner, sampling: Sampling, served: Served) -> None:
        self.client, self.manner, self.sampling, self.served = client, manner, sampling, served
        self.lineage = lineage_of(client.settings.model)

    @classmethod
    async def connect(
        cls,
        settings: EndpointSettings,
        manner: Manner,
        *,
        temperature: float,
        tools: Sequence[Any] = (),
        check: bool = True,
    ) -> Endpoint:
        """`tools`: schemas of those that will be offered. Raises EndpointRefused, EndpointDown before work starts."""
        sampling = sampling_of(settings, temperature)
        client = ChatClient(settings)
        try:
            served = Served()
            if check:
                sent = {} if sampling.temperature < 0 else {"temperature": temperature, "top_p": sampling.top_p}
                served = await client.check(tools if manner.calls == "native" else (), seed=0, **sent)
            found = [size for size in (manner.max_context, served.context) if size]
            return cls(client, replace(manner, max_context=min(found) if found else None), sampling, served)
        except BaseException:
            await client.close()
            raise

    def dialogue(self, renderer: Renderer, preset: Preset, limits: Limits) -> EndpointDialogue:
        if not isinstance(renderer, PlainRenderer):
            raise TypeError(f"an endpoint speaks in text: PlainRenderer, not {type(renderer).__name__}")
        return EndpointDialogue(self.client, self.manner, renderer, preset, limits, self.sampling)

    async def forget(self, episode_id: str) -> None:
        """Nothing is held for an episode."""

    async def close(self) -> None:
        await self.client.close()


def sampling_of(settings: EndpointSettings, temperature: float) -> Sampling:
    if "temperature" in settings.omit:
        return Sampling(UNKNOWN, UNKNOWN)
    return Sampling(temperature=temperature)
