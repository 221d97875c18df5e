"""How this project lies on the machine, a checkout or an installed wheel, and so how to get what is missing.

Every text that tells the user to install or to set up something asks here: what it names exists where the user is.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import tomllib
from pathlib import Path

DISTRIBUTION = "sao-rl"
ROOT = Path(__file__).resolve().parent.parent
"""Folder that holds the rooms: the checkout, or site-packages."""
CHECKOUT = (ROOT / "pyproject.toml").is_file() and (ROOT / "scripts").is_dir()


def get_extra(name: str) -> str:
    """The command that installs an extra's pinned packages."""
    if CHECKOUT:
        return f"EXTRAS=dev,{name} scripts/install.sh"
    return "pip install " + " ".join(map(shlex.quote, _packages(name)))


def run_script(name: str, *arguments: str) -> str:
    """The command that runs one of the scripts of `sao setup`, by its name without .sh."""
    command = f"scripts/{name}.sh" if CHECKOUT else f"sao setup {name}"
    return " ".join([command, *arguments])


def get_vllm() -> str:
    """The command that makes vLLM's own environment."""
    if CHECKOUT:
        return "scripts/vllm-env.sh"
    return f"python3 -m venv .venv-vllm && .venv-vllm/bin/pip install {' '.join(_packages('vllm'))}"


def version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def _packages(extra: str) -> list[str]:
    """Requirements of an extra, as the installed metadata has them."""
    made = []
    for line in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement, _, condition = line.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", condition):
            made.append(requirement.strip())
    return made
