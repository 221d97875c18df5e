"""Models named by their id on the Hugging Face hub: `org/name`, or `org/name@revision`.

Promises: the hub's own client loads them, into its own cache, and only what a model folder needs (safetensors,
configuration, tokenizer; never pickles, never code); what lies in the cache is taken without asking the network; where
it can be had neither from the cache nor from the network, the error names the command that fetches it.
"""

from __future__ import annotations

import re
from pathlib import Path

_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "tekken.json")
_SUBFOLDERS = ("*/*",)
"""Exports in other formats (onnx/, original/, gguf/) lie there."""


class HubError(Exception):
    """The model cannot be had; the text says why and what to do."""


def is_model_id(name: str) -> bool:
    """It reads like an id of the hub; whether a folder of that name is here is the caller's to ask first."""
    return _ID.fullmatch(name) is not None


def fetch_command(name: str) -> str:
    repo, revision = _parts(name)
    return f"hf download {repo}" + (f" --revision {revision}" if revision else "")


def hub_model(name: str, *, download: bool = True) -> Path:
    """The folder of the model `name`. Raises HubError. download=False: only from the cache."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repo, revision = _parts(name)

    def snapshot(local: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_SUBFOLDERS),
                local_files_only=local,
            )
        )

    try:
        cached = snapshot(local=True)
    except (LocalEntryNotFoundError, OSError, ValueError):
        cached = None
    if cached is not None and whole(cached):
        return cached
    fetch = f"`{fetch_command(name)}` fetches it (on a machine with a network; HF_HOME says where it lies)"
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"The model {name} is not in the hub's cache, and HF_HUB_OFFLINE is set. {fetch}.")
    if not download:
        raise HubError(f"The model {name} is not in the hub's cache yet. {fetch}; a run does so by itself.")
    try:
        folder = snapshot(local=False)
    except HfHubHTTPError as error:  # it answered: no such model, no such revision, no right to it
        raise HubError(f"The hub does not give the model {name}: {_first_line(error)}") from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        raise HubError(f"No network to fetch the model {name} with ({_first_line(error)}). {fetch}.") from error
    if not whole(folder):
        raise HubError(f"The model {name} has no config.json with *.safetensors: other formats are not loaded")
    return folder


def whole(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _parts(name: str) -> tuple[str, str | None]:
    match = _ID.fullmatch(name)
    if match is None:
        raise HubError(f"{name!r} is no id of a model on the hub: org/name, or org/name@revision")
    return match["repo"], match["revision"]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
