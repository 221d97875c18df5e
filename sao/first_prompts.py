"""First prompts that leave the model no room to answer: found before anything starts.

Such an episode ends before its first turn, and what it leaves (an empty patch, no answer) looks like the model's own
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.presets import Preset, PresetError, load_preset
from agent.renderers import Renderer
from data.reading import InputError, read_object
from data.task import Task
from sao.config import Config
from sao.endpoint import is_endpoint
from sao.environments import tools_of
from sao.paths import model_folder

if TYPE_CHECKING:
    from sao.assemble import Parts

_NAMED = 5
_SEAMS = 16
"""Tokens that the text around a problem may have more than around none, where they meet."""


def context_of(config: Config, preset: Preset, folder: Path) -> int:
    """Tokens that an episode may have in all: the least of the preset's limit, the engine's and the model's own."""
    limits = [preset.limits.max_context]
    if is_endpoint(config):
        return min([*limits, *filter(None, [config.endpoint.max_context])])
    try:
        values = read_object(folder / "config.json")
    except InputError:
        values = {}
    inner = values.get("text_config")
    own = values.get("max_position_embeddings") or (isinstance(inner, dict) and inner.get("max_position_embeddings"))
    return min([*limits, *(size for size in (config.engine.max_context, own) if isinstance(size, int) and size > 0)])


def too_long(tasks: Sequence[Task], preset: Preset, renderer: Renderer, context: int) -> list[tuple[str, int]]:
    """(task id, tokens of its first prompt) where fewer than `answer_reserve` tokens of `context` are left."""
    room = context - preset.limits.answer_reserve
    empty: dict[str, int] = {}
    found = []
    for task in tasks:
        problem = task.row.get("problem" if task.kind == "maths" else "problem_statement")
        if not isinstance(problem, str):
            continue  # the row itself is refused elsewhere, with its reason
        if task.kind not in empty:
            empty[task.kind] = _prompt_tokens(preset, renderer, task.kind, "") + _SEAMS
        # No token is less than a byte, so short texts need not be counted.
        if empty[task.kind] + len(problem.encode("utf-8", "surrogatepass")) <= room:
            continue
        if (tokens := _prompt_tokens(preset, renderer, task.kind, problem)) > room:
            found.append((task.task_id, tokens))
    return found


def _prompt_tokens(preset: Preset, renderer: Renderer, kind: str, problem: str) -> int:
    tools = tools_of(preset, kind) if preset.list_tools else ()
    return len(renderer.prompt_ids(preset.messages(problem), tools))


def prompts_of(config: Config, parts: Parts) -> str:
    """`check_prompts` of a run's parts."""
    return check_prompts(config, parts.preset, parts.folder, parts.renderer, parts.tasks)


def prompts_of_plan(config: Config, tasks: Sequence[Task]) -> str:
    """`check_prompts` of what a dry run would do."""
    from agent.renderers.choose import renderer_for
    from agent.tokenizer import load_tokenizer

    if is_endpoint(config):
        return ""
    folder, preset = model_folder(config.model.path, download=False), load_preset(config.agent.preset)
    return check_prompts(config, preset, folder, renderer_for(load_tokenizer(folder), thinking=preset.thinking), tasks)


def check_prompts(config: Config, preset: Preset, folder: Path, renderer: Renderer, tasks: Sequence[Task]) -> str:
    """A warning that names the tasks whose first prompt does not fit; empty where all do, and for endpoints, whose
    tokens nobody here can count. Raises PresetError where none fits."""
    if is_endpoint(config) or not tasks:
        return ""
    context = context_of(config, preset, folder)
    found = too_long(tasks, preset, renderer, context)
    if not found:
        return ""
    named = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    text = (
        f"the first prompts of {len(found)} of {len(tasks)} tasks leave less than {preset.limits.answer_reserve} of "
        f"the context's {context:,} tokens for an answer: {named}{more}. The context is the least of preset "
        f"{preset.name}'s limits.max_context ({preset.limits.max_context:,}), engine.max_context and the model's own"
    )
    if len(found) == len(tasks):
        raise PresetError(f"{text}. Choose another agent.preset, or a model with a longer context")
    return f"{text}. Those episodes end before their first turn, without a patch or an answer"
