"""From a task to its environment, by the task's kind: the limits of the preset, the sandboxes of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.presets import Preset, PresetError
from data.task import Task, TaskError
from envs.blind import BlindEnvironment
from envs.environment import Environment
from envs.maths import tool
from envs.maths.environment import MathsEnvironment, MathsLimits
from envs.sandbox import SandboxBackend, SandboxLimits
from envs.swe import SWEEnvironment, SweLimits, Verifier
from envs.swe.guard.watch import prepare
from envs.swe.package_parsers import check_parser
from envs.swe.row import read_row
from envs.tools.schema import SCHEMAS
from envs.tools.toolset import ToolLimits, ToolSet
from sao.config import Config

_GRADE_SLACK_S = 600.0


def sandbox_limits(config: Config) -> SandboxLimits:
    return SandboxLimits(
        memory_bytes=config.sandbox.memory_mib << 20, cpus=config.sandbox.cpus, pids=config.sandbox.pids
    )


def swe_limits(config: Config, preset: Preset) -> SweLimits:
    return SweLimits(
        sandbox=sandbox_limits(config),
        episode_s=_deadline_s(config, preset),
        eval_timeout_s=config.sandbox.grade_timeout_s,
    )


def tool_limits_of(preset: Preset) -> ToolLimits:
    return ToolLimits(
        observation_chars=preset.limits.observation_chars,
        command_timeout_s=preset.limits.command_timeout_s,
        max_command_timeout_s=preset.limits.longest_command_s,
        raw_output=preset.output == "raw",
    )


def tools_of(preset: Preset, kind: str) -> tuple[Mapping[str, Any], ...]:
    """Schemas of the tools that tasks of `kind` offer under `preset`, as the first prompt lists them."""
    if kind == "maths":
        return (tool.PythonTool(tool_limits_of(preset)).schema,) if preset.tools else ()
    return ToolSet(preset.tools, tool_limits_of(preset)).schemas


def check_tasks(tasks: Iterable[Task]) -> None:
    """Every row can be run and judged here: before a folder is made, not when its turn comes. Raises TaskError."""
    for task in tasks:
        if task.kind == "swe":
            row = read_row(task)
            try:
                check_parser(row.log_parser)
            except TaskError as error:
                raise TaskError(f"task {task.task_id} of {task.source or 'its set'}: {error}") from error


def _deadline_s(config: Config, preset: Preset) -> float:
    """The agent's sandbox outlives the episode's own limits, so those decide; but not a dead driver by much."""
    limits = preset.limits
    return limits.reset_timeout_s + limits.episode_timeout_s + config.sandbox.grade_timeout_s + _GRADE_SLACK_S


def environments_of(
    config: Config,
    preset: Preset,
    backend: SandboxBackend,
    verifier_of: Callable[[Task], Verifier] | None = None,
) -> Callable[[Task], Environment]:
    """`verifier_of`: who judges a SWE task's patch, instead of our own parsers. Making one raises PresetError where the
    preset's tools are not for tasks of that kind."""
    prepare()
    tool_limits = tool_limits_of(preset)
    limits = swe_limits(config, preset)

    def swe(task: Task) -> Environment:
        if not preset.tools or not set(preset.tools) <= set(SCHEMAS):
            raise PresetError(
                f"preset {preset.name} has the tools ({', '.join(preset.tools)}), but SWE tasks need some of "
                f"{', '.join(SCHEMAS)}: choose another agent.preset"
            )
        verifier = verifier_of(task) if verifier_of is not None else None
        return SWEEnvironment(task, backend, ToolSet(preset.tools, tool_limits), limits, verifier=verifier)

    def maths(task: Task) -> Environment:
        if not preset.tools:
            return MathsEnvironment(task)
        if preset.tools != (tool.NAME,):
            raise PresetError(
                f"preset {preset.name} has the tools ({', '.join(preset.tools)}), but maths tasks have "
                f"{tool.NAME} or none: use agent.preset maths or maths-python"
            )
        own = MathsLimits(sandbox_limits(config), limits.episode_s)
        return MathsEnvironment(task, backend, tool.PythonTool(tool_limits), own)

    def make(task: Task) -> Environment:
        environment = maths(task) if task.kind == "maths" else swe(task)
        return BlindEnvironment(environment) if config.agent.blind else environment

    return make
