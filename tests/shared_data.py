"""Real benchmark rows and trajectories, which are not part of the repository: SAO_SHARED_DATA names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("SAO_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def need_shared(*parts: str) -> Path:
    """Skips the test, loudly, where the file is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"REAL DATA NOT CHECKED: no {path} (set SAO_SHARED_DATA)")
    return path
