"""The engine of a run from its configuration: a policy that serves a model folder's weights, for as long as it is used.

One way for rollouts, training and scores: `async with engine_of(...) as policy`. With vLLM the run's own servers are
started, supervised and ended here, or running ones are connected to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.policy import EngineError, TrainablePolicy
from data.reading import user_path
from data.trajectory import Sampling
from sao.config import Config
from sao.paths import vllm_environment

if TYPE_CHECKING:
    from agent.engines.vllm.devices import Devices
    from agent.engines.vllm.faults import ServerStartFailed
    from agent.engines.vllm.launch import LaunchSettings

_log = logging.getLogger(__name__)
SERVING = "serving"
"""What servers need, in the run folder: logs and the weights they are to serve."""


@contextlib.asynccontextmanager
async def engine_of(
    config: Config,
    folder: Path,
    *,
    lineage: str,
    version: int = 0,
    temperature: float | None = None,
    work: Path | None = None,
    model: Path | None = None,
    say: Callable[[str], None] = _log.info,
) -> AsyncIterator[TrainablePolicy]:
    """A policy under the weights of `folder`.

    `work`: a directory for what servers need while the engine lives; `model`: what vLLM servers are started with where
    `folder` holds bare weights; `temperature`: another than the configuration's. Raises EngineError."""
    if config.engine.kind == "endpoint":
        raise EngineError("an endpoint is no engine: it gives text, no ids and no log-probabilities")
    sampling = Sampling(temperature=config.agent.temperature if temperature is None else temperature)
    async with contextlib.AsyncExitStack() as stack:
        if config.engine.kind == "vllm":
            policy: TrainablePolicy = await _vllm(
                config, stack, folder, model or folder, work, say, lineage=lineage, version=version, sampling=sampling
            )
        else:
            from agent.engines.embedded import EmbeddedPolicy

            policy = await asyncio.to_thread(
                EmbeddedPolicy.load,
                folder,
                device=None if config.model.device == "auto" else config.model.device,
                lineage=lineage,
                version=version,
                sampling=sampling,
                max_batch=config.rollout.concurrency,
                threads=config.model.threads or None,
            )
        stack.push_async_callback(policy.close)
        yield policy


async def _vllm(
    config: Config,
    stack: contextlib.AsyncExitStack,
    folder: Path,
    model: Path,
    work: Path | None,
    say: Callable[[str], None],
    **weights: Any,
) -> TrainablePolicy:
    import tempfile

    from agent.engines.vllm.loading import OUR_RELOAD, FileLoader, Loader
    from agent.engines.vllm.policy import ServingSettings, VllmPolicy
    from agent.engines.vllm.proof import limits_for
    from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
    from agent.engines.vllm.transfer import TransferLoader, TransferSettings

    engine = config.engine
    launch, devices = launch_settings(config, model), devices_of(config)
    if work is None:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sao-serving-")))
    logs = work / "logs"
    urls = list(engine.servers)
    failures: list[ServerStartFailed] = []
    policy: VllmPolicy | None = None
    supervisor: Supervisor | None = None

    def failed(error: ServerStartFailed) -> None:
        failures.append(error)
        if policy is not None and len(failures) == engine.count:
            policy.fail(error)

    def loader(number: int) -> Loader:
        if engine.weights == "file":
            return FileLoader(OUR_RELOAD)
        settings = TransferSettings(
            backend=engine.weights,
            python=launch.python,
            logs=logs,
            gpu=devices.sender(number, engine.weights),
            bucket_bytes=engine.bucket_mib * 2**20,
        )
        return TransferLoader(settings, number)

    if not urls:
        supervisor = await stack.enter_async_context(
            Supervisor(
                launch,
                logs,
                count=engine.count,
                settings=SuperviseSettings(start_timeout_s=engine.patience_s, restarts=engine.restarts),
                say=say,
                on_failed=failed,
                gpus=devices.servers,
            )
        )
        await supervisor.wait_ready()
        urls = supervisor.urls
    policy = await VllmPolicy.connect(
        urls,
        folder,
        work / "weights",
        **weights,
        loader=loader,
        settings=ServingSettings(
            in_flight=engine.in_flight,
            patience_s=engine.patience_s,
            limits=limits_for(launch.dtype, config.train.weights_dtype),
            sleep_level=engine.sleep_level if engine.mode == "colocated" else 0,
        ),
    )
    if supervisor is not None:
        policy.on_rest = supervisor.hold  # one that dies while the trainer has the GPU is started again afterwards
    return policy


def devices_of(config: Config) -> Devices:
    """Which GPU whom: of the servers and of what sends them weights. Raises DevicesRefused where the settings cannot
    work on this machine: ask before anything starts."""
    from agent.engines.vllm.devices import choose
    from agent.engines.vllm.launch import choose_device, visible_gpus

    engine = config.engine
    return choose(
        mode=engine.mode,
        weights=engine.weights,
        count=len(engine.servers) or engine.count,
        wanted=engine.gpus,
        visible=visible_gpus() if choose_device(config.model.device) == "cuda" else [],
        running=bool(engine.servers),
    )


def launch_settings(config: Config, model: Path) -> LaunchSettings:
    from agent.engines.vllm.launch import LaunchSettings, choose_device

    engine = config.engine
    device = choose_device(config.model.device)
    colocated = engine.mode == "colocated"
    return LaunchSettings(
        model=model,
        environment=user_path(engine.environment) if engine.environment else vllm_environment(),
        device=device,
        dtype=engine.dtype if engine.dtype != "auto" else ("float32" if device == "cpu" else "bfloat16"),
        threads=config.model.threads or 1,
        max_context=engine.max_context,
        in_flight=engine.in_flight,
        cache_gib=engine.cache_gib,
        gpu_share=engine.gpu_share or (0.5 if colocated else 0.85),
        transfer="" if engine.weights == "file" else engine.weights,
        sleeps=colocated and device == "cuda",
        extra=engine.extra,
    )
