"""Builds the parts of a run from its configuration: tasks, preset, renderer, sandbox backend, environments.

Everything that can be wrong with the user's input is found here, before any work starts.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.endpoint.actor import lineage_of
from agent.engines.model_files import stored_tensors
from agent.presets import Preset, load_preset
from agent.renderers import Renderer
from agent.renderers.choose import renderer_for
from agent.renderers.plain import PlainRenderer
from agent.tokenizer import Tokenizer, load_tokenizer
from data.loaders import load_tasks
from data.task import Task, TaskError
from sao.backend import backend_of as backend_of
from sao.backend import image_settings as image_settings
from sao.config import Config
from sao.endpoint import checked, is_endpoint
from sao.engine import devices_of
from sao.environments import check_tasks as check_tasks
from sao.environments import environments_of as environments_of
from sao.paths import model_folder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
KEPT_FILES = (*TOKENIZER_FILES, "generation_config.json")
"""What a run keeps of its model besides weights and configuration, for its exports."""


@dataclass(frozen=True)
class Parts:
    """What needs no process or sandbox yet."""

    tasks: Sequence[Task]
    preset: Preset
    folder: Path
    """The model's; with an endpoint the shipped policy's, whose tokenizer then only shows text."""
    tokenizer: Tokenizer
    renderer: Renderer
    lineage: str

    @property
    def origin(self) -> dict[str, str]:
        """What a run must go on with: the same weights, the same ids."""
        return {"lineage": self.lineage, "tokenizer": self.tokenizer.fingerprint}


def tasks_of(config: Config, count: int | None = None) -> list[Task]:
    """The configured tasks, at most `count`: draw i runs task i modulo their whole number, so a plan may grow."""
    limits = [number for number in (config.tasks.limit, count or 0) if number > 0]
    tasks = load_tasks(
        config.tasks.name, config.tasks.split, config.tasks.path or None, limit=min(limits) if limits else None
    )
    other = [task for task in tasks if task.kind not in ("swe", "maths")]
    if other:
        raise TaskError(f"task {other[0].task_id} is of kind {other[0].kind!r}: there is no environment for it")
    return tasks


def parts_of(config: Config, *, judged_elsewhere: bool = False) -> Parts:
    """`judged_elsewhere`: a benchmark's own harness reads the rows and judges.

    Raises UserError, TaskError, PresetError, TokenizerError, DevicesRefused."""
    if config.engine.kind == "vllm":
        devices_of(config)
    endpoint = checked(config) if is_endpoint(config) else None
    folder = model_folder(config.model.path)
    if not endpoint:
        stored_tensors(folder)  # a folder that lacks a file is refused before anything starts
    tokenizer = load_tokenizer(folder)
    preset = load_preset(config.agent.preset)
    tasks = tasks_of(config, config.rollout.episodes)
    if not judged_elsewhere:
        check_tasks(tasks)
    from_hub = folder.parent.name == "snapshots"  # the folder's own name is a commit there
    named = config.model.path.replace("/", "--") if from_hub else folder.name
    return Parts(
        tasks=tasks,
        preset=preset,
        folder=folder,
        tokenizer=tokenizer,
        renderer=PlainRenderer(tokenizer) if endpoint else renderer_for(tokenizer, thinking=preset.thinking),
        lineage=lineage_of(endpoint.model) if endpoint else f"{named}-{weights_hash(folder)[:12]}",
    )


def weights_hash(folder: Path) -> str:
    """sha256 over name, size, first and last MiB of every safetensors file: tells weights apart without reading all."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(1 << 20))
            handle.seek(max(0, size - (1 << 20)))
            digest.update(handle.read(1 << 20))
    return digest.hexdigest()


def copy_tokenizer(source: Path, target: Path) -> None:
    """A run keeps the tokenizer that its ids belong to."""
    target.mkdir(exist_ok=True)
    for name in KEPT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
