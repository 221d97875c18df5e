"""Real servers for a whole test file, tiny models for them, and a plain forward to compare with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config

from agent.engines.vllm.guard import descendants
from agent.engines.vllm.launch import LaunchSettings
from agent.engines.vllm.loading import OUR_RELOAD, FileLoader, Loader
from agent.engines.vllm.policy import ServingSettings, VllmPolicy
from agent.engines.vllm.proof import probe_of
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
from agent.policy import Generation
from tests.agent.processes import alive
from tests.agent.vllm_fake import write_probe

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("SAO_VLLM_ENV", ROOT / ".venv-vllm"))
VOCABULARY, CONTEXT = 256, 1024
LIMIT = 1e-4


def need_vllm() -> None:
    """Skips by the words VLLM TEST NOT RUN where there is no environment; SAO_REQUIRE_VLLM=1 makes that a failure."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        reason = f"no vLLM in {ENVIRONMENT}: run scripts/vllm-env.sh"
        if os.environ.get("SAO_REQUIRE_VLLM") == "1":
            pytest.fail(f"SAO_REQUIRE_VLLM=1, but {reason}", pytrace=False)
        pytest.skip(f"VLLM TEST NOT RUN: {reason}")


class World:
    """Servers in one event loop, for a whole file."""

    def __init__(self, folder: Path, count: int = 1, **launch: Any) -> None:
        torch.set_num_threads(1)
        self.folder, self.runner, self.stack = folder, asyncio.Runner(), contextlib.AsyncExitStack()
        self.first, self.count = save(new_model(0), folder / "first"), count
        self.launch = LaunchSettings(
            model=self.first,
            environment=ENVIRONMENT,
            max_context=CONTEXT,
            **{"extra": ("--skip-tokenizer-init",), **launch},
        )
        self.run(self._start())

    def run(self, work: Awaitable[Any]) -> Any:
        async def waited() -> Any:
            return await work

        return self.runner.run(waited())

    async def _start(self) -> None:
        settings = SuperviseSettings(start_timeout_s=1800, restarts=100)
        self.supervisor = await self.stack.enter_async_context(
            Supervisor(self.launch, self.folder / "logs", count=self.count, settings=settings)
        )
        await self.supervisor.wait_ready()

    def end(self) -> None:
        trees = [pid for server in self.supervisor.servers if server.process for pid in tree(server.process.pid)]
        self.run(self.stack.aclose())
        self.runner.close()
        assert len(trees) >= 3  # guard, API server, engine: what must be gone now
        assert [pid for pid in trees if alive(pid)] == []

    async def policy(
        self,
        model: nn.Module,
        lineage: str,
        loader: Callable[[int], Loader] = lambda _: FileLoader(OUR_RELOAD),
        **settings: Any,
    ) -> VllmPolicy:
        return await VllmPolicy.connect(
            self.supervisor.urls,
            save(model, self.folder / lineage),
            self.folder / f"{lineage}-work",
            lineage=lineage,
            loader=loader,
            settings=ServingSettings(**{"patience_s": 1800, **settings}),
        )


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def step_from(seed: int, version: int) -> Any:
    """The model of `seed` some way off. Not the last version's child: fifty steps would end in huge weights, whose fp32
    sums differ by 1e-4."""
    model = new_model(seed)
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def save(model: Any, folder: Path) -> Path:
    """As the trainer publishes it: with its own probe beside the weights."""
    model.save_pretrained(folder)
    write_probe(folder, probe_of(model))
    return folder


def forced(model: nn.Module, prompt: list[int], made: Generation) -> list[float]:
    """Log-probabilities of the sampled tokens by one plain forward over the whole sequence."""
    ids = torch.tensor([[*prompt, *made.tokens]])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
    at = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return logprobs[at, ids[0, at + 1]].tolist()


def worst(model: nn.Module, prompt: list[int], made: Generation) -> float:
    pairs = zip(forced(model, prompt, made), made.logprobs, strict=True)
    return max(abs(ours - theirs) for ours, theirs in pairs)


def by_versions(models: dict[int, Any], prompt: list[int], made: Generation) -> float:
    """The largest difference of a token from its own version."""
    each = {version: forced(models[version], prompt, made) for version in set(made.versions)}
    return max(abs(each[version][place] - made.logprobs[place]) for place, version in enumerate(made.versions))


def prompt_of(seed: int, length: int = 20) -> list[int]:
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(length)]


def tree(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""
