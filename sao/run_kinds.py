"""Kinds of run folders, told by what lies in them: which of them a command takes when it is told `latest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data.reading import is_file

_SCORES = ("report.json", "scores.json")


@dataclass(frozen=True)
class RunKind:
    what: str
    """In words, after "no"."""
    made_by: str
    holds: Callable[[Path], bool]
    """Whether a folder with a config.toml is of this kind."""


def _log(path: Path) -> bool:
    return (path / "log").is_dir()


def _frozen(path: Path) -> bool:
    """Weights never changed, and the tasks were no suite's."""
    return _log(path) and not (path / "weights").exists() and not any(is_file(path / name) for name in _SCORES)


LOGGED = RunKind("run with trajectories", "sao rollout", _log)
FROZEN = RunKind("run of one frozen policy", "sao rollout", _frozen)
TRAINING = RunKind("training run", "sao train", lambda path: (path / "weights").is_dir())
TRAINED = RunKind(
    "training run that came to its end", "sao train", lambda path: is_file(path / "final" / "config.json")
)
