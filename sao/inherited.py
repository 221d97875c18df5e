"""What another model takes over from the demo's configuration, and what the demo policy cannot do: said before
anything starts.

The demo's values were chosen for one million parameters on generated repositories: rates three hundred times the
paper's, six turns, small sandboxes. They are nobody's default.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from agent.presets import Preset
from data.reading import InputError, read_json, shown
from sao.config import Config
from sao.paths import CONFIGS, DEMO_POLICY, model_folder

_SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")


def inherited(config: Config, preset: Preset, folder: Path | None = None, *, training: bool = False) -> str:
    """A warning; empty where the configuration is not the demo's or the model is of the demo's kind."""
    if config.name not in ("demo", "demo-train") or config.engine.kind == "endpoint":
        return ""
    folder = folder or model_folder(config.model.path)
    if _demo_like(folder):
        return ""
    limits, step = preset.limits, config.train.step
    taken = [
        f"preset {preset.name} ({limits.max_turns} turns, {limits.max_tokens} sampled tokens, context "
        f"{limits.max_context})",
        f"sandboxes of {config.sandbox.memory_mib} MiB",
        f"{config.sandbox.grade_timeout_s:g} s for tests",
    ]
    if training:
        taken.append(
            f"rates {step.policy_optimizer.learning_rate:g} and {step.critic_optimizer.learning_rate:g} (the paper's, "
            "for 30 billion parameters, are 1e-6 and 5e-6)"
        )
    others = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.toml") if path.stem != "demo"))
    return (
        f"{folder} is not the demo policy, but no --config was given, so it takes the demo's values: "
        f"{'; '.join(taken)}. Choose a configuration ({others}, or a file of yours), or --set single values"
    )


def unreadable(config: Config, folder: Path | None = None) -> str:
    """A warning where the demo policy is to work on what it cannot read; empty elsewhere."""
    own = config.tasks.name == "micro-swe" and not config.tasks.path
    if own or config.engine.kind == "endpoint" or not _demo_like(folder or model_folder(config.model.path)):
        return ""
    what = shown(config.tasks.path or f"the set {config.tasks.name}")
    return (
        f"The demo policy (one million parameters) knows micro-SWE's generated repositories alone: it cannot read the "
        f"tasks of {what} and will solve none of them; you see sandboxes, tests and log at work. "
        "What can: make rollout TASKS=... MODEL=<folder, or org/name of the hub> ARGS='--set agent.preset=default', or "
        "an OpenAI-compatible endpoint: --set engine.kind=endpoint --set endpoint.url=URL --set endpoint.model=NAME"
    )


def warn(console: Console, text: str) -> None:
    if text:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _demo_like(folder: Path) -> bool:
    try:
        own, demo = (read_json(each / "config.json") for each in (folder, DEMO_POLICY))
    except InputError:
        return False
    return isinstance(own, dict) and all(own.get(key) == demo.get(key) for key in _SHAPE)
