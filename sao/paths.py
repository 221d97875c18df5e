"""Where things lie: the same in a checkout and in an installed wheel, from any working directory.

Configurations (sao/configs links to configs/), the demo policy and agent presets are found beside the code; runs go to
./runs of the working directory unless SAO_RUNS names another folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from data.installed import CHECKOUT, ROOT
from data.reading import is_file, shown, user_path

CONFIGS = Path(__file__).resolve().parent / "configs"
SETUP = Path(__file__).resolve().parent / "setup"
"""Scripts that `sao setup` runs (links into scripts/)."""
DEMO_POLICY = ROOT / "agent" / "assets" / "demo"


class UserError(Exception):
    """Something the user can mend: shown as one paragraph (what, where, the way out), exit code 2, no traceback."""


def runs_folder() -> Path:
    return Path(os.environ.get("SAO_RUNS", "runs"))


def vllm_environment() -> Path:
    """Where vLLM's own environment lies unless a setting says it: in the checkout, else in the working folder."""
    return ROOT / ".venv-vllm" if CHECKOUT else Path(".venv-vllm").absolute()


def config_file(name: str) -> Path:
    """A path as given, or the name of a file in configs/ (with or without .toml)."""
    given = Path(name)
    candidates = [given, CONFIGS / name, CONFIGS / f"{name}.toml"]
    for candidate in candidates:
        if is_file(candidate):
            return candidate
    known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.toml")))
    raise UserError(
        f"No configuration {shown(name)!r}: it is no file, and {CONFIGS} holds only: {known}. Pass a path or a name."
    )


def model_folder(name: str, *, download: bool = True) -> Path:
    """`demo` is the shipped policy; else a folder with config.json, safetensors and a tokenizer; else a model id of the
    hub (`org/name`), which the hub's client fetches where `download` allows it."""
    folder = DEMO_POLICY if name == "demo" else user_path(name)
    if is_file(folder / "config.json"):
        return folder
    from sao.hub import HubError, hub_model, is_model_id

    if is_model_id(name) and not os.path.exists(folder):
        try:
            return hub_model(name, download=download)
        except HubError as error:
            raise UserError(f"No model folder {folder} is here. {error}") from error
    raise UserError(
        f"No model at {shown(folder)}: a model is a folder with config.json, *.safetensors and a tokenizer, a model id "
        "of the hub (org/name), or the word 'demo' for the shipped policy. Set model.path or pass --model."
    )
