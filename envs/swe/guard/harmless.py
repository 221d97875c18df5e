"""Configuration that changes nothing that is judged, as far as that can be proven from its text."""

from __future__ import annotations

import re

from envs.swe.guard.changes import FileChange
from envs.swe.guard.judged import Judged

_CONFIGURATIONS = re.compile(r"\.?pytest\.(?:ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg")
# Printable ASCII alone: readers of ini files take other characters for ends of lines too.
_LINE = re.compile(rb"\[pytest\] *|markers *=[ -~]*|minversion *= *[0-9.]+ *| +[ -~]*|[#;][ -~]*|")


def only_markers(judged: Judged, change: FileChange) -> bool:
    """A new pytest.ini in the root that names markers and nothing else, where base_commit configures pytest nowhere: a
    new one would switch an older one off. Other settings decide what runs or what a warning means."""
    if change.old is not None or change.new not in ("pytest.ini", ".pytest.ini"):
        return False
    if change.binary or change.mode == "120000" or change.removed or not judged.base:
        return False
    if any(_CONFIGURATIONS.fullmatch(path.rpartition("/")[2]) for path in (*judged.base, *judged.reset)):
        return False
    return all(map(_LINE.fullmatch, change.added))
