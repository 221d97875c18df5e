"""An OpenAI-compatible endpoint in place of an engine (`engine.kind = "endpoint"`): its settings, its connection.

`actor_of` is the one way for everything that only plays and scores; what trains asks `engine_of`, which knows no
endpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.endpoint.faults import EndpointRefused
from agent.endpoint.settings import EndpointSettings
from agent.policy import Policy
from agent.presets import Preset
from envs.maths import tool
from envs.tools.schema import SCHEMAS
from sao.config import Config, EndpointConfig
from sao.engine import engine_of
from sao.paths import UserError

if TYPE_CHECKING:
    from agent.dialogue import TextActor

KIND = "endpoint"


def settings_of(section: EndpointConfig) -> EndpointSettings:
    """Raises UserError."""
    if not section.url or not section.model:
        raise UserError(
            "engine.kind = endpoint needs an address and a model's name: --endpoint http://127.0.0.1:8000/v1 "
            "--endpoint-model NAME (or endpoint.url and endpoint.model)."
        )
    return EndpointSettings(
        url=section.url,
        model=section.model,
        key_env=section.key_env,
        limit_field=section.limit_field,
        omit=section.omit,
        extra=section.extra,
        in_flight=section.in_flight,
        timeout_s=section.timeout_s,
        tries=section.tries,
        patience_s=section.patience_s,
    )


def is_endpoint(config: Config) -> bool:
    return config.engine.kind == KIND


def checked(config: Config) -> EndpointSettings:
    """The settings, with what can be wrong about them found before there is a run folder. Raises UserError."""
    if config.model.path != "demo":
        raise UserError(
            "--model and --endpoint name two models: an endpoint serves its own. Leave one of them out (a tokenizer is "
            "only needed to look at the episodes, and the shipped one does)."
        )
    return usable(settings_of(config.endpoint), "endpoint")


def usable(settings: EndpointSettings, what: str) -> EndpointSettings:
    """Raises UserError where they cannot work, or the key is not there."""
    try:
        settings.check()
        settings.key()
    except EndpointRefused as error:
        raise UserError(f"The {what} cannot be used: {error} Nothing was started.") from error
    return settings


def refuse_endpoint(config: Config) -> None:
    """For what trains. Raises UserError."""
    if is_endpoint(config):
        raise UserError(
            "An endpoint cannot be trained, nor trained on: it gives text, no ids and no log-probabilities. Use a "
            "model folder with engine.kind embedded or vllm."
        )


@contextlib.asynccontextmanager
async def actor_of(
    config: Config,
    preset: Preset,
    folder: Path,
    *,
    lineage: str,
    temperature: float | None = None,
    work: Path | None = None,
    say: Callable[[str], None],
    idle: bool = False,
) -> AsyncIterator[Policy | TextActor]:
    """What plays: an engine under the weights of `folder`, or the endpoint. `idle`: nothing is left to play, so the
    endpoint need not answer. Raises EngineError, UserError."""
    if not is_endpoint(config):
        async with engine_of(config, folder, lineage=lineage, temperature=temperature, work=work, say=say) as policy:
            yield policy
        return
    from agent.endpoint.actor import Endpoint
    from agent.endpoint.dialogue import Manner

    section = config.endpoint
    made = await Endpoint.connect(
        checked(config),
        Manner(section.calls, section.thoughts, section.max_context or None),
        temperature=config.agent.temperature if temperature is None else temperature,
        tools=schemas_of(preset),
        check=not idle,
    )
    try:
        for note in made.served.notes:
            say(f"endpoint: {note}")
        yield made
    finally:
        await made.close()


def schemas_of(preset: Preset) -> list[Mapping[str, Any]]:
    """Of the tools that the preset offers, as environments will."""
    known = {**SCHEMAS, tool.NAME: tool.SCHEMA}
    return [] if preset.calls == "fenced" else [known[name] for name in preset.tools if name in known]
