"""What an agent changes in submodules: no patch of the repository around them holds it, so it is named.

A patch of the outer repository can only move a submodule to another commit, which nobody but the agent's sandbox has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PATH = re.compile(rb'^\s*path\s*=\s*"?(.*?)"?\s*$', re.MULTILINE)
_LEFT_BY_PYTHON = (b"__pycache__", b".pytest_cache", b".mypy_cache", b".ruff_cache", b".hypothesis")
_SHOWN = 5


def lost_paths(
    modules: Collection[bytes], before: Mapping[bytes, object], after: Mapping[bytes, object]
) -> tuple[bytes, ...]:
    """Files in `modules` (paths of submodules) whose record is another now, new and removed ones among them.

    Left out: git's own folders, and what running Python leaves behind."""
    if not modules:
        return ()
    heads = tuple(path + b"/" for path in modules)
    inside = {path for path in (*before, *after) if path.startswith(heads) and _is_work(path)}
    return tuple(sorted(path for path in inside if before.get(path) != after.get(path)))


def unlisted(modules: Collection[bytes], gitmodules: bytes) -> tuple[bytes, ...]:
    """Submodules that `gitmodules`, as the agent left it, does not name any more."""
    named = set(_PATH.findall(gitmodules))
    return tuple(sorted(path for path in modules if path not in named))


def summary(lost: Collection[bytes]) -> str:
    """For people and models: how many, and the first few."""
    shown = ", ".join(path.decode("utf-8", "backslashreplace")[:200] for path in list(lost)[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return f"{shown}{more}"


def refusal(lost: Collection[bytes]) -> str:
    """The agent's answer to its first `submit`."""
    return (
        f"Not submitted yet. These changes are in a git submodule: {summary(lost)}. The answer is a patch of this "
        "repository alone, which cannot hold them: they would be lost. Make the change in files of this repository. "
        "To hand in without them, call submit again."
    )


def _is_work(path: bytes) -> bool:
    parts = path.split(b"/")
    if parts[-1].endswith((b".pyc", b".pyo")):
        return False
    return not any(part.lower() == b".git" or part in _LEFT_BY_PYTHON for part in parts)
